"""What a server lets wait, how large and how late a body may be, and how long a request may live."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.front import state
from headway.front.limits import BoundedBody, ServeLimits
from headway.front.quota import Claim, Shortfall, WaitingQuota
from headway.front.refusals import Refusal
from headway.replica.messages import TurnedAway
from serving import MODEL, together, until

POSITIONS, BODY_BYTES, WAITING = 1000, 20_000, 5


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    limits = ServeLimits(
        max_waiting=WAITING, max_waiting_positions=POSITIONS, max_body_bytes=BODY_BYTES, body_seconds=0.5
    )
    with fake_serving(smollm2, limits=limits, seats=1) as server:
        yield server


@pytest.fixture
def blocked(server: FakeServer) -> Iterator[FakeServer]:
    """Nothing is admitted for as long as a test lasts: the one seat is taken, and no step ends."""
    until(lambda: server.front.quota.positions == server.front.quota.coming == 0)
    server.executor.gate.clear()
    holder = threading.Thread(target=server.complete, args=([5],), kwargs={"id": "holder", "max_tokens": 2})
    holder.start()
    until(lambda: server.executor.waits)
    yield server
    server.executor.gate.set()
    holder.join(10)
    until(lambda: not server.front.story.live)
    until(lambda: server.front.quota.positions == server.front.quota.coming == 0)


def waiting(server: FakeServer, length: int, id: str) -> threading.Thread:
    """A request of `length` positions that waits (as a step runs, the engine has not even queued it)."""
    thread = threading.Thread(target=server.complete, args=([7] * length,), kwargs={"id": id, "max_tokens": 1})
    thread.start()
    until(lambda: id in server.front.story.live)
    return thread


# -- positions that wait --------------------------------------------------------------------------------------


def test_a_prompt_beyond_the_positions_that_may_wait_is_429_with_the_numbers(blocked: FakeServer) -> None:
    waiting(blocked, 600, "first")
    refused = blocked.complete([7] * 401)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert error["message"] == (
        "the prompt may have up to 401 positions, and 400 of the 1000 that may wait are left; "
        "raise --max-waiting-positions"
    )
    waiting(blocked, 400, "fits")


def test_a_prompt_that_could_never_wait_is_400_and_not_told_to_come_again(server: FakeServer) -> None:
    for prompt in ([7] * 1001, "7" * 1001):
        refused = server.complete(prompt, max_tokens=1)
        assert refused.status_code == 400 and "retry-after" not in refused.headers
        assert refused.json()["error"]["message"] == (
            "prompt has 1001 positions, and at most 1000 may wait; raise --max-waiting-positions"
        )
    refused = server.complete([[7] * 600, [7] * 401], max_tokens=1)  # type: ignore[list-item]
    assert refused.status_code == 400 and "1001 positions in 2 prompts" in refused.json()["error"]["message"]
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "7" * 1001}]}
    error = server.http.post("/v1/chat/completions", json=chat).json()["error"]
    assert error["param"] == "messages" and error["message"].startswith("messages has 10")


def test_a_text_whose_bytes_are_more_than_may_wait_is_judged_by_its_tokens_once_nobody_waits(
    server: FakeServer,
) -> None:
    text = "the " * 900
    assert len(server.model.tokenizer.encode(text)) < POSITIONS < len(text)
    assert server.complete(text, max_tokens=1).status_code == 200
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    assert server.http.post("/v1/chat/completions", json=chat).status_code == 200


def test_openai_s_client_knows_a_refusal_for_now_by_its_class(blocked: FakeServer) -> None:
    waiting(blocked, 600, "before")
    with (
        openai.OpenAI(base_url=f"{blocked.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.completions.create(model=MODEL, prompt=[7] * 401, max_tokens=1)
    assert int(caught.value.response.headers["retry-after"]) >= 1 and caught.value.request_id


def test_a_text_that_may_fit_later_is_429_while_others_wait(blocked: FakeServer) -> None:
    waiting(blocked, 1, "one")
    refused = blocked.complete("the " * 900)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert "may have up to 1000 positions, and 999 of the 1000" in refused.json()["error"]["message"]


def test_two_prompts_that_fit_one_by_one_do_not_both_slip_through_while_they_are_tokenised(
    blocked: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their true counts are far below the limit: it is their bounds that must not fit together."""
    front, encode = blocked.front, blocked.model.tokenizer.encode
    open_gate = threading.Event()

    def slow(text: str, **how: Any) -> list[int]:
        open_gate.wait(10)
        return encode(text, **how)

    monkeypatch.setattr(blocked.model.tokenizer, "encode", slow)
    text = "the " * 150
    first = threading.Thread(target=blocked.complete, args=(text,), kwargs={"id": "text-1", "max_tokens": 1})
    first.start()
    until(lambda: front.quota.positions == 600)
    assert blocked.complete(text).status_code == 429
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    assert blocked.http.post("/v1/chat/completions", json=chat).status_code == 429
    open_gate.set()
    until(lambda: "text-1" in front.story.live)
    until(lambda: front.quota.positions == len(encode(text)) < 200)


def test_no_more_requests_wait_than_may_however_close_together_they_come(blocked: FakeServer) -> None:
    def ask() -> int:
        with httpx.Client(trust_env=False, timeout=30) as http:
            body = {"model": MODEL, "prompt": "hello there", "max_tokens": 1}
            return http.post(f"{blocked.url}/v1/completions", json=body).status_code

    def open_later() -> int:
        until(lambda: blocked.front.waiting == WAITING)
        time.sleep(0.3)  # the others are refused meanwhile
        assert blocked.front.waiting == WAITING
        blocked.executor.gate.set()
        return 0

    statuses = together([ask] * 12 + [open_later])[:-1]
    assert sorted(statuses) == [200] * WAITING + [429] * (12 - WAITING)


def test_the_replica_is_told_how_many_requests_found_no_place(
    blocked: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that finds no place counts as many; a request that finds none before its body is read counts once."""
    told: list[TurnedAway] = []
    link = blocked.front.link
    say = link.say

    def note(message: Any) -> None:
        told.extend([message] if isinstance(message, TurnedAway) else [])
        say(message)

    monkeypatch.setattr(link, "say", note)
    monkeypatch.setattr(state, "_TELL_AWAY_S", 0.0)
    blocked.front._untold.clear()
    for i in range(WAITING - 1):
        waiting(blocked, 10, f"w{i}")
    assert blocked.complete([[7], [8]], max_tokens=1).status_code == 429  # type: ignore[list-item]
    waiting(blocked, 10, "last")
    assert [blocked.complete([7], max_tokens=1).status_code for _ in range(3)] == [429] * 3
    blocked.executor.gate.set()
    until(lambda: sum(message.requests for message in told) == 2 + 3)
    assert {message.model for message in told} == {MODEL}


def test_room_comes_back_when_a_prompt_is_admitted_cancelled_refused_or_means_nothing(server: FakeServer) -> None:
    room = server.front.quota
    stream = {"model": MODEL, "prompt": [5] * 100, "max_tokens": 100, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=stream) as response:
        for line in response.iter_lines():
            if line:
                assert room.positions == 0, "it has its blocks: it no longer waits"
    assert server.complete([5] * 10, max_tokens=1 << 20).status_code == 400
    assert server.complete([5] * 10, max_tokens=1, id="a b").status_code == 400
    assert server.complete([99_999_999] * 10, max_tokens=1).status_code == 400
    assert server.complete("hello", max_tokens=1, min_tokens=2).status_code == 400
    until(lambda: room.positions == room.coming == 0)  # an exchange ends a moment after its answer is there


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.booleans()), max_size=20))
def test_claims_never_exceed_the_room_and_all_come_back(prompts: list[tuple[int, int, bool]]) -> None:
    room, held = WaitingQuota(100), []
    for bound, true, split in prompts:
        before = room.positions
        claim = room.claim(bound)
        if isinstance(claim, Shortfall):
            assert (claim.need, claim.have, claim.limit) == (bound, 100 - before, 100) and bound > claim.have
            assert room.positions == before
            continue
        assert room.positions == before + bound <= 100 and room.coming == 1
        claim.correct(min(bound, true))
        held += [claim.split(claim.positions)] if split else []
        claim.release()
        claim.release()
        assert room.coming == 0
    assert room.positions == sum(claim.positions for claim in held)
    for claim in held:
        claim.release()
    assert room.positions == 0


def test_a_claim_is_split_among_the_requests_of_one_exchange() -> None:
    room = WaitingQuota(10)
    whole = room.claim(9, requests=2)
    assert isinstance(whole, Claim) and room.coming == 2
    whole.correct(5)
    first, second = whole.split(2), whole.split(3)
    assert (room.positions, room.coming, whole.positions) == (5, 0, 0)
    first.release()
    assert room.positions == second.positions == 3


# -- bodies ---------------------------------------------------------------------------------------------------


def raw(server: FakeServer, head: str, body: bytes = b"") -> bytes:
    """What comes back for these bytes until the server closes or has said a whole answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        data = b""
        while b"}}" not in data and (piece := connection.recv(65536)):
            data += piece
        return data


def error_of(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return found


def test_a_body_that_is_too_large_by_its_own_account_is_refused_unread(server: FakeServer) -> None:
    head = f"POST /v1/completions HTTP/1.1\nHost: localhost\nContent-Length: {BODY_BYTES + 1}\n\n"
    answer = raw(server, head)  # not a byte of it is sent
    assert answer.startswith(b"HTTP/1.1 413 ") and b"x-request-id: r-" in answer
    error = error_of(answer)
    assert (error["type"], error["code"]) == ("invalid_request_error", "body_too_large")
    assert error["message"] == f"the body is {BODY_BYTES + 1} bytes, and --max-body is {BODY_BYTES}"
    body = {"model": MODEL, "prompt": [5], "max_tokens": 1, "user": ""}
    body["user"] = "u" * (BODY_BYTES - len(json.dumps(body)))
    content = json.dumps(body).encode()
    assert len(content) == BODY_BYTES
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/nowhere"):
        assert server.http.post(path, content=content + b" ").status_code == 413
    assert server.http.post("/v1/completions", content=content).status_code == 200


def test_a_body_without_a_length_is_refused_while_it_is_read(server: FakeServer) -> None:
    sent = []

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            sent.append(1)
            yield b" " * 1000

    answer = server.http.post("/v1/completions", content=pieces())
    assert answer.status_code == 413 and "--max-body is 20000" in answer.json()["error"]["message"]
    assert server.complete([5], max_tokens=1).status_code == 200, "the connection lives on"


def test_a_body_that_does_not_arrive_is_408_and_the_connection_ends(server: FakeServer) -> None:
    began = time.monotonic()
    head = "POST /v1/completions HTTP/1.1\nHost: localhost\nContent-Length: 100\n\n"
    answer = raw(server, head, b'{"model"')
    assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer
    assert error_of(answer)["message"] == "only 8 bytes of the body arrived within 0.5 s, which is the limit"
    assert 0.4 < time.monotonic() - began < 5


def test_a_body_in_time_has_no_deadline_afterwards() -> None:
    async def life() -> list[dict[str, Any]]:
        messages = iter([
            {"type": "http.request", "body": b"ab", "more_body": True},
            {"type": "http.request", "body": b"c", "more_body": False},
        ])  # fmt: skip

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                await asyncio.sleep(0.1)
                return {"type": "http.disconnect"}
            return message

        body = BoundedBody(receive, ServeLimits(max_body_bytes=3, body_seconds=0.03))
        return [await body() for _ in range(3)]  # type: ignore[misc]

    assert [message["type"] for message in asyncio.run(life())] == ["http.request", "http.request", "http.disconnect"]


def test_a_body_is_judged_by_its_sum() -> None:
    async def life() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"ab", "more_body": True}

        body = BoundedBody(receive, ServeLimits(max_body_bytes=3))
        await body()
        with pytest.raises(Refusal, match="at least 4 bytes, and --max-body is 3") as refused:
            await body()
        assert refused.value.status == 413

    asyncio.run(life())


# -- time -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brief(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2, limits=ServeLimits(max_seconds=0.4), seats=1) as server:
        yield server


def test_a_request_that_lives_for_too_long_is_ended_by_time_and_everything_says_so(brief: FakeServer) -> None:
    assert brief.complete([5], max_tokens=3).status_code == 200, "a quick one is left alone"
    before = brief.sample('headway_requests_finished_total{reason="time"}')
    brief.executor.gate.clear()
    answers: list[httpx.Response] = []
    body = {"max_tokens": 5, "id": "long"}
    asking = threading.Thread(target=lambda: answers.append(brief.complete([5], **body)))
    asking.start()
    until(lambda: brief.executor.waits)
    queued = threading.Thread(target=lambda: answers.append(brief.complete([5], max_tokens=5, id="queued")))
    queued.start()
    time.sleep(0.6)
    brief.executor.gate.set()
    asking.join(10)
    queued.join(10)
    for answer in answers:
        assert answer.status_code == 504
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "time_limit")
        assert "more than 0.4 s, which is --max-seconds" in error["message"]
    for id in ("long", "queued"):
        record = brief.record(id)
        assert (record["stage"], record["reason"]) == ("cancelled", "time") and record["elapsed_ms"] > 400
    assert brief.sample('headway_requests_finished_total{reason="time"}') == before + 2
    assert brief.sample('headway_requests_finished_total{reason="cancelled"}') == 0


def test_a_stream_that_lives_for_too_long_ends_with_an_error_event(brief: FakeServer) -> None:
    body = {"model": MODEL, "prompt": [5], "max_tokens": 50, "ignore_eos": True, "stream": True}
    lines = []
    with brief.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            brief.executor.gate.clear()
            threading.Timer(0.6, brief.executor.gate.set).start()
            lines += [line] if line else []
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "time_limit"
    assert len(lines) < 52 and "data: [DONE]" not in lines
