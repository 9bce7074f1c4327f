"""Messages as clients send them: what is read, what is named as ignored, and what is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.errors import InvalidRequest
from headway.text.chat.messages import read_messages

USER = {"role": "user", "content": "hi"}
TEXT = {"type": "text", "text": "a"}
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
#: What a template may name.
WORDS = ("ipython", "reasoning_content")


def test_an_answer_as_openais_client_replays_it_is_read_without_a_word() -> None:
    replayed = {
        "role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "tool_calls": None, "name": None, "whatever": None,
    }  # fmt: skip
    conversation = read_messages([USER, replayed], WORDS)
    assert conversation.messages == [USER, {"role": "assistant", "content": "x"}] and not conversation.ignored


def test_what_says_nothing_to_a_model_is_named_as_ignored() -> None:
    messages = [
        {**USER, "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}], "cache_control": {}},
        {"role": "assistant", "content": "x", "annotations": [{"type": "url_citation"}]},
    ]
    read = read_messages(messages, WORDS)
    assert read.ignored == ("messages[].content[].cache_control", "messages[].annotations")
    assert read.messages == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x"}]


def test_text_parts_are_joined_by_newlines_and_a_refusal_is_what_was_said() -> None:
    parts = [TEXT, {"type": "text", "text": ""}, {"type": "text", "text": "b", "cache_control": None}]
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    replayed = {"role": "assistant", "content": None, "refusal": "No."}
    read = read_messages([{"role": "user", "content": parts}, said, replayed], WORDS).messages
    assert [message["content"] for message in read] == ["a\n\nb", "No.", "No."]


def test_a_developer_message_is_a_system_message_unless_the_template_names_the_role() -> None:
    message = {"role": "developer", "content": "x"}
    assert read_messages([message], ()).messages == [{"role": "system", "content": "x"}]
    assert read_messages([message], ("developer",)).messages == [message]


def test_a_role_that_the_template_names_is_read() -> None:
    message = {"role": "ipython", "content": "3"}
    assert read_messages([message], WORDS).messages == [message]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_reaches_the_template_under_the_name_that_it_has_for_it(field: str) -> None:
    (read,) = read_messages([{"role": "assistant", "content": "x", field: "hm"}], WORDS).messages
    assert read == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


def test_the_last_message_may_be_a_beginning() -> None:
    begun = {"role": "assistant", "content": "The", "prefix": True}
    assert read_messages([USER, begun], ()).open
    assert not read_messages([{**USER, "prefix": False}], ()).open


CONTENTS: list[tuple[Any, str]] = [
    ({"type": "text", "text": "hi"}, "messages[1].content must be a string or a list of parts; it is an object"),
    ({"t": 22, "n": None}, "messages[1].content must be a string or a list of parts; it is an object"),
    (7, "messages[1].content must be a string or a list of parts; it is a number"),
    (7.5, "messages[1].content must be a string or a list of parts; it is a number"),
    (True, "messages[1].content must be a string or a list of parts; it is a boolean"),
    (None, "messages[1].content is missing"),
    ([], "messages[1].content is an empty list"),
    (["a"], "messages[1].content[0] must be an object"),
    ([None], "messages[1].content[0] must be an object"),
    ([TEXT, {}], "messages[1].content[1] has no type"),
    ([TEXT, {"type": 7}], "messages[1].content[1] has no type"),
    ([TEXT, {"type": "image_url", "image_url": {}}], "messages[1].content[1] is of type 'image_url'"),
    ([{"type": "input_text", "text": "a"}], "messages[1].content[0] is of type 'input_text'"),
    ([{"type": "input_audio"}], "messages[1].content[0] is of type 'input_audio'"),
    ([{"type": "text"}], "messages[1].content[0].text is missing"),
    ([{"type": "text", "text": 7}], "messages[1].content[0].text must be a string; it is a number"),
    ([{"type": "text", "text": ["a"]}], "messages[1].content[0].text must be a string; it is a list"),
    ([{**TEXT, "extra": 1}], "messages[1].content[0].extra is not a known field"),
]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "ipython"])
@pytest.mark.parametrize(("content", "said"), CONTENTS, ids=str)
def test_a_content_of_a_wrong_type_is_refused_by_its_place_for_every_role(role: str, content: Any, said: str) -> None:
    refused([USER, {"role": role, "content": content, **({"tool_call_id": "c"} if role == "tool" else {})}], said)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x"}, "messages[1].role is missing"),
        ({"role": None, "content": "x"}, "messages[1].role is missing"),
        ({"role": 7, "content": "x"}, "messages[1].role must be a string"),
        ({"role": "User", "content": "x"}, "messages[1].role is 'User'; it must be one of system, developer"),
        ({"role": "", "content": "x"}, "messages[1].role is ''"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[1].role is 'function'"),
        ({"role": "user"}, "messages[1].content is missing"),
        ({"role": "assistant"}, "messages[1].content is missing"),
        ({"role": "user", "content": "x", "contents": "y"}, "messages[1].contents is not a known field"),
        ({"role": "user", "content": "x", "name": 7}, "messages[1].name must be a string"),
        ({"role": "user", "content": "x", "audio": {"id": "a"}}, "messages[1].audio is not supported"),
        ({"role": "user", "content": "x", "tool_calls": CALLS}, "messages[1].tool_calls must be a list, in"),
        ({"role": "assistant", "content": "x", "tool_calls": {"a": 1}}, "messages[1].tool_calls must be a list"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages[1].tool_call_id belongs to"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "messages[1].tool_call_id must be a string"),
        ({"role": "user", "content": "x", "refusal": "No."}, "messages[1].refusal is only for an assistant message"),
        (
            {"role": "assistant", "content": "x", "refusal": "No."},
            "messages[1].refusal is only for an assistant message",
        ),
        ({"role": "assistant", "content": None, "refusal": 7}, "messages[1].refusal must be a string"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}, "messages[1].content[0] is of type"),
        ({"role": "user", "content": "x", "reasoning": "y"}, "messages[1].reasoning must be a single text"),
        ({"role": "assistant", "content": "x", "reasoning": 7}, "messages[1].reasoning must be a string"),
        ({"role": "user", "content": "x", "prefix": True}, "messages[1].prefix is true; only a message with role"),
        ({"role": "assistant", "content": "x", "prefix": "yes"}, "messages[1].prefix must be a boolean"),
    ],
    ids=str,
)
def test_a_wrong_message_is_refused_by_its_place(message: dict[str, Any], said: str) -> None:
    refused([USER, message], said)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_content", "hm"), ("reasoning", "hm"), ("provider_specific_fields", {"refusal": None}),
        ("thinking_blocks", [{"type": "thinking"}]), ("reasoning_details", [{"text": "hm"}]), ("id", "msg_1"),
    ],
)  # fmt: skip
def test_what_clients_send_back_beside_an_answer_is_named_and_does_not_reach_the_model(
    field: str, value: Any
) -> None:
    read = read_messages([{"role": "assistant", "content": "x", field: value}], ())
    assert read.messages == [{"role": "assistant", "content": "x"}]
    assert read.ignored == (f"messages[].{field}",)


def test_only_the_last_message_can_be_continued() -> None:
    refused(
        [{"role": "assistant", "content": "x", "prefix": True}, USER], "messages[0].prefix is true; only the last"
    )


def refused(messages: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_messages(messages, WORDS)
    assert caught.value.field == "messages" and str(caught.value).startswith(said), str(caught.value)
    assert "TypeError" not in str(caught.value) and "NoneType" not in str(caught.value)
