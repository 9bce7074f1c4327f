"""Prompts beyond the context: 400 for good, never 429, and without tokenising what its length alone rules out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.front.limits import ServeLimits
from serving import MODEL

CONTEXT = 200
#: No token of the model spells more bytes than the indentation of 80 spaces.
LONGEST_TOKEN = 81
OVER = {
    "text": ("/v1/completions", {"prompt": "x" * (LONGEST_TOKEN * CONTEXT)}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * (LONGEST_TOKEN * CONTEXT)}]}),
    "one of a list": ("/v1/completions", {"prompt": ["short", "x" * (LONGEST_TOKEN * CONTEXT)]}),
    "token ids": ("/v1/completions", {"prompt": [5] * CONTEXT}),
    "a list of token ids": ("/v1/completions", {"prompt": [[5], [5] * CONTEXT]}),
    "tokenize": ("/tokenize", {"prompt": "x" * (LONGEST_TOKEN * CONTEXT)}),
    "tokenize chat": ("/tokenize", {"messages": [{"role": "user", "content": "x" * (LONGEST_TOKEN * CONTEXT)}]}),
}


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    limits = ServeLimits(max_waiting_positions=1000)
    with fake_serving(smollm2, limits=limits, max_context=CONTEXT) as server:
        yield server


@pytest.fixture
def encoded(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that were tokenised."""
    lengths: list[int] = []
    encode = server.model.tokenizer.encode

    def noting(text: str, **how: Any) -> list[int]:
        lengths.append(len(text))
        return encode(text, **how)

    monkeypatch.setattr(server.model.tokenizer, "encode", noting)
    return lengths


@pytest.mark.parametrize("kind", OVER)
def test_a_prompt_that_can_never_fit_is_400_untokenised_though_nobody_waits(
    server: FakeServer, kind: str, encoded: list[int]
) -> None:
    path, body = OVER[kind]
    counted = server.sample('headway_requests_refused_total{reason="context"}')
    answer = server.http.post(
        path, json={"model": MODEL} | body, headers={"x-request-id": f"over {kind}".replace(" ", "-")}
    )
    assert answer.status_code == 400 and "retry-after" not in answer.headers
    message = answer.json()["error"]["message"]
    assert str(CONTEXT) in message and "--max-context" in message
    assert encoded == [], "its length told"
    if path != "/tokenize":
        record = server.record(f"over {kind}".replace(" ", "-"))
        verdict = record["verdict"]
        assert (record["stage"], record["reason"]) == ("refused", "context")
        assert (verdict["kind"], verdict["limit"]) == ("never", CONTEXT) and verdict["need"] > CONTEXT
        assert server.sample('headway_requests_refused_total{reason="context"}') == counted + 1


def test_the_megabyte_chat_that_was_told_to_come_again_is_400(server: FakeServer) -> None:
    """More bytes than --max-waiting-positions: bytes are no positions."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello world " * 100_000}]}
    answer = server.http.post("/v1/chat/completions", json=chat)
    assert answer.status_code == 400 and "retry-after" not in answer.headers


def test_a_text_of_the_longest_tokens_that_fills_the_context_is_served(server: FakeServer) -> None:
    """The most bytes that 199 tokens can spell: the bound refuses nothing that fits."""
    tokenizer = server.model.tokenizer
    longest = "\n" + " " * (LONGEST_TOKEN - 1)
    assert len(tokenizer.encode(longest)) == 1
    text = longest * (CONTEXT - 1)
    tokens = len(tokenizer.encode(text))
    answer = server.complete(text, max_tokens=1)
    assert (answer.status_code == 200) == (tokens < CONTEXT)
    assert tokens >= tokenizer.fewest_tokens(text) == CONTEXT - 1
    assert server.complete([5] * (CONTEXT - 1), max_tokens=1).status_code == 200


def test_an_id_that_is_alive_is_still_a_conflict(server: FakeServer) -> None:
    server.executor.gate.clear()
    try:
        with server.http.stream(
            "POST", "/v1/completions", json={"model": MODEL, "prompt": [5], "max_tokens": 3, "stream": True},
            headers={"x-request-id": "alive"},
        ) as response:  # fmt: skip
            assert response.status_code == 200
            assert server.complete([5] * CONTEXT, id="alive").status_code == 409
            server.executor.gate.set()
            response.read()
    finally:
        server.executor.gate.set()


def test_token_counts_beyond_the_context_are_still_told(server: FakeServer) -> None:
    answer = server.http.post("/tokenize", json={"prompt": "7" * (3 * CONTEXT)})
    assert (answer.status_code, answer.json()["count"]) == (200, 3 * CONTEXT)
