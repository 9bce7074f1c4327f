"""What of a chat request reaches the chat template, over HTTP: roles, further fields, messages that are continued.
`/tokenize` renders alike, so it shows the prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer as Rules
from tokenizers import models
from transformers import PreTrainedTokenizerFast

import tool_templates as templates
from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from serving import MODEL

SYSTEM, USER = {"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Who?"}
BEGUN = {"role": "assistant", "content": "It is "}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
#: It names a role that it does not render.
EFFORT = templates.THINKING + (
    "{%- if reasoning_effort %}[{{ reasoning_effort }}]{%- endif %}"
    "{%- if messages[0].role == 'ipython' %}{%- endif %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def qwen(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(dataclasses.replace(smollm2, chat_template=templates.QWEN25)) as server:
        yield server


@pytest.fixture(scope="module")
def thinking(smollm2: ModelFiles) -> Iterator[FakeServer]:
    files = dataclasses.replace(smollm2, chat_template=EFFORT, special=SPECIAL)
    with fake_serving(files) as server:
        yield server


def both(server: FakeServer, messages: list[Any], **fields: Any) -> list[httpx.Response]:
    body = {"model": MODEL, "messages": messages, **fields}
    return [
        server.http.post("/v1/chat/completions", json=body | {"max_tokens": 1}),
        server.http.post("/tokenize", json=body),
    ]


def prompt(server: FakeServer, messages: list[Any], **fields: Any) -> tuple[str, list[str]]:
    """The prompt's text, and the fields that are named as ignored: the same of both operations."""
    chat, tokens = both(server, messages, **fields)
    assert (chat.status_code, tokens.status_code) == (200, 200), (chat.text, tokens.text)
    assert chat.json()["usage"]["prompt_tokens"] == tokens.json()["count"]
    ignored = chat.headers.get("headway-ignored", "")
    assert tokens.headers.get("headway-ignored", "") == ignored
    text = server.http.post("/detokenize", json={"tokens": tokens.json()["tokens"]}).json()["prompt"]
    return text, ignored.split(", ") if ignored else []


def refused(server: FakeServer, messages: list[Any], said: str, param: str = "messages", **fields: Any) -> None:
    for answer in both(server, messages, **fields):
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert said in error["message"] and error["param"] == param, error


def test_a_developer_message_is_the_system_message_of_a_template_that_knows_no_developer(qwen: FakeServer) -> None:
    asked, _ = prompt(qwen, [{"role": "developer", "content": "Answer in French."}, USER])
    assert asked == prompt(qwen, [SYSTEM, USER])[0] and "<|im_start|>system\nAnswer in French.<|im_end|>" in asked


@pytest.mark.parametrize("role", ["User", "SYSTEM", "ipython", "model", "function"])
def test_a_role_that_nobody_knows_is_refused_by_its_place(qwen: FakeServer, role: str) -> None:
    refused(qwen, [USER, {"role": role, "content": "SECRET"}], f"messages[1].role is '{role}'")


def test_a_message_that_the_template_passes_over_is_refused_with_the_models_name(thinking: FakeServer) -> None:
    said = f"the chat template of {MODEL} does not render messages[1] (role 'ipython')"
    refused(thinking, [USER, {"role": "ipython", "content": "3"}], said)


@pytest.mark.parametrize("content", [{"type": "text", "text": "hi"}, {"t": 22, "n": None}, 7, True, [], [7]], ids=str)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_content_of_a_wrong_type_is_one_400_for_every_role(qwen: FakeServer, role: str, content: Any) -> None:
    called = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    wrong = {"role": role, "content": content} | ({"tool_call_id": "c"} if role == "tool" else {})
    refused(qwen, [USER, called, wrong], "messages[2].content", tools=TOOLS)


def test_an_unknown_field_is_refused_and_a_replayed_answer_is_not(qwen: FakeServer) -> None:
    refused(qwen, [{**USER, "weight": 1}], "messages[0].weight is not a known field")
    answer = both(qwen, [USER])[0].json()["choices"][0]["message"]
    replayed = {**answer, "refusal": None, "annotations": [], "audio": None, "function_call": None}
    assert prompt(qwen, [USER, replayed, USER])[1] == []
    assert prompt(qwen, [{**USER, "name": "Ada"}])[1] == ["messages[].name"]


# -- variables ------------------------------------------------------------------------------------------------


def test_variables_reach_a_template_that_names_them_and_others_are_named_as_ignored(thinking: FakeServer) -> None:
    plain, _ = prompt(thinking, [USER])
    fields = {"chat_template_kwargs": {"enable_thinking": False, "colour": [1, {"a": None}]}}
    text, ignored = prompt(thinking, [USER], **fields)
    assert text == plain + "<think></think>" and ignored == ["chat_template_kwargs.colour"]
    assert prompt(thinking, [USER], chat_template_kwargs={"enable_thinking": True}) == (plain, [])


def test_reasoning_effort_reaches_a_template_that_names_it(thinking: FakeServer, qwen: FakeServer) -> None:
    assert prompt(thinking, [USER], reasoning_effort="high")[0].endswith("[high]")
    assert prompt(qwen, [USER], reasoning_effort="high") == (prompt(qwen, [USER])[0], ["reasoning_effort"])
    refused(thinking, [USER], "must be one of none, minimal, low", "reasoning_effort", reasoning_effort="most")
    fields = {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}
    refused(thinking, [USER], "differ; send one of them", "reasoning_effort", **fields)


@pytest.mark.parametrize(
    "name", ["messages", "tools", "documents", "add_generation_prompt", "raise_exception", "bos_token"]
)
def test_a_variable_that_would_shadow_what_the_server_gives_is_refused(thinking: FakeServer, name: str) -> None:
    said = f"chat_template_kwargs.{name}"
    refused(thinking, [USER], said, "chat_template_kwargs", chat_template_kwargs={name: 1})


@pytest.mark.parametrize("value", [7, "x", [1], {"a b": 1}, {"": 1}], ids=str)
def test_variables_are_an_object_with_names_as_keys(thinking: FakeServer, value: Any) -> None:
    refused(thinking, [USER], "", "chat_template_kwargs", chat_template_kwargs=value)


# -- a message that the answer continues ------------------------------------------------------------------------

OPEN = {"add_generation_prompt": False, "continue_final_message": True}


def transformers_prompt(template: str, messages: list[dict[str, Any]]) -> str:
    rules = Rules(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, **SPECIAL)
    text: str = tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, continue_final_message=True
    )
    return text


@pytest.mark.parametrize("content", ["It is ", "  It is", "i", "im_end", "<|im_end|>", "a\n", ""])
def test_a_continued_message_is_left_open_as_in_transformers(
    qwen: FakeServer, thinking: FakeServer, content: str
) -> None:
    messages = [SYSTEM, USER, {"role": "assistant", "content": content}]
    for server, template in ((qwen, templates.QWEN25), (thinking, EFFORT)):
        expected = transformers_prompt(template, messages)
        assert prompt(server, messages, **OPEN)[0] == expected and expected.endswith(content)


def test_where_contents_are_trimmed_so_is_the_beginning(smollm2: ModelFiles) -> None:
    messages = [USER, BEGUN]
    with fake_serving(dataclasses.replace(smollm2, chat_template=templates.GEMMA, special=SPECIAL)) as server:
        assert prompt(server, messages, **OPEN)[0] == transformers_prompt(templates.GEMMA, messages)


def test_prefix_is_another_word_for_it(qwen: FakeServer) -> None:
    continued, _ = prompt(qwen, [USER, BEGUN], **OPEN)
    assert prompt(qwen, [USER, {**BEGUN, "prefix": True}])[0] == continued
    assert prompt(qwen, [USER, {**BEGUN, "prefix": False}])[0] == prompt(qwen, [USER, BEGUN])[0] != continued


def test_a_prompt_may_do_without_the_beginning_of_an_answer(qwen: FakeServer) -> None:
    whole, _ = prompt(qwen, [USER])
    assert prompt(qwen, [USER], add_generation_prompt=True)[0] == whole
    bare, _ = prompt(qwen, [USER], add_generation_prompt=False)
    assert bare + "<|im_start|>assistant\n" == whole


def test_what_cannot_be_continued_is_refused(qwen: FakeServer) -> None:
    said = "continue_final_message requires add_generation_prompt: false"
    refused(qwen, [USER, BEGUN], said, "continue_final_message", continue_final_message=True)
    called = {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}
    refused(qwen, [USER, called], "messages[1] has tool_calls", **OPEN)
    refused(qwen, [{**BEGUN, "prefix": True}, USER], "messages[0].prefix is true; only the last message")
    refused(qwen, [], "messages is empty")
    refused(qwen, [], "messages is empty", **OPEN)


# -- calls that were cut off --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"text": "Ros', "", None, "[1]", [1], {"a": 1}, 5, '{"a": 1}'], ids=str)
def test_any_call_can_be_sent_back(qwen: FakeServer, arguments: Any) -> None:
    call = {"id": "call_1", "index": 0, "function": {"name": "f", "arguments": arguments}}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "call_1", "content": "error: cut off"}, USER]  # fmt: skip
    text, ignored = prompt(qwen, history, tools=TOOLS)
    assert '<tool_call>\n{"name": "f", "arguments": ' in text and "error: cut off" in text and not ignored
    assert "None" not in text and ("Ros" in text or arguments != '{"text": "Ros')
