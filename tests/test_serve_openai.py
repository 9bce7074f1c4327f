"""What OpenAI's clients get from a real server."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from serving import MODEL, Server, completion, serving, until

GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2-135m-greedy-fp32.json").read_text(encoding="utf-8"))
MESSAGES: Any = [{"role": "user", "content": GOLDEN[0]["prompt"]}]
GOLDEN_TEXT = GOLDEN[0]["text"].removesuffix("<|im_end|>")
#: Every metric of the public contract, with the closed list of its label's values.
CONTRACT = {
    "headway_blocks": ("live", "reusable", "free"),
    "headway_pool_reserved_bytes": ("",),
    "headway_requests": ("received", "waiting", "running", "finished", "cancelled", "failed", "refused"),
    "headway_waiting_requests": ("space", "turn", "input"),
    "headway_seats": ("used", "free"),
    "headway_prefix_evictions_total": ("",),
    "headway_preemptions_total": ("",),
    "headway_recompute_share": ("",),
    "headway_recovery_loops_total": ("",),
    "headway_admission_cut": ("",),
    "headway_deadlines_total": ("met", "missed"),  # beyond the contract
    "headway_offloaded_blocks_total": ("host", "disk"),
    "headway_reloaded_blocks_total": ("host", "disk"),
    "headway_regained_blocks_total": ("",),
    "headway_positions_total": ("reused", "prefilled", "decoded", "recomputed", "rejected", "evaluated"),
    "headway_draft_positions_total": ("accepted", "rejected"),
    "headway_emitted_tokens_total": ("",),
    "headway_requests_finished_total": ("stop", "length", "cancelled", "time", "failed"),
    "headway_requests_refused_total": ("pool", "context", "seats", "deadline", "queue", "loading", "invalid"),
    "headway_slow_readers_total": ("",),
    "headway_event_log_lost_events_total": ("",),
    "headway_time_to_first_token_seconds_count": ("",),
    "headway_inter_token_seconds_count": ("",),
    "headway_queued_seconds_count": ("space", "turn", "input"),
    "headway_step_seconds_count": ("",),
    "headway_step_positions_count": ("",),
}
BLOCKS = 256


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", f"{BLOCKS}blocks") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


# -- answers ---------------------------------------------------------------------------------------------------


def test_the_model_is_listed_with_its_context(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve(MODEL).id == MODEL
    extra = model.model_extra
    assert extra is not None and extra["max_model_len"] == 8192
    assert (extra["headway"]["blocks"], extra["headway"]["block_tokens"]) == (BLOCKS, 16)


def test_a_greedy_chat_is_the_golden_text_streamed_or_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert whole.choices[0].message.content == GOLDEN_TEXT
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(GOLDEN[0]["prompt_ids"])
    assert whole.usage.completion_tokens == len(GOLDEN[0]["greedy_ids"])
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    chunks = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=9, stream=True)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert GOLDEN_TEXT.startswith(text) and len(text.split()) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_prompt_may_be_text_or_token_ids_and_a_repeated_one_is_reused_up_to_its_last_position(
    client: openai.OpenAI,
) -> None:
    ids = GOLDEN[1]["prompt_ids"]
    by_ids = client.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=8)
    text = "".join(event.choices[0].text for event in client.completions.create(
        model=MODEL, prompt=ids, temperature=0, max_tokens=8, stream=True
    ))  # fmt: skip
    assert by_ids.choices[0].text == text and GOLDEN[1]["text"].startswith(text) and text
    again = client.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=1)
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == len(ids) - 1
    as_text = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=2)
    assert as_text.usage is not None and as_text.usage.prompt_tokens == 5
    assert as_text.choices[0].text == " Paris."


def test_the_async_client_gets_usage_in_the_last_chunk_when_it_asks(server: Server) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, temperature=0, max_tokens=3, stream=True,
                stream_options={"include_usage": True},
            )  # fmt: skip
            return [chunk async for chunk in stream]

    *chunks, last = asyncio.run(ask())
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.completion_tokens == 3
    assert "decode;dur=" in last.headway


def test_two_seeded_answers_differ_from_each_other_and_repeat(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=2, seed=7, temperature=1.5, max_tokens=8, **more
        )
        assert answer.usage is not None and answer.usage.completion_tokens == 16
        return [choice.message.content for choice in sorted(answer.choices, key=lambda choice: choice.index)]

    first = ask()
    assert first[0] != first[1] and ask(extra_body={"cache_salt": "another"}) == first


def test_an_open_end_is_what_fits_in_the_pool(server: Server) -> None:
    stream = server.stream([504] * 20, max_tokens=None, ignore_eos=True, id="open").begun()
    assert server.record("open")["max_tokens"] == BLOCKS * 16 - 20
    server.http.delete("/v1/requests/open")
    assert stream.end()[-1]["error"]["code"] == "cancelled"


# -- headers and ids -------------------------------------------------------------------------------------------


def test_the_callers_id_names_the_answer_and_finds_the_record_in_both_forms(server: Server) -> None:
    response = server.complete("Hello", id="trace:7.a", max_tokens=2)
    assert response.headers["x-request-id"] == "trace:7.a" and response.json()["id"] == "cmpl-trace:7.a"
    assert server.record("trace:7.a") == server.record("cmpl-trace:7.a")
    odd = server.complete("Hello", id="cmpl-odd", max_tokens=1)
    assert server.record(odd.json()["id"])["id"] == server.record("cmpl-odd")["id"] == "cmpl-odd"
    ours = server.complete("Hello", max_tokens=1)
    assert ours.json()["id"] == f"cmpl-{ours.headers['x-request-id']}"


@pytest.mark.parametrize("id", ["a b", "", "a" * 129, "ü"])
def test_an_id_of_other_characters_is_refused(server: Server, id: str) -> None:
    response = server.http.post(
        "/v1/completions", json=completion("Hello", max_tokens=1), headers={"x-request-id": id.encode("latin-1")}
    )
    assert response.status_code == 400 and response.json()["error"]["param"] == "x-request-id"
    assert re.fullmatch(r"r-\d+", response.headers["x-request-id"])
    assert server.http.get("/health").headers["x-request-id"].startswith("look-")


def test_timing_stands_in_the_header_or_in_the_last_data_chunk(server: Server) -> None:
    pattern = (
        r"received;dur=\d+\.\d, queued;dur=\d+\.\d, prefill;dur=\d+\.\d, decode;dur=\d+\.\d(, delivery;dur=\d+\.\d)?"
    )
    assert re.fullmatch(pattern, server.complete("Hello", max_tokens=3).headers["headway-timing"])
    *chunks, last, done = server.stream("Hello", max_tokens=3).end()
    assert done == "[DONE]" and re.fullmatch(pattern, last["headway"])
    assert chunks and not any("headway" in chunk for chunk in chunks)


def test_fields_without_effect_are_named(server: Server) -> None:
    ignored = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s"}
    named = server.complete("Hello", max_tokens=1, **ignored).headers["headway-ignored"]
    assert sorted(named.split(", ")) == sorted(ignored)
    assert "headway-ignored" not in server.complete("Hello", max_tokens=1, user=None).headers


def test_small_answers_go_out_at_once(server: Server) -> None:
    """Nagle's algorithm against a client's delayed acknowledgement would make each take 40 ms."""
    times = []
    for _ in range(21):
        began = time.perf_counter()
        server.get("/v1/models")
        times.append(time.perf_counter() - began)
    assert statistics.median(times) < 0.03


# -- metrics ---------------------------------------------------------------------------------------------------


def test_a_fresh_server_exports_every_metric_of_the_contract_at_zero(server: Server) -> None:
    found = server.at_start
    expected = {(name, value) for name, values in CONTRACT.items() for value in values}
    sums = {(name.removesuffix("_count") + "_sum", value) for name, value in expected if name.endswith("_count")}
    assert set(found) == expected | sums
    has_value = {("headway_blocks", "free"), ("headway_seats", "free"), ("headway_pool_reserved_bytes", "")}
    assert {key for key, value in found.items() if value} == has_value
    assert found["headway_blocks", "free"] == BLOCKS and found["headway_seats", "free"] == 64


def test_nothing_is_live_when_all_is_answered(server: Server) -> None:
    until(lambda: server.live() == 0)
    pool = server.get("/v1/pool")
    assert pool["blocks"]["reusable"] + pool["blocks"]["free"] == pool["blocks"]["total"] == BLOCKS
    assert pool["reserved_bytes"] == server.metrics()["headway_pool_reserved_bytes", ""] > 0
    levels = {state: pool["blocks"][state] for state in ("live", "reusable", "free")}
    assert pool["models"] == [
        {"model": MODEL, "pattern": "text", "unit": "blocks", "reserved_bytes": pool["reserved_bytes"],
         "block_tokens": pool["block_tokens"], "total": BLOCKS, **levels, "seats": 0}
    ]  # fmt: skip
