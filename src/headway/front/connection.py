"""One connection of the HTTP server: how long it may be silent or late, and how it ends when nobody reads it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.front.exchange import INCOMING, OUTGOING
from headway.front.limits import ServeLimits
from headway.front.refusals import Refusal
from headway.front.writing import Answer

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

#: Bytes of a request's line and headers.
_MOST_HEAD_BYTES = 64 << 10
_INVALID = "it is not valid HTTP/1.1, or its headers are too long"
#: What is read at a time.
_READ_BYTES = 64 << 10


def connections(limits: ServeLimits) -> Callable[..., Connection]:
    """What makes the connections of one event loop. They read into one buffer, whose content each has taken before
    another reads: a new one for each read costs more than the system call."""
    return partial(Connection, limits=limits, read=memoryview(bytearray(_READ_BYTES)))


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """Lets the application see whether a client reads (`Outgoing`), and ends the connection of one that does not:
    closing it would wait for that client.

    No client can hold a connection forever. Silent between requests, or before the first, it
    ends after `keep_alive_seconds`; headers that began, and what follows a body that was answered unread, have their
    own bounds; all else is some exchange's, which has bounds of its own (`BoundedBody`, `Exchanges`).

    What is wrong is answered in its turn: not before the answers to what came before it."""

    def __init__(self, *, app_state: dict[str, Any], limits: ServeLimits, read: memoryview, **rest: Any) -> None:
        super().__init__(app_state=app_state | {OUTGOING: self}, **rest)
        self._limits, self._read = limits, read
        self._late: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the request whose headers are not complete; 0 between requests
        self._begun = 0  # requests in the bytes that came last
        self._in_body = False
        self._wrong = ""  # why nothing more is read
        self._lost = False
        self._when_gone: Callable[[], None] | None = None
        self.silent_since = self.loop.time()
        self._silent = False  # it is open and nothing is asked

    # -- what comes ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > self._limits.max_connections:
            self._make_room()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._silent = False
        if self._wrong:
            return
        in_body, self._begun = self._in_body, 0
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._wrong = self._wrong or _INVALID
        if self._head_bytes and self._begun + in_body < 2:  # all of it belongs to one head
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._wrong = _INVALID
        if self._wrong:
            self._end_in_turn()
        else:
            self._watch()

    def _feed(self, data: bytes) -> None:
        """Another protocol than HTTP/1.1 is never chosen: a request that offers one is answered as any other."""
        while data:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offered:
                data = data[offered.args[0] :]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 1
        self._begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._head_bytes, self._in_body = 0, True
        version, scope = self.parser.get_http_version(), self.scope
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version == "1.1"):  # RFC 9112 3.2
            self._wrong = f"it has {hosts or 'no'} Host header{'s' if hosts else ''}"
            raise ValueError(self._wrong)
        raw_path, _, query = self.url.partition(b"?")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = self.root_path + unquote(raw_path.decode("ascii"))
        scope["raw_path"] = self.root_path.encode("ascii") + raw_path
        scope["query_string"] = query
        before = self.cycle
        self.cycle = Answer(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["state"][INCOMING] = self.cycle
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False

    def _should_upgrade(self) -> bool:
        return False

    # -- how long it may take ----------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """As uvicorn's, but for the timer of each silence."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        if self._wrong and not self.pipeline:
            self._end_in_turn()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._lost = True
        self._tell_gone()

    @property
    def silent(self) -> bool:
        """Whether it is open and nothing is asked."""
        return self._silent and not self.transport.is_closing()

    @property
    def _answered(self) -> bool:
        """Whether every request so far is."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Bound what is waited for now."""
        if self.transport.is_closing() or not self._answered:
            self._in_time()
        elif self._in_body:
            self._bound(self._limits.body_seconds, self.transport.close)
        elif self._head_bytes:
            self._bound(self._limits.header_seconds, self._headers_are_late)
        else:
            self._in_time()
            self._await_request()

    def _bound(self, seconds: float, end: Any) -> None:
        if self._late is None:
            self._late = self.loop.call_later(seconds, end)

    def _await_request(self) -> None:
        """One timer for many silences: it looks how long the last one has been."""
        self._silent, self.silent_since = True, self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again(self.config.timeout_keep_alive)

    def _look_again(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._look_at_silence)

    def _look_at_silence(self) -> None:
        self.timeout_keep_alive_task = None
        if self._silent:
            left = self.silent_since + self.config.timeout_keep_alive - self.loop.time()
            if left > 0:
                self._look_again(left)
            else:
                self.timeout_keep_alive_handler()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._limits.slow_reader_seconds, self.abort)

    # -- refusals of what never became an exchange ------------------------------------------------------------

    def _headers_are_late(self) -> None:
        text = f"the headers did not arrive within {self._limits.header_seconds:g} s, which is the limit"
        self._refuse(Refusal(408, text, code="header_timeout"))

    def _make_room(self) -> None:
        """There is one connection too many: the one that was silent for longest ends, or else this one."""
        silent = [
            other
            for other in self.connections
            if isinstance(other, Connection) and other is not self and other.silent
        ]
        if silent:
            min(silent, key=lambda other: other.silent_since).timeout_keep_alive_handler()
        else:
            text = f"{self._limits.max_connections} connections are open and busy, which is the limit"
            self._refuse(Refusal(503, text, code="too_many_connections", headers={"retry-after": "2"}))

    def _end_in_turn(self) -> None:
        """Refuse what is no request once all before it is answered."""
        if self._answered or self._in_body:
            self._refuse(Refusal(400, f"Invalid HTTP request received: {self._wrong}", code="invalid_http"))
        else:
            self.flow.pause_reading()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, and close."""
        if self.transport.is_closing():
            return
        if not self._answered and self.cycle.response_started:  # another answer has begun
            self.transport.close()
            return
        response = refusal.response()
        own = [(b"x-request-id", secrets.token_hex(8).encode()), (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % header for header in (*response.raw_headers, *own)]
        status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
        self.transport.write(b"".join([status, *lines, b"\r\n", bytes(response.body)]))
        self.transport.close()

    # -- how it is read by the client, and left -------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        return bool(self.flow.write_paused)

    def unsent_bytes(self) -> int:
        unsent: int = self.transport.get_write_buffer_size()
        connection = self.transport.get_extra_info("socket")
        if sys.platform == "linux" and connection is not None:
            with contextlib.suppress(OSError, ValueError):  # the connection is lost or closed: nobody asks again
                unsent += struct.unpack("i", ioctl(connection.fileno(), TIOCOUTQ, b"\0" * 4))[0]
        return unsent

    def abort(self) -> None:
        """A reset, not an end: else the kernel would go on offering what it holds."""
        if (connection := self.transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Of several requests in a row one is answered at a time, so there is one call at most."""
        self._when_gone = call
        if call is not None and self._lost:
            self.loop.call_soon(self._tell_gone)

    def _tell_gone(self) -> None:
        if self._when_gone is not None:
            self._when_gone()
