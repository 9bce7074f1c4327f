"""Connections that send nothing, or too slowly, or too many of them: each ends in time, and none that is in use."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.front.limits import ServeLimits
from serving import MODEL, until

HEADER_S, BODY_S, SILENT_S, CONNECTIONS = 0.5, 0.4, 0.8, 8
HEAD = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    limits = ServeLimits(
        header_seconds=HEADER_S, body_seconds=BODY_S, keep_alive_seconds=SILENT_S, max_connections=CONNECTIONS
    )
    with fake_serving(smollm2, limits=limits) as server:
        server.http.close()  # its connections would count
        yield server


@pytest.fixture(autouse=True)
def alone(server: FakeServer) -> None:
    until(lambda: not server.server.server_state.connections)


@contextlib.contextmanager
def connected(server: FakeServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        yield connection


def answer(connection: socket.socket) -> bytes:
    """One whole answer, whose body is JSON."""
    data = b""
    while not data.endswith(b"}"):
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def ended(connection: socket.socket, drip: Callable[[], bytes] = lambda: b"") -> tuple[bytes, float]:
    """What came before the end of the connection, and after how long that was; `drip` is sent meanwhile."""
    began, data = time.monotonic(), b""
    connection.settimeout(0.05)
    while time.monotonic() - began < 10:
        with contextlib.suppress(TimeoutError):
            try:
                if dripped := drip():
                    connection.sendall(dripped)
                if not (piece := connection.recv(65536)):
                    return data, time.monotonic() - began
                data += piece
            except (ConnectionResetError, BrokenPipeError):
                return data, time.monotonic() - began
    raise AssertionError("it did not end")


def error(data: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(data.partition(b"\r\n\r\n")[2])["error"]
    return found


def test_a_connection_that_never_sends_a_byte_ends(server: FakeServer) -> None:
    with connected(server) as connection:
        data, after_s = ended(connection)
    assert data == b"" and after_s > 0.9 * SILENT_S


def test_a_connection_that_is_silent_after_an_answer_ends(server: FakeServer) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD)
        data, after_s = ended(connection)
    assert data.startswith(b"HTTP/1.1 200 ") and after_s > 0.9 * SILENT_S


def test_a_request_begins_the_silence_anew(server: FakeServer) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD)
        answer(connection)
        time.sleep(SILENT_S / 4)  # far from the bound, for a machine that is late
        asked_at = time.monotonic()
        connection.sendall(HEAD)
        answer(connection)
        assert ended(connection)[0] == b""
        assert SILENT_S <= time.monotonic() - asked_at < 5


@pytest.mark.parametrize("before", [b"", HEAD], ids=["first", "second"])
def test_headers_that_come_byte_by_byte_end_in_408(server: FakeServer, before: bytes) -> None:
    """Each byte in time, so that no bound on silence would ever end it. Asked again on the same connection too."""
    letters = iter(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1000)
    with connected(server) as connection:
        if before:
            connection.sendall(before)
            assert answer(connection).startswith(b"HTTP/1.1 200 ")
        data, after_s = ended(connection, drip=lambda: bytes([next(letters)]))
    assert data.startswith(b"HTTP/1.1 408 ") and b"connection: close" in data and b"x-request-id: " in data
    assert error(data)["code"] == "header_timeout" and "0.5 s" in error(data)["message"]
    assert 0.9 * HEADER_S < after_s < 5 * HEADER_S


def test_a_body_that_comes_byte_by_byte_ends_in_408(server: FakeServer) -> None:
    with connected(server) as connection:
        connection.sendall(POST)
        data, _ = ended(connection, drip=lambda: b" ")
    assert data.startswith(b"HTTP/1.1 408 ") and error(data)["code"] == "body_timeout"


def test_the_rest_of_a_body_that_was_answered_unread_holds_no_connection(server: FakeServer) -> None:
    with connected(server) as connection:
        connection.sendall(POST.replace(b"/v1/completions", b"/nowhere"))
        data, after_s = ended(connection, drip=lambda: b" ")
    assert data.startswith(b"HTTP/1.1 404 ") and after_s < 10 * BODY_S


def test_a_connection_whose_body_was_answered_unread_is_good_for_more_and_ends_when_silent(
    server: FakeServer,
) -> None:
    with connected(server) as connection:
        connection.sendall(POST.replace(b"/v1/completions", b"/nowhere"))
        assert answer(connection).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b" " * 1000 + HEAD)
        data, after_s = ended(connection)
    assert data.startswith(b"HTTP/1.1 200 ") and after_s > 0.9 * SILENT_S


def test_an_answer_that_takes_longer_than_all_bounds_is_given(server: FakeServer) -> None:
    body = json.dumps({"model": MODEL, "prompt": [5], "max_tokens": 1}).encode()
    server.executor.gate.clear()
    try:
        with connected(server) as connection:
            connection.sendall(POST.replace(b"1000", b"%d" % len(body)) + body)
            time.sleep(1.5 * max(HEADER_S, BODY_S, SILENT_S))
            server.executor.gate.set()
            assert answer(connection).startswith(b"HTTP/1.1 200 ")
    finally:
        server.executor.gate.set()


def test_what_is_no_http_is_400_with_an_error_object(server: FakeServer) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000):
        with connected(server) as connection:
            connection.sendall(sent)
            data, _ = ended(connection)
        assert data.startswith(b"HTTP/1.1 400 ") and error(data)["code"] == "invalid_http"


def test_of_too_many_connections_the_longest_silent_one_makes_room(server: FakeServer) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(server)) for _ in range(2)]
        until(lambda: len(server.server.server_state.connections) == 2)
        time.sleep(0.02)  # some clocks tick once a millisecond
        silent += [stack.enter_context(connected(server)) for _ in range(CONNECTIONS - 2)]
        until(lambda: len(server.server.server_state.connections) == CONNECTIONS)
        silent[0].sendall(HEAD)  # now the second one is
        assert answer(silent[0]).startswith(b"HTTP/1.1 200 ")
        new = stack.enter_context(connected(server))
        new.sendall(HEAD)
        assert answer(new).startswith(b"HTTP/1.1 200 ")
        assert silent[1].recv(1) == b""
        for other in (silent[0], silent[-1]):
            other.sendall(HEAD)
            assert answer(other).startswith(b"HTTP/1.1 200 ")


def test_a_connection_beyond_the_most_that_are_busy_is_503(server: FakeServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connected(server)).sendall(b"GET")
        until(lambda: sum(not other.silent for other in server.server.server_state.connections) == CONNECTIONS)
        data, _ = ended(stack.enter_context(connected(server)))
        assert data.startswith(b"HTTP/1.1 503 ") and b"retry-after: " in data
        assert error(data)["code"] == "too_many_connections" and "8 connections" in error(data)["message"]


def test_what_is_no_http_is_answered_after_what_came_before_it(server: FakeServer) -> None:
    with connected(server) as connection:
        connection.sendall(HEAD + HEAD + b"\x16\x03\x01\r\n\r\n")
        data, _ = ended(connection)
    assert re.findall(rb"HTTP/1\.1 (\d{3}) ", data) == [b"200", b"200", b"400"]


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n"])
def test_a_request_has_one_host(server: FakeServer, hosts: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /ready HTTP/1.1\r\n" + hosts + b"\r\n")
        data, _ = ended(connection)
    assert data.startswith(b"HTTP/1.1 400 ") and error(data)["code"] == "invalid_http"


def test_an_offer_of_another_protocol_is_not_taken_up_and_holds_up_nothing(server: FakeServer) -> None:
    offer = HEAD[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(offer + HEAD)
        data = answer(connection)
        while data.count(b"HTTP/1.1 200 ") < 2:
            data += answer(connection)
    assert data.count(b"HTTP/1.1 200 ") == 2
