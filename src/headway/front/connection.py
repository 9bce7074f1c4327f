"""One connection of the HTTP server: how long it may be silent or late, and how it ends when nobody reads it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headway.front.exchange import OUTGOING
from headway.front.limits import ServeLimits
from headway.front.refusals import Refusal

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ


class Connection(H11Protocol):
    """Lets the application see whether a client reads (`Outgoing`), and ends the connection of one that does not:
    closing it would wait for that client.

    No client can hold a connection forever. Silent between requests, or before the first, it
    ends after `keep_alive_seconds`; headers that began, and what follows a body that was answered unread, have their
    own bounds; all else is some exchange's, which has bounds of its own (`BoundedBody`, `Exchanges`)."""

    def __init__(self, *, app_state: dict[str, Any], limits: ServeLimits, **rest: Any) -> None:
        super().__init__(app_state=app_state | {OUTGOING: self}, **rest)
        self._limits = limits
        self._late: asyncio.TimerHandle | None = None
        self.silent_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > self._limits.max_connections:
            self._make_room()

    def handle_events(self) -> None:
        super().handle_events()
        if self.transport.is_closing():
            self._in_time()
        elif self.conn.their_state is h11.IDLE:
            if not self.conn.trailing_data[0]:
                self._in_time()
                self._await_request()
            elif self._late is None:
                self._late = self.loop.call_later(self._limits.header_seconds, self._headers_are_late)
        elif self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.DONE:
            self._in_time()
        elif self._late is None:
            self._late = self.loop.call_later(self._limits.body_seconds, self.transport.close)

    def on_response_complete(self) -> None:
        self.silent_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        text = f"{msg.rstrip('.')}: it is not valid HTTP/1.1, or its headers are too long"
        self._refuse(Refusal(400, text, code="invalid_http"))

    @property
    def silent(self) -> bool:
        """Whether it is open and nothing is asked."""
        return self.timeout_keep_alive_task is not None and not self.transport.is_closing()

    def _await_request(self) -> None:
        if self.timeout_keep_alive_task is None:
            self.silent_since = self.loop.time()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.config.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

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

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what never became an exchange, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # another answer has begun
            self.transport.close()
            return
        response = refusal.response()
        headers = [*response.raw_headers, (b"x-request-id", secrets.token_hex(8).encode()), (b"connection", b"close")]
        reason = HTTPStatus(refusal.status).phrase.encode()
        for event in (
            h11.Response(status_code=refusal.status, headers=headers, reason=reason),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def full(self) -> bool:
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

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._limits.slow_reader_seconds, self.abort)
