"""Grammars of tool calls in every format: what they let through, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest

from headway.artifacts.files import ModelFiles
from headway.core.errors import GrammarError
from headway.text.grammar.guide import GrammarCompiler
from headway.text.grammar.schemas import MOST_OPTIONAL, read_schema
from headway.text.tokenizer import Tokenizer
from headway.text.tools.calls import ToolCallParser
from headway.text.tools.format import ToolFormat
from headway.text.tools.grammar import calls_or_json, forced_calls
from schema_machine import lets_through, matcher
from test_text_toolcalls import FORMAT_OF, NAMES, gathered
from tool_templates import FORMATS

BIG = 2**53 + 1
PERSON = read_schema({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
LOOSE = {name: read_schema({"type": "object"}) for name in NAMES}
EXACT = {"type": "object", "properties": {"id": {"const": BIG}}, "required": ["id"], "additionalProperties": False}


def called(format: ToolFormat, *arguments: str, name: str = "get") -> str:
    """Calls as the grammar has them."""
    if format.keys is None:
        calls = [f"{name}{format.middle}{each}" for each in arguments]
    else:
        first, second = format.keys
        calls = [f'{{"{first}": "{name}", "{second}": {each}}}' for each in arguments]
    return format.before + (format.between or "").join(calls) + format.after


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_is_calls_or_json_within_the_schema(name: str) -> None:
    """Though both may begin alike, as in Llama's format."""
    format = FORMAT_OF[name]
    start = matcher(calls_or_json(format, LOOSE, {}, PERSON, several=True))
    one = called(format, '{"a": "b"}')
    answers = [one, '{"name": "Ada"}', '{"name": "get"}', '{"name": "Ada", "age": [1]}']
    answers += [called(format, "{}", '{"b": 1}')] if format.between is not None else []
    assert [text for text in answers if not lets_through(start, text)] == []
    others = ["Ada", '{"name": 1}', '{"age": 1}', '{"name": "Ada"}' + one, one + '{"name": "Ada"}', ""]
    assert [text for text in others if lets_through(start, text)] == []
    parser = ToolCallParser(format, NAMES)
    assert gathered([*parser.push(answers[1]), *parser.finish()]) == ('{"name": "Ada"}', [])
    parser = ToolCallParser(format, NAMES)
    assert gathered([*parser.push(one), *parser.finish()]) == ("", [("get", '{"a": "b"}')])


@pytest.mark.parametrize("name", FORMATS)
def test_the_integers_of_forced_calls_and_of_json_beside_calls_are_exact(name: str) -> None:
    format = FORMAT_OF[name]
    forced = matcher(forced_calls(format, {"get": read_schema(EXACT)}, {}, several=False))
    beside = matcher(calls_or_json(format, {"get": read_schema(EXACT)}, {}, read_schema(EXACT), several=False))
    good, bad = (f'{{"id": {value}}}' for value in (BIG, BIG - 1))
    for start in (forced, beside):
        assert lets_through(start, called(format, good)) and not lets_through(start, called(format, bad))
    assert lets_through(beside, good) and not lets_through(beside, bad) and not lets_through(forced, good)


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property_{i}": {"type": "integer"} for i in range(count)}}


@pytest.mark.parametrize("required", [False, True])
def test_arguments_may_have_many_properties(smollm2: ModelFiles, required: bool) -> None:
    """To the number at which a schema is refused, and no answer breaks off before."""
    compiler, format = GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, 49152), FORMAT_OF["QWEN"]
    tokenizer, count = Tokenizer(smollm2), MOST_OPTIONAL
    schema = properties(count) | ({"required": [f"property_{i}" for i in range(count)]} if required else {})
    for exact in (False, True):
        if exact:
            schema["properties"]["property_0"] = {"const": BIG}
        grammar = forced_calls(format, {"get": read_schema(schema)}, {}, several=False)
        (guide,) = compiler.compile(grammar, 1)
        text = called(format, f'{{"property_0": {BIG}, "property_1": 5, "property_')
        for token in tokenizer.encode(text.removesuffix(format.after), add_bos=False)[:-1]:
            (mask,) = guide.masks(())
            assert guide.fault is None and mask[token // 8] >> token % 8 & 1
            guide.accept(token)


def test_too_many_properties_are_refused_with_the_limit() -> None:
    with pytest.raises(GrammarError, match="951 of its properties are not required; the limit is 950"):
        read_schema(properties(MOST_OPTIONAL + 1))
    many = properties(MOST_OPTIONAL + 1) | {"required": ["property_0"]}
    assert len(read_schema(many)["properties"]) == MOST_OPTIONAL + 1


def test_a_schema_that_is_refused_is_refused_in_a_call_too() -> None:
    with pytest.raises(GrammarError, match="allOf"):
        combined = read_schema({"allOf": [{"properties": {"a": {"const": BIG}}}, {"required": ["a"]}]})
        forced_calls(FORMAT_OF["QWEN"], {"get": combined}, {}, several=False)
