"""What could never be served: clients know an overflow of the context when they see it, and everybody is told what
it needs, the limit and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from serving import MODEL

CONTEXT = 128
LONG = [7] * 200
MESSAGES = [{"role": "user", "content": "word " * 200}]
KNOWN = f"This model's maximum context length is {CONTEXT} tokens. However, "
CODE = " (context_length_exceeded)"


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2, model_context=CONTEXT) as server:
        yield server


def chat(server: FakeServer, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": MESSAGES, "ignore_eos": True} | fields
    return server.http.post("/v1/chat/completions", json=body)


def count(server: FakeServer, messages: Any) -> int:
    return int(server.http.post("/tokenize", json={"messages": messages}).json()["count"])


def refused(response: httpx.Response, code: str, param: str) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param), error
    assert response.headers["content-type"] == "application/json" and error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_tokens": 5}, {"stream": True}], ids=str)
def test_messages_over_the_context_are_told_in_openais_words(server: FakeServer, fields: Any) -> None:
    tokens = count(server, MESSAGES)
    told = refused(chat(server, **fields), "context_length_exceeded", "messages")
    assert (
        told == f"{KNOWN}your messages resulted in {tokens} tokens. Please reduce the length of the messages{CODE}."
    )


@pytest.mark.parametrize("fields", [{"max_tokens": None}, {"max_tokens": 5}, {"stream": True}], ids=str)
def test_a_prompt_over_the_context_is_told_in_openais_words(server: FakeServer, fields: Any) -> None:
    told = refused(server.complete(LONG, **fields), "context_length_exceeded", "prompt")
    assert told == f"{KNOWN}your prompt resulted in 200 tokens. Please reduce the length of the prompt{CODE}."
    told = refused(server.complete([[1], LONG], **fields), "context_length_exceeded", "prompt")
    assert told == f"{KNOWN}prompt[1] resulted in 200 tokens. Please reduce the length of prompt[1]{CODE}."


def test_a_prompt_that_leaves_no_room_for_an_answer_is_over_the_context(server: FakeServer) -> None:
    told = refused(server.complete([7] * CONTEXT, max_tokens=None), "context_length_exceeded", "prompt")
    assert "resulted in 128 tokens, and an answer needs at least one more." in told
    assert server.complete([7] * (CONTEXT - 1), max_tokens=None).json()["usage"]["completion_tokens"] == 1


def test_the_field_that_asks_for_too_long_an_answer_is_named(server: FakeServer) -> None:
    told = refused(server.complete([7] * 5, max_tokens=CONTEXT), "context_length_exceeded", "max_tokens")
    asked = "you requested 133 tokens (5 in the prompt, 128 in the completion). "
    assert told == f"{KNOWN}{asked}Please reduce the length of the prompt or max_tokens{CODE}."
    short = [{"role": "user", "content": "hi"}]
    for field in ("max_tokens", "max_completion_tokens"):
        told = refused(chat(server, messages=short, **{field: CONTEXT}), "context_length_exceeded", field)
        assert told.endswith(f"Please reduce the length of the messages or {field}{CODE}.")
    plain = server.http.post("/v1/completions", json={"model": MODEL, "prompt": [7] * 120})
    told = refused(plain, "context_length_exceeded", "prompt")
    assert "(120 in the prompt, 16 in the completion, the default of max_tokens)" in told


def test_a_chat_without_max_tokens_may_write_what_fits(server: FakeServer) -> None:
    short = [{"role": "user", "content": "hi"}]
    for fields in ({}, {"max_tokens": None}, {"max_completion_tokens": None}):
        answer = chat(server, messages=short, **fields).json()
        assert answer["usage"]["total_tokens"] == CONTEXT and answer["choices"][0]["finish_reason"] == "length"


def test_what_only_counts_tokens_has_no_limit(server: FakeServer) -> None:
    counted = server.http.post("/tokenize", json={"messages": MESSAGES}).json()
    assert counted["count"] > CONTEXT == counted["max_model_len"]


def test_the_option_that_raises_a_limit_is_named(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, model_context=CONTEXT, max_context=64, blocks=3, seats=2) as server:
        told = refused(server.complete([7] * 60, max_tokens=10), "context_length_exceeded", "max_tokens")
        assert told.startswith("This model's maximum context length is 64 tokens. However, ")
        assert told.endswith(f"Please reduce the length of the prompt or max_tokens, or raise --max-context{CODE}.")
        told = refused(server.complete([7] * 40, max_tokens=20), "never_pool", "max_tokens")
        assert told == (
            "the tokens (40 in the prompt and 20 in the completion) need 4 blocks of state (KV cache), and the pool "
            "has 3. Please reduce max_tokens, or raise --memory."
        )
        told = refused(server.complete([7] * 50, max_tokens=None), "never_pool", "prompt")
        assert "(50 in the prompt) need 4 blocks of state (KV cache), and the pool has 3" in told
        told = refused(server.complete([7] * 40, max_tokens=8, n=2), "never_pool", "max_tokens")
        assert "(40 in the prompt and 8 in the completion of each of 2 answers)" in told
        assert refused(server.complete([7] * 47, max_tokens=None, n=2), "never_pool", "n")
        told = refused(server.complete([7], n=3), "never_seats", "n")
        assert told == ("n is 3: each answer takes a seat, and the server has 2. Please reduce n, or raise --seats.")
