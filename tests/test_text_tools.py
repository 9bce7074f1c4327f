"""Formats of tool calls learned from chat templates, the grammar that forces calls, and calls in a conversation."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer as Rules

import tool_templates as templates
from headway.artifacts.files import ModelFiles
from headway.core.errors import InvalidRequest
from headway.text.chat.messages import has_calls, read_messages
from headway.text.chat.template import ChatTemplate
from headway.text.tools.format import ToolFormat
from headway.text.tools.grammar import forced_calls
from headway.text.tools.history import as_template_wants, read_calls
from test_text_toolcalls import parsed
from tool_templates import FORMATS, format_of, template_of

FORMAT_OF = {name: format_of(name) for name in FORMATS}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Bonn 🦜"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 20},
        "units": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTIONS = {"get": WEATHER, "get_time": {"properties": {}, "additionalProperties": False}}


# -- formats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "format"),
    [
        (
            "QWEN",
            ToolFormat("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", ("name", "arguments")),
        ),
        (
            "HERMES",
            ToolFormat("<tool_call>\n", "\n</tool_call> \n<tool_call>\n", "\n</tool_call> ", ("name", "arguments")),
        ),
        (
            "QWEN3",
            ToolFormat(
                "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", ("name", "arguments"), empty=""
            ),
        ),
        ("LLAMA", ToolFormat("", None, "", ("name", "parameters"))),
        ("MISTRAL", ToolFormat("[TOOL_CALLS] [", ", ", "]", ("name", "arguments"), short_ids=True)),
        (
            "DEEPSEEK",
            ToolFormat(
                "<|calls|><|call|>function<|sep|>",
                "\n```<|/call|>\n<|call|>function<|sep|>",
                "\n```<|/call|><|/calls|>",
                None,
                "\n```json\n",
                as_text=True,
            ),
        ),
    ],
)
def test_the_format_is_learned_from_the_template_alone(name: str, format: ToolFormat) -> None:
    assert format_of(name) == format


def test_a_template_without_tools_is_refused_with_the_models_name(smollm2: ModelFiles) -> None:
    with pytest.raises(InvalidRequest, match="smollm2-135m does not support tools") as caught:
        ToolFormat.of(ChatTemplate(smollm2))
    assert caught.value.field == "tools"
    with pytest.raises(InvalidRequest, match="no chat template"):
        ToolFormat.of(template_of(None))


@pytest.mark.parametrize(
    "calls",
    [
        templates.PYTHONIC,
        # The calls do not show at all, …
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
        # … an id stands where only a marker should, …
        templates.DEEPSEEK.replace("function<|sep|>'", "' + call.id + '<|sep|>'"),
        # … or nothing tells a call from other text.
        templates.DEEPSEEK.replace("<|calls|>", "").replace("<|call|>function<|sep|>", ""),
    ],
)
def test_calls_that_are_not_understood_are_refused_and_not_guessed_at(calls: str) -> None:
    with pytest.raises(InvalidRequest, match="tiny writes tool calls in a form that Headway does not understand"):
        ToolFormat.of(template_of(calls))


# -- forced calls ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rules(smollm2: ModelFiles) -> Rules:
    """The default model's tokenizer with the markers of two families as their models have them: as added tokens that
    are text, and as special ones."""
    rules = Rules.from_file(str(smollm2.tokenizer))
    rules.add_tokens(["<tool_call>", "</tool_call>"])
    rules.add_special_tokens(["[TOOL_CALLS]", "<|calls|>", "<|/calls|>"])
    return rules


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_forced_answers_are_calls_whose_arguments_fit_their_schema(rules: Rules, name: str, several: bool) -> None:
    """Walks at random through what the grammar allows."""
    added = {token.content: id for id, token in rules.get_added_tokens_decoder().items()}
    format, end = FORMAT_OF[name], rules.token_to_id("<|im_end|>")
    tokenizer = llguidance.LLTokenizer(rules.to_str(), eos_token=end)
    source = forced_calls(format, FUNCTIONS, added, several=several).source
    chance, most = random.Random(0), 0
    for _ in range(4):
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(source))
        assert not matcher.is_error(), matcher.get_error()
        ids = _walk(matcher, end, chance, tokenizer.vocab_size)
        content, calls, whole = parsed(format, rules.decode(ids, skip_special_tokens=False))
        assert not content and calls and whole
        for called, arguments in calls:
            jsonschema.validate(json.loads(arguments), FUNCTIONS[called])
        most = max(most, len(calls))
        if format.before.startswith("[TOOL_CALLS]"):
            assert ids[0] == added["[TOOL_CALLS]"]
    assert (most > 1) == (several and format.between is not None)


def test_of_two_tokens_that_begin_alike_the_longer_one_is_the_marker() -> None:
    source = forced_calls(FORMAT_OF["QWEN"], FUNCTIONS, {"<tool": 1, "<tool_call>": 2}, several=False).source
    assert source.startswith('start: <[2]> "\\n" call')


def _walk(matcher: llguidance.LLMatcher, end: int, chance: random.Random, vocabulary: int) -> list[int]:
    ids: list[int] = []
    mask = allocate_token_bitmask(1, vocabulary)
    while True:
        fill_next_token_bitmask(matcher, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little"))
        token = int(chance.choice(allowed))
        # It may end after a call, and does so at last.
        if token == end or (end in allowed and len(ids) > 300):
            return ids
        assert matcher.consume_token(token)
        ids.append(token)


# -- earlier calls ---------------------------------------------------------------------------------------------

CALL = {"id": "call_abc123def456", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}
ASKED = {"role": "user", "content": "q"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "call_abc123def456", "content": "sunny"}


def read(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return read_calls(read_messages(messages, ()).messages)


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_with_calls_and_results_renders(name: str) -> None:
    history = as_template_wants(read([ASKED, CALLED, TOLD]), FORMAT_OF[name])
    text = template_of(getattr(templates, name)).render(history)
    assert '{"a": 1}' in text and "sunny" in text and "None" not in text
    assert CALL["function"] == {"name": "get", "arguments": '{"a": 1}'}  # the given one is as it was


def test_ids_of_nine_characters_stay_distinct_and_matched() -> None:
    call, asked, told = as_template_wants(read([CALLED, ASKED, TOLD]), FORMAT_OF["MISTRAL"])
    assert call["tool_calls"][0]["id"] == told["tool_call_id"] == "123def456"
    assert asked == ASKED


def test_members_that_are_null_are_left_out_but_for_content() -> None:
    echoed = {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "function_call": None}
    read = read_messages([echoed, CALLED], ()).messages
    assert read == [{"role": "assistant", "content": "x"}, CALLED]
    assert has_calls([TOLD]) and has_calls([CALLED]) and not has_calls([ASKED, echoed])


#: Arguments as clients send them, as a template has them that writes JSON of an object, and one that writes text.
#: What was cut off stays as it is: nobody knows how it would have gone on.
ARGUMENTS: list[tuple[Any, Any, str]] = [
    ('{"a": 1}', {"a": 1}, '{"a": 1}'),
    ({"a": 1}, {"a": 1}, '{"a": 1}'),
    ("", {}, "{}"),
    (None, {}, "{}"),
    ('{"text": "Roses', '{"text": "Roses', '{"text": "Roses'),
    ("[1]", [1], "[1]"),
    ([1], [1], "[1]"),
    ('"x"', "x", '"x"'),
    (5, 5, "5"),
    ('{"a": NaN}', '{"a": NaN}', '{"a": NaN}'),
    ("[" * 100_000, "[" * 100_000, "[" * 100_000),
]


@pytest.mark.parametrize(("given", "value", "text"), ARGUMENTS, ids=lambda value: str(value)[:20])
def test_arguments_that_are_no_object_are_history_all_the_same(given: Any, value: Any, text: str) -> None:
    for name, expected in (("QWEN", value), ("DEEPSEEK", text)):
        (call,) = as_template_wants(read([_with(arguments=given)]), FORMAT_OF[name])
        assert call["tool_calls"][0]["function"]["arguments"] == expected


def test_calls_without_ids_and_types_are_answered_in_their_order() -> None:
    bare = [{"function": {"name": name}} for name in ("first", "second")]
    results = [{"role": "tool", "content": content} for content in "12"]
    calls, *told = read([{"role": "assistant", "tool_calls": bare}, *results])
    ids = [call["id"] for call in calls["tool_calls"]]
    assert [call["type"] for call in calls["tool_calls"]] == ["function"] * 2 and len(set(ids)) == 2
    assert [(one["tool_call_id"], one["name"], one["content"]) for one in told] == [
        (ids[0], "first", "1"), (ids[1], "second", "2"),
    ]  # fmt: skip


def test_results_come_in_the_order_of_their_calls_since_few_templates_write_ids() -> None:
    calls = [{**CALL, "id": id} for id in "ab"]
    results = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in "ba"]
    _, *told, asked = read([{**CALLED, "tool_calls": calls}, *results, ASKED])
    assert [one["content"] for one in told] == ["of a", "of b"] and asked == ASKED


def _with(**function: Any) -> dict[str, Any]:
    return {**CALLED, "tool_calls": [{**CALL, "function": {**CALL["function"], **function}}]}


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([ASKED, {"role": "assistant"}], "messages[1].content"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
        ([{"role": "assistant", "content": "", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{**ASKED, "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{**CALLED, "tool_calls": {"a": 1}}], "messages[0].tool_calls"),
        ([{**CALLED, "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        ([{**CALLED, "tool_calls": [{**CALL, "type": "custom"}]}], "messages[0].tool_calls[0]"),
        ([{**CALLED, "tool_calls": [{**CALL, "function": None}]}], "messages[0].tool_calls[0].function"),
        ([{**CALLED, "tool_calls": [CALL, {**CALL, "id": 7}]}], "messages[0].tool_calls[1].id"),
        ([{**CALLED, "tool_calls": [{**CALL, "custom": {}}]}], "messages[0].tool_calls[0].custom"),
        ([_with(strict=True)], "messages[0].tool_calls[0].function.strict"),
        ([_with(name="a b")], "messages[0].tool_calls[0].function.name"),
        ([_with(name=None)], "messages[0].tool_calls[0].function.name"),
        ([ASKED, TOLD], "messages[1].tool_call_id"),
        ([CALLED, TOLD, {"role": "tool", "content": "x"}], "messages[2].tool_call_id"),
        ([CALLED, {"role": "tool", "content": "x", "tool_call_id": 7}], "messages[1].tool_call_id"),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(messages: list[dict[str, Any]], place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(messages)
    assert caught.value.field == "messages"
    assert str(caught.value).startswith(f"{place} ")
