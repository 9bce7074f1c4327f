"""Calls told from content, however the text comes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tool_templates as templates
from headway.text.grammar.jsontext import JsonObject
from headway.text.tools.calls import ArgumentsPiece, CallBegun, TextPiece, ToolCallParser, ToolEvent
from headway.text.tools.format import ToolFormat
from headway.text.tools.history import as_template_wants
from tool_templates import FORMATS, format_of, template_of

NAMES = ("get", "get_time")
FORMAT_OF = {name: format_of(name) for name in FORMATS}


def gathered(events: Iterable[ToolEvent]) -> tuple[str, list[tuple[str, str]]]:
    """The content, and each call's name and arguments."""
    content, calls = "", []
    for event in events:
        match event:
            case TextPiece(text=text):
                content += text
            case CallBegun(index=index, name=name):
                assert index == len(calls)
                calls.append((name, ""))
            case ArgumentsPiece(index=index, text=text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, calls


def parsed(format: ToolFormat, text: str, most: int | None = None) -> tuple[str, list[tuple[str, str]], bool]:
    parser = ToolCallParser(format, NAMES, most)
    content, calls = gathered([*parser.push(text), *parser.finish()])
    return content, calls, parser.whole


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_template_writes_is_read_back(name: str) -> None:
    """The template is the oracle: what it makes of calls is what its model was trained to write."""
    template, format = template_of(getattr(templates, name)), format_of(name)
    arguments = [{"city": 'a "<tool_call>" \\ ]}', "deep": [{"é": [1.5e3, None, True]}]}, {}]
    count = 1 if format.between is None else 2
    calls = [
        {"id": f"call_00000000{i}", "function": {"name": NAMES[i], "arguments": json.dumps(arguments[i])}}
        for i in range(count)
    ]
    user = {"role": "user", "content": "q"}
    history = as_template_wants([user, {"role": "assistant", "content": None, "tool_calls": calls}], format)
    text = template.render(history, add_generation_prompt=False, tools=None)
    text = text[text.index(format.before or '{"name"') :].removesuffix("<|im_end|>\n").removesuffix("</s>")
    text = text.removesuffix("<|eot_id|>").removesuffix("<|end|>")
    content, found, whole = parsed(format, text)
    assert content == "" and whole
    assert [(called, json.loads(given)) for called, given in found] == list(zip(NAMES, arguments, strict=True))[
        :count
    ]


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("QWEN", 'Sure.\n<tool_call>{"name":"get","arguments":{}}</tool_call>\n', "Sure.", [("get", "{}")]),
        ("QWEN", '<tool_call>\n{ "arguments" : {"a":1}, "name" : "get" }', "", [("get", '{"a":1}')]),
        ("QWEN", '<tool_call>{"type":"function","name":"get","arguments":{}}</tool_call>', "", [("get", "{}")]),
        ("QWEN", 'a <tool_call>{"name":"get","arguments":{}}</tool_call> b', "a b", [("get", "{}")]),
        # Two calls, the first not closed.
        (
            "QWEN",
            '<tool_call>{"name":"get","arguments":{}}\n<tool_call>{"name":"get_time","arguments":{}}</tool_call>',
            "",
            [("get", "{}"), ("get_time", "{}")],
        ),
        ("MISTRAL", '[TOOL_CALLS][{"name":"get","arguments":{},"id":"abc"}] ', "", [("get", "{}")]),
        ("LLAMA", ' {"name": "get", "parameters": {"a": [1]}} ', "", [("get", '{"a": [1]}')]),
        ("DEEPSEEK", "x<|calls|><|call|>function<|sep|>get_time\n```json\n{}\n```", "x", [("get_time", "{}")]),
    ],
)
def test_models_may_take_liberties_with_space_and_order(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parsed(format_of(name), text) == (content, calls, True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("QWEN", '<tool_call>{"name":"other","arguments":{}}</tool_call>'),
        ("QWEN", '<tool_call>{"name":"get"}</tool_call>'),
        ("QWEN", '<tool_call>{"name":"get","arguments":"{}"}</tool_call>'),
        ("QWEN", '<tool_call>{"name":"get","more":1,"arguments":{}}</tool_call>'),
        ("QWEN", '<tool_call>{"arguments":{"a":tru},"name":"get"}</tool_call>'),
        ("QWEN", '<tool_call>{"name":"get","arg'),
        ("QWEN", " a < b <tool_ <tool_call> \n"),
        ("LLAMA", '{"name": "Bob", "parameters": {}}'),
        ("LLAMA", 'So: {"name": "get", "parameters": {}}'),
        ("MISTRAL", '[{"name":"get","arguments":{}}]'),
        ("DEEPSEEK", "<|calls|><|call|>function<|sep|>get{}"),
        ("DEEPSEEK", "<|calls|><|call|>function<|sep|>get_ti\n```json\n{}\n```<|/call|><|/calls|>"),
    ],
)
def test_what_is_no_call_is_content_and_nothing_of_it_is_lost(name: str, text: str) -> None:
    assert parsed(format_of(name), text) == (text, [], True)


def test_a_call_that_breaks_keeps_what_is_json_and_the_rest_is_content() -> None:
    format = format_of("QWEN")
    broken = '<tool_call>{"name":"get","arguments":{"a": 1 or 2}}</tool_call>'
    assert parsed(format, broken) == ("or 2}}</tool_call>", [("get", '{"a": 1 ')], False)
    cut = '<tool_call>{"name":"get","arguments":{"a": "</tool'
    assert parsed(format, cut) == ("", [("get", '{"a": "</tool')], False)


def written(name: str, count: int) -> str:
    """Calls as the template writes them, from the first marker to the last."""
    template, format = template_of(getattr(templates, name)), format_of(name)
    calls = [
        {"id": f"call_00000000{i}", "function": {"name": called, "arguments": '{"a": "b"}'}}
        for i, called in enumerate(NAMES[:count])
    ]
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    text = template.render(as_template_wants(history, format), add_generation_prompt=False, tools=None)
    return text[text.index(format.before or '{"name"') : text.rindex(format.after or "}") + len(format.after or "}")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_forced_answer_that_is_cut_anywhere_shows_no_markup_as_content(name: str) -> None:
    format = format_of(name)
    text = written(name, 1 if format.between is None else 2)
    whole = parsed(format, text)[1]
    assert len(whole) == (1 if format.between is None else 2)
    for end in range(len(text) + 1):
        for cut in (False, True):
            parser = ToolCallParser(format, NAMES, forced=True)
            streamed = [event for character in text[:end] for event in parser.push(character)]
            content, calls = gathered([*streamed, *parser.finish(cut=cut)])
            assert content == "", text[:end]
            for (called, arguments), (full, all_of_it) in zip(calls, whole, strict=False):
                assert called == full and all_of_it.startswith(arguments)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "LLAMA"])
def test_an_answer_that_is_cut_within_a_call_shows_no_part_of_it_as_content(name: str) -> None:
    """The model was free to call or to talk: from the whole marker on it calls, if the answer was cut."""
    format = format_of(name)
    text = written(name, 2)
    marker = len(format.before.rstrip())
    for end in range(marker, len(text) + 1):
        parser = ToolCallParser(format, NAMES)
        assert gathered([*parser.push("So: " + text[:end]), *parser.finish(cut=True)])[0] == "So:", text[:end]
    for end in range(1, marker):  # not yet a marker, so it may be anything
        parser = ToolCallParser(format, NAMES)
        assert gathered([*parser.push(text[:end]), *parser.finish(cut=True)])[0] == text[:end]


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("QWEN", '\n<tool_call>{"name":"get","arguments":{}}</tool_call>'),
        ("MISTRAL", ',{"name":"get","arguments":{}}]'),
    ],
)
def test_calls_beyond_the_most_are_content(name: str, rest: str) -> None:
    format = format_of(name)
    first = format.before + '{"name":"get","arguments":{"a":1}}' + (format.after if format.each_enclosed else "")
    assert parsed(format, first + rest, most=1) == (rest, [("get", '{"a":1}')], True)


def test_a_call_comes_as_it_is_written_and_no_part_of_a_marker_is_ever_content() -> None:
    parser = ToolCallParser(format_of("QWEN"), NAMES, new_id=lambda: "call_x")
    pieces = [
        "Hi <",
        "b> ",
        "\n<tool",
        '_call>{"name": "get_',
        'time", "arguments": ',
        "{",
        '"a',
        '": 1}',
        "}</tool_",
    ]
    assert [parser.push(piece) for piece in pieces] == [
        [TextPiece("Hi")],
        [TextPiece(" <b>")],
        [],
        [],
        [],
        [CallBegun(0, "call_x", "get_time"), ArgumentsPiece(0, "{")],
        [ArgumentsPiece(0, '"a')],
        [ArgumentsPiece(0, '": 1}')],
        [],
    ]
    assert parser.finish() == [] and parser.whole


PIECES = (
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[",
        "]",
        ",",
        "{",
        "}",
        '"name"',
        '"arguments"',
        '"parameters"',
    ),
    *(":", '"get"', '"get_time"', '"id":"x",', "{}", '{"a":[1,-2.5e3,null]}', " ", "\n", "<", "text", '"', "\\"),
    *("<|calls|>", "<|call|>", "function<|sep|>", "get", "\n```json\n", "```", "<|/call|>", "<|/calls|>"),
    *('{"name":"get","arguments":', '{"name": "get", "parameters": '),
    *('<tool_call>\n{"name": "get_time", "arguments": ', '[TOOL_CALLS] [{"name": "get", "arguments": '),
)


@settings(max_examples=300)
@given(
    name=st.sampled_from(FORMATS),
    text=st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    most=st.sampled_from((None, 1)),
    data=st.data(),
)
def test_any_split_of_a_text_gives_the_same_content_and_calls(name: str, text: str, most: int | None, data) -> None:  # type: ignore[no-untyped-def]
    format = FORMAT_OF[name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parser = ToolCallParser(format, NAMES, most)
    events = [
        event
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
        for event in parser.push(text[start:end])
    ]
    content, calls = gathered([*events, *parser.finish()])
    assert (content, calls, parser.whole) == parsed(format, text, most)
    if not calls:
        assert content == text
    for event, follower in pairwise(events):
        assert not (isinstance(event, CallBegun) and not isinstance(follower, ArgumentsPiece))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def _end_of_object(text: str) -> int | None:
    """The number of characters up to the end of the object, or None if it never ends or ceases to be one."""
    follow = JsonObject()
    for i, character in enumerate(text, 1):
        follows = follow.push(character)
        if follows != "more":
            return i if follows == "done" else None
    return None


@given(
    value=st.dictionaries(st.text(max_size=3), JSON, max_size=3), ascii=st.booleans(), indent=st.none() | st.just(1)
)
def test_an_object_ends_where_the_json_library_says(value: dict[str, Any], ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert _end_of_object(text + "}x") == len(text)


@example(text=['"a":', '"\\u0x"', "}"])
@given(
    text=st.lists(
        st.sampled_from([*'{}[]",:\\ a0-1.eE+tn', "true", '""', "{}", '"a":', '"\\u00e9"', '"\\u0x"']), max_size=9
    )
)
def test_an_object_ends_only_where_the_json_library_agrees(text: list[str]) -> None:
    whole = "{" + "".join(text)
    try:
        expected = json.JSONDecoder().raw_decode(whole)[1]
    except ValueError:
        expected = None
    assert _end_of_object(whole) == expected
