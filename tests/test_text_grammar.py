"""Grammars over the default model's tokens: what is allowed, what is refused, and what it costs."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import numpy as np
import pytest

from headway.artifacts.files import ModelFiles
from headway.core.errors import GrammarError
from headway.core.plan import Grammar
from headway.text.grammar.guide import GrammarCompiler, GrammarGuide
from headway.text.grammar.schemas import read_schema
from headway.text.tokenizer import Tokenizer

VOCAB = 49_152
EXCESS = 61
AMBIGUOUS = 'start: s\ns: s s s | "a" | "aa" | s "b" s |'


@pytest.fixture(scope="module")
def compiler(smollm2: ModelFiles) -> GrammarCompiler:
    """For a model with more logits than the tokenizer has tokens."""
    return GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, VOCAB + EXCESS)


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def allowed(guide: GrammarGuide) -> set[int]:
    (mask,) = guide.masks(())
    return bits(mask)


def bits(mask: bytes) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist())


def fits(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    """Whether the text may come, token by token, and end there."""
    (guide,) = compiler.compile(grammar, 1)
    for token in tokenizer.encode(text, add_bos=False):
        if token not in allowed(guide):
            return False
        guide.accept(token)
    return 2 in allowed(guide)


@pytest.mark.parametrize(("grammar", "good", "bad"), [
    (Grammar("json"), ['{"a": 1}', "{}", '{\n  "a": {\n    "b": []\n  }\n}'],
     ["[1]", "1", '{"a": 1', "{} x", '{a: 1}']),
    (Grammar("regex", r"\d{3}-[a-f]+"), ["123-abc"], ["12-abc", "123-", "123-g", "x123-a", "123-a\n"]),
    (Grammar("regex", r"^(ja|nein)$"), ["ja", "nein"], ["jaja", ""]),
    (Grammar("choice", '["a", "ab", "say \\"hi\\"\\n", "世界", "a|b"]'), ["a", "ab", 'say "hi"\n', "世界", "a|b"],
     ["b", "abc", "世"]),
    (Grammar("lark", 'start: "<" WORD ">"\nWORD: /[a-z]+/'), ["<word>"], ["<>", "<word", "word"]),
    (schema({"type": "array", "items": {"type": "integer"}}), ["[1, 2]", "[]", "[\n  1\n]"], ["[1.5]", "{}"]),
    (schema(True), ["1", '"x"', "null", "[{}]"], ["x", ""]),
    (schema({"type": "string"}), ['"\\n\\té"'], ['"\n"', "'x'"]),
    (schema({"type": "string", "pattern": "b"}), ['"abc"'], ['"ac"']),
])  # fmt: skip
def test_a_text_may_come_if_it_fits_and_otherwise_not(
    compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not fits(compiler, tokenizer, grammar, text)] == []
    assert [text for text in bad if fits(compiler, tokenizer, grammar, text)] == []


def test_white_space_is_bounded(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """A model that may go on with blanks for ever does so."""
    for space, good in (("", True), (" ", True), ("\n", True), ("\n    ", True), ("  ", False), ("\n\n", False)):
        assert fits(compiler, tokenizer, Grammar("json"), f'{{"a":{space}1}}') is good, repr(space)


def test_a_mask_is_as_wide_as_the_model_and_never_allows_what_is_no_text(
    compiler: GrammarCompiler, tokenizer: Tokenizer, smollm2: ModelFiles
) -> None:
    (guide,) = compiler.compile(Grammar("regex", r"(?s:.)+"), 1)
    (mask,) = guide.masks(())
    assert len(mask) == -(-(VOCAB + EXCESS) // 8)
    assert max(bits(mask)) < VOCAB and not bits(mask) & tokenizer.special_ids
    guide.accept(tokenizer.encode("x", add_bos=False)[0])
    (later,) = guide.masks(())
    assert bits(later) & tokenizer.special_ids == set(smollm2.eos_ids)
    whole = {token for token in range(VOCAB) if token not in tokenizer.special_ids and _is_utf8(tokenizer, token)}
    assert whole <= bits(mask)


def _is_utf8(tokenizer: Tokenizer, token: int) -> bool:
    try:
        return bool(tokenizer.token_bytes(token).decode())
    except UnicodeDecodeError:
        return False


def test_masks_after_guesses_are_those_after_the_tokens_themselves(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = schema({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    guesses = tokenizer.encode('{"name": "Ada"', add_bos=False)
    ahead, guide = compiler.compile(grammar, 2)
    masks = ahead.masks(guesses)
    assert len(masks) == len(guesses) + 1
    for mask, guess in zip(masks, guesses, strict=False):
        assert guide.masks(()) == [mask]
        guide.accept(guess)
    assert guide.masks(()) == masks[-1:]
    wrong = next(token for token in range(100, VOCAB) if token not in bits(masks[2]))
    assert ahead.masks([*guesses[:2], wrong, *guesses]) == masks[:3]
    assert ahead.masks(()) == masks[:1]  # guessing changed nothing


class Counting:
    """A matcher whose masks are counted, its copies' too."""

    def __init__(self, matcher: Any, states: list[bytes]) -> None:
        self._matcher, self.states = matcher, states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def deep_copy(self) -> Counting:
        return Counting(self._matcher.deep_copy(), self.states)

    def compute_bitmask(self) -> bytes:
        self.states.append(self._matcher.compute_bitmask())
        return self.states[-1]


def test_the_mask_of_each_position_is_computed_once_with_guesses_or_without(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    """As a step asks: for the guesses, then for those of them that it has room for; then some prove right."""
    grammar = schema({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    text = tokenizer.encode('{"name": "Ada Lovelace"', add_bos=False)
    (plain,) = compiler.compile(grammar, 1)
    expected = []
    for token in text:
        expected += plain.masks(())
        plain.accept(token)
    for guessed, room, right in ((5, 5, 5), (5, 2, 2), (4, 4, 1), (3, 3, 0)):
        (guide,) = compiler.compile(grammar, 1)
        counting = Counting(guide._matcher, [])
        guide._matcher = counting  # type: ignore[assignment]
        found: list[bytes] = []
        at, rounds = 0, 0
        while at < len(text):
            guesses = text[at : at + guessed]
            assert len(guide.masks(guesses)) == len(guesses) + 1
            masks = guide.masks(guesses[:room])
            for mask, token in zip(masks[: right + 1], text[at : at + right + 1], strict=False):
                found.append(mask)
                guide.accept(token)
                at += 1
            rounds += 1
        assert found == expected
        # the first is known from compiling; each other one is computed once, and so is the one after the text
        assert len(counting.states) == len(text)


def test_masks_after_wrong_guesses_are_forgotten(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    left, right = (tokenizer.encode(word, add_bos=False) for word in ("left", "right"))
    ahead, guide = compiler.compile(Grammar("choice", '["left", "right"]'), 2)
    ahead.masks(left)
    for token in right:
        assert ahead.masks(right)[:1] == guide.masks(())
        ahead.accept(token)
        guide.accept(token)
    assert ahead.complete and ahead.masks(()) == guide.masks(())


def test_the_end_may_be_guessed_too_and_nothing_follows_it(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    (guide,) = compiler.compile(schema({"type": "integer"}), 1)
    digits = tokenizer.encode("12", add_bos=False)
    masks = guide.masks([*digits, 2, 2, *digits])
    assert [2 in bits(mask) for mask in masks] == [False, True, True, True, True][: len(masks)]
    assert bits(masks[-1]) == {2}


def test_a_guide_is_complete_where_nothing_but_the_end_may_follow(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    (closed, endless) = (
        compiler.compile(grammar, 1)[0] for grammar in (Grammar("json"), schema({"type": "integer"}))
    )
    for token in tokenizer.encode("{}", add_bos=False):
        assert not closed.complete
        closed.accept(token)
    assert closed.complete and allowed(closed) == {2}
    endless.accept(tokenizer.encode("1", add_bos=False)[0])
    assert not endless.complete and 2 in allowed(endless)
    endless.accept(2)
    assert endless.complete and allowed(endless) == {2}


def test_guides_of_one_grammar_go_their_own_ways(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = Grammar("choice", '["left", "right"]')
    first, second = compiler.compile(grammar, 2)
    before = allowed(second)
    first.accept(tokenizer.encode("left", add_bos=False)[0])
    assert allowed(second) == before != allowed(first)
    assert compiler.knows(grammar)
    (third,) = compiler.compile(grammar, 1)
    assert allowed(third) == before


def test_what_is_kept_compiled_is_bounded(smollm2: ModelFiles) -> None:
    compiler = GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, VOCAB)
    grammars = [Grammar("regex", f"x{number}") for number in range(70)]
    for grammar in grammars:
        compiler.compile(grammar, 1)
        compiler.compile(grammars[0], 1)  # in use, so not the one to be forgotten
    assert compiler.knows(grammars[0]) and compiler.knows(grammars[-1]) and not compiler.knows(grammars[1])
    assert sum(map(compiler.knows, grammars)) == 64


@pytest.mark.parametrize(("grammar", "message"), [
    (schema({"type": "integer", "minimum": 5, "maximum": 4}), r"minimum \(5\) is greater than maximum \(4\)"),
    (schema({"allOf": [{"type": "string"}, {"type": "null"}]}), "incompatible types"),
    (schema({"enum": []}), "anyOf is empty"),
    (schema(False), "schema is false"),
    (schema({"type": "object", "required": ["b"], "additionalProperties": False}), "'b' is unsatisfiable"),
    (schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}), "no token can follow"),
    (schema({"$ref": "#/$defs/nowhere"}), "/nowhere' does not exist"),
    (schema({"type": "strnig"}), "strnig"),
    (schema({"type": "string", "pattern": "(a"}), "unclosed group"),
    (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
    (schema({"minimum": "a"}), "minimum"),
    (Grammar("json_schema", "{"), "not JSON"),
    (Grammar("regex", "(a"), "unclosed group"),
    (Grammar("regex", r"a(?=b)"), "look-around"),
    (Grammar("regex", r"(a)\1"), "backreferences"),
    (Grammar("regex", r"[^\s\S]"), "no token can follow"),
    (Grammar("choice", "[]"), "list of choices is empty"),
    (Grammar("choice", json.dumps([f"w{n}" for n in range(200_000)])), "too big"),
    (Grammar("lark", 'start: a\na: a "x"'), "no token can follow"),
    (Grammar("lark", "start: nowhere"), "nowhere"),
    (Grammar("lark", 'start: %json {"not": {}}'), "not"),
])  # fmt: skip
def test_what_cannot_be_met_is_refused_and_says_why(
    compiler: GrammarCompiler, grammar: Grammar, message: str
) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        compiler.compile(grammar, 1)
    assert len(str(caught.value)) < 1000 and "start: /" not in str(caught.value)


@pytest.mark.parametrize(("value", "message"), [
    ([], "#: a schema is a JSON object, true or false, not a list"),
    ({"properties": {"a": 1}}, "#/properties/a: a schema is a JSON object"),
    ({"properties": {"a": {"not": {"minimum": 1}}}}, "#/properties/a: the keyword 'not' is not supported"),
    ({"items": {"uniqueItems": True}}, "#/items: the keyword 'uniqueItems' is not supported"),
    ({"properties": {"a/b": {"if": {"type": "null"}, "then": False}}},
     "#/properties/a~1b: the keyword 'if' is not supported"),
    ({"anyOf": [{}, {"dependentRequired": {"a": ["b"]}}]}, "#/anyOf/1: the keyword 'dependentRequired'"),
    ({"items": {"items": [5]}}, "#/items/prefixItems/0: a schema is a JSON object, true or false, not a number"),
    ({"items": [{}], "prefixItems": [{}]}, "#: items is a list, and so is prefixItems"),
    ({"allOf": []}, "#: allOf must be a non-empty list of schemas"),
    ({"properties": []}, "#: properties must be a JSON object, not a list"),
    ({"$ref": "https://example.org/x"}, "#: $ref must point into this schema"),
    ({"format": 5}, "#: format must be a string, not a number"),
    ({"type": "strnig"}, "#: type is 'strnig'; it must be one of array, boolean"),
    ({"required": "a"}, "#: required must be a list of names"),
    ({"minItems": -1}, "#: minItems is -1; it must be a whole number, 0 or more"),
    ({"minLength": 1 << 40}, "#: minLength is 1099511627776; no answer is that long"),
    ({"$ref": "#/$defs/none"}, "#: $ref points to '#/$defs/none', which this schema does not have"),
    ({"const": "x" * 8193}, "#: a string of const has 8193 characters; the limit is 8192"),
])  # fmt: skip
def test_a_schema_is_refused_by_keyword_and_place(value: Any, message: str) -> None:
    with pytest.raises(GrammarError, match="^" + re.escape(message)):
        read_schema(value)


def test_a_schema_too_deep_is_refused_with_the_limit() -> None:
    deep: Any = {}
    for _ in range(60):
        deep = {"items": deep}
    with pytest.raises(GrammarError, match="more than 50 deep"):
        read_schema(deep)


def test_keywords_are_looked_for_where_schemas_are_and_nowhere_else() -> None:
    read_schema({"const": {"not": 1}, "default": {"bogus": 3}, "x-mine": {"not": 4}, "x-guidance": {"lenient": True}})
    read_schema({"properties": {"not": {"type": "integer"}, "if": True}, "type": "integer", "format": "int64"})


def test_an_ambiguous_grammar_ends_at_a_limit_and_says_so(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Its parser has ever more to do. A step waits for each mask, so there is a bound, and then a fault."""
    (guide,) = compiler.compile(Grammar("lark", AMBIGUOUS), 1)
    (a,) = tokenizer.encode("a", add_bos=False)
    longest_s = 0.0
    for _ in range(300):
        started = time.thread_time()
        mask = allowed(guide)
        longest_s = max(longest_s, time.thread_time() - started)
        if guide.fault is not None:
            break
        guide.accept(a)
    assert guide.fault is not None and "max is 500" in guide.fault and mask == {2}
    assert longest_s < 0.15
