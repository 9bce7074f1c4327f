"""Clients that do not read: dropped in time, bounded in memory, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import msgspec
import pytest

from fake_server import FakeServer, fake_serving
from headway.api.answers.generate import _Stream
from headway.artifacts.files import ModelFiles
from headway.front import state as front_module
from headway.front.limits import ServeLimits
from headway.story.tell.sentences import tell
from headway.story.tell.views import RequestView
from serving import MODEL, until

PATIENCE_S = 0.6
#: More than all buffers between here and there hold (some 400 KiB), so that a reader who stops is felt.
LONG = {"max_tokens": 3000, "n": 4}
#: More than a fast machine computes until such a reader's time is over: 3,000 were once done before.
ENDLESS = {"max_tokens": 12_000, "n": 4}


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2, limits=ServeLimits(slow_reader_seconds=PATIENCE_S, keep_alive_seconds=5)) as server:
        yield server


def stalled(server: FakeServer, id: str, receive_bytes: int = 32 << 10, **fields: Any) -> socket.socket:
    """A stream that was asked for, of which nothing is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps({"model": MODEL, "prompt": [5], "ignore_eos": True, "stream": True} | fields)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: {id}\r\nContent-Length: {len(body)}\r\n"
    )
    connection.sendall(f"{head}\r\n{body}".encode())
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that can still be read, until the end or the reset."""
    connection.settimeout(20)
    data = b""
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        return data + b"RESET"
    return data


def test_a_client_that_takes_nothing_is_dropped_and_its_request_cancelled(server: FakeServer) -> None:
    dropped = server.sample("headway_slow_readers_total")
    with stalled(server, "stalled", **ENDLESS) as connection:
        until(lambda: server.record("stalled").get("stage") == "running")
        until(lambda: server.record("stalled").get("stage") == "cancelled")
        record = server.record("stalled")
        assert record["reason"] == "slow reader"
        told = tell(msgspec.convert(record, RequestView))[0]
        assert "was cancelled" in told and "its client stopped reading" in told
        assert server.sample("headway_slow_readers_total") == dropped + 1
        assert server.front.story.levels.live == 0
        data = rest(connection)
        assert data.endswith(b"RESET") and b"[DONE]" not in data and len(data) < 1 << 20
    until(lambda: "stalled" not in server.front.story.live)


def test_a_finished_answer_that_is_not_taken_is_dropped_too_and_why_says_so(
    server: FakeServer,
) -> None:
    """Few steps, many sequences: it is done long before its reader's time is over."""
    dropped = server.sample("headway_slow_readers_total")
    with stalled(server, "finished", max_tokens=150, n=32) as connection:
        until(lambda: server.record("finished").get("stage") == "finished")
        until(lambda: server.record("finished").get("dropped") == "slow reader")
        assert server.sample("headway_slow_readers_total") == dropped + 1
        told = tell(msgspec.convert(server.record("finished"), RequestView))[0]
        assert "The rest of its answer was not delivered: its client stopped reading" in told
        assert rest(connection).endswith(b"RESET")


def test_a_client_that_pauses_for_less_gets_everything(server: FakeServer) -> None:
    dropped = server.sample("headway_slow_readers_total")
    with stalled(server, "pauses", **LONG) as connection:
        data = b""
        connection.settimeout(20)
        for _ in range(4):
            time.sleep(PATIENCE_S / 2)
            data += connection.recv(1 << 20, socket.MSG_WAITALL)
        while b"[DONE]" not in data[-100:]:
            data += connection.recv(1 << 16)
    record = server.record("pauses")
    assert record["stage"] == "finished" and "dropped" not in record
    assert data.count(b'"finish_reason":"length"') == 4
    assert server.sample("headway_slow_readers_total") == dropped


def test_a_client_that_takes_little_is_not_one_that_takes_nothing(smollm2: ModelFiles) -> None:
    """A few kilobytes each time: far less than what makes room for the next event. The kernel may tell the sender of
    room only when it probes, 0.2, 0.4 and 0.8 s apart, so that what was taken can be seen 1.4 s later: patience is
    longer than that here."""
    patience_s = 2.5
    limits = ServeLimits(slow_reader_seconds=patience_s, keep_alive_seconds=5)
    with fake_serving(smollm2, limits=limits) as server:
        with stalled(server, "little", receive_bytes=4096, **LONG) as connection:
            until(lambda: server.record("little").get("stage") == "running")
            began = time.monotonic()
            while time.monotonic() - began < 2 * patience_s:
                time.sleep(patience_s / 10)
                assert connection.recv(4096)
            assert server.record("little")["stage"] in ("running", "finished")
        until(lambda: server.record("little")["stage"] == "cancelled" or "little" not in server.front.story.live)
        assert server.record("little")["reason"] in ("client", "length")


def test_others_do_not_notice_and_the_server_holds_little_for_each(server: FakeServer) -> None:
    """Ten that read nothing, and one that reads: it is as quick as alone, and what lies in buffers is bounded."""

    def quick() -> float:
        began = time.monotonic()
        assert server.complete([9], max_tokens=20).status_code == 200
        return time.monotonic() - began

    connections = [stalled(server, f"crowd-{i}", **LONG) for i in range(10)]
    try:
        until(lambda: all(server.record(f"crowd-{i}").get("stage") not in (None, "received") for i in range(10)))
        assert max(quick() for _ in range(5)) < 3
        held = [
            protocol.transport.get_write_buffer_size()
            for protocol in server.server.server_state.connections
            if protocol.transport is not None
        ]
        assert max(held) < 128 << 10
    finally:
        until(lambda: not any(id.startswith("crowd-") for id in server.front.story.live))
        for connection in connections:
            connection.close()
    until(lambda: len(server.server.server_state.connections) <= 2)


def test_a_client_too_far_behind_is_dropped_before_its_time(
    smollm2: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "MOST_BEHIND", 50)
    limits = ServeLimits(keep_alive_seconds=1)
    with fake_serving(smollm2, limits=limits) as server, stalled(server, "behind", max_tokens=900, n=4) as connection:
        until(lambda: server.record("behind").get("reason") == "slow reader")
        data = rest(connection)
        assert b'"code":"slow_reader"' in data[-400:] and b"[DONE]" not in data
        assert server.record("behind")["stage"] == "cancelled"


def test_the_last_bytes_of_an_answer_do_not_hold_a_connection_for_ever(server: FakeServer) -> None:
    """An answer that fits into the server's buffers is delivered; its connection ends though nobody reads it."""
    server.server.config.timeout_keep_alive = 1
    try:
        with stalled(server, "fits", max_tokens=900, n=2):
            until(lambda: server.record("fits").get("stage") == "finished")
            until(lambda: "fits" not in server.front.story.live)
            until(lambda: len(server.server.server_state.connections) <= 1, 10)
    finally:
        server.server.config.timeout_keep_alive = 5


# -- what else could hold the loop, or tell -------------------------------------------------------------------


@pytest.mark.parametrize(
    "route", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/tokenize chat", "/detokenize"]
)
def test_long_inputs_are_rendered_and_tokenised_beside_the_event_loop(
    server: FakeServer, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other threads, and in ones that let the loop run: held by the tokenizer, it would stand still for nearly all
    of the time that an answer takes."""
    text = "The quick brown fox jumps over the lazy dog. " * 22_000
    messages = {"messages": [{"role": "user", "content": text}]}
    body: dict[str, Any] = {
        "/v1/completions": {"prompt": text, "max_tokens": 1},
        "/v1/chat/completions": messages | {"max_tokens": 1},
        "/tokenize": {"prompt": text},
        "/tokenize chat": messages,
        "/detokenize": {"tokens": [504, 2365, 6354, 16438] * 100_000},
    }[route]
    gaps: list[float] = []
    over = threading.Event()

    async def watch() -> None:
        last = time.monotonic()
        while not over.is_set():
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    threads: set[int] = set()
    _note_threads(monkeypatch, server, threads)
    loop = server.server.servers[0].get_loop()
    watching = asyncio.run_coroutine_threadsafe(watch(), loop)
    began = time.monotonic()
    answer = server.http.post(route.split()[0], json={"model": MODEL} | body)
    took_s = time.monotonic() - began
    over.set()
    watching.result(10)

    async def thread() -> int:
        return threading.get_ident()

    assert threads and asyncio.run_coroutine_threadsafe(thread(), loop).result(10) not in threads
    assert answer.status_code in (200, 400), answer.text  # a prompt over the context is refused once it was counted
    assert max(gaps) < max(0.2, 0.6 * took_s), (max(gaps), took_s)


def _note_threads(monkeypatch: pytest.MonkeyPatch, server: FakeServer, threads: set[int]) -> None:
    """Note in which threads a template is rendered and a tokenizer works."""
    tokenizer, template = server.model.tokenizer, server.model.template

    def noting(work: Any) -> Any:
        def noted(*args: Any, **how: Any) -> Any:
            threads.add(threading.get_ident())
            return work(*args, **how)

        return noted

    for owner, name in ((tokenizer, "encode"), (tokenizer, "decode"), (template, "render")):
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))


def test_an_error_inside_keeps_its_words_out_of_the_log_but_not_its_place(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str, **how: Any) -> list[int]:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise RuntimeError(f"no tokens for {text}") from error

    monkeypatch.setattr(server.model.tokenizer, "encode", fail)
    with caplog.at_level(logging.ERROR):
        answer = server.complete("Zanzibar")
        until(lambda: caplog.records)  # it is logged after the answer
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
    assert "Zanzibar" not in answer.text
    told = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert "Zanzibar" not in told
    assert "builtins.RuntimeError (its words are shown with --log-prompts)" in told and "builtins.KeyError" in told
    assert "in fail" in told


class Said:
    """An answer of which all events but the last `alone` come at once."""

    def __init__(self, count: int, alone: int) -> None:
        self._count, self._alone, self._told = count, alone, 0

    async def events(self, include_usage: bool, continuous_usage: bool) -> AsyncIterator[bytes]:
        while self._told < self._count:
            self._told += 1
            yield b"%d " % self._told

    @property
    def behind(self) -> bool:
        return self._told < self._count - self._alone

    async def unless_gone(self, work: Awaitable[None]) -> None:
        await work


@pytest.mark.parametrize(("count", "alone", "writes"), [(5, 4, 5), (5, 0, 1), (5, 2, 3), (150, 0, 3)])
def test_what_came_meanwhile_goes_in_one_write_up_to_a_bound(count: int, alone: int, writes: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    stream = _Stream(Said(count, alone), {}, False, False)  # type: ignore[arg-type]
    asyncio.run(stream({"type": "http"}, None, send))  # type: ignore[arg-type]
    *bodies, end = sent[1:]
    assert b"".join(body["body"] for body in bodies) == b"".join(b"%d " % i for i in range(1, count + 1))
    assert len(bodies) == writes
    assert (end["body"], [body["more_body"] for body in (*bodies, end)]) == (b"", [True] * writes + [False])
