"""What one exchange may take of the server: bytes and seconds of a body, seconds of a life, patience with readers.
And what a connection may: seconds of silence, seconds of headers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Message, Receive, Scope

from headway.front.refusals import Refusal


@dataclass(frozen=True)
class ServeLimits:
    """The bounds of the HTTP server (see `headway serve --help`). `body_seconds` is how long a body may take to
    arrive, from the headers on; `header_seconds` is the same for headers, from their first byte on. A stream in which
    nothing happens sends a comment every `comment_seconds`, so that no proxy takes it for dead."""

    max_waiting: int = 512
    max_waiting_positions: int = 1 << 20
    max_seconds: float | None = None
    max_body_bytes: int = 32 << 20
    body_seconds: float = 30.0
    slow_reader_seconds: float = 30.0
    keep_alive_seconds: float = 75.0
    header_seconds: float = 15.0
    comment_seconds: float = 15.0
    max_connections: int = 2048


def length_refusal(scope: Scope, limits: ServeLimits) -> Refusal | None:
    """A body that is too large by its own account is refused before any of it is read."""
    given = dict(scope["headers"]).get(b"content-length", b"0")
    length = int(given) if given.isdigit() else 0
    return too_large(f"{length}", limits) if length > limits.max_body_bytes else None


class Incoming(Protocol):
    """The body of one exchange, as it arrives."""

    @property
    def at_hand(self) -> bool:
        """Whether what is asked for next of it is there."""
        ...


class BoundedBody:
    """An exchange's `receive`: raises Refusal when its body is larger than the limit (413), or late (408)."""

    def __init__(self, receive: Receive, limits: ServeLimits, incoming: Incoming | None = None) -> None:
        """What `incoming` has at hand needs no timer."""
        self._receive, self._incoming = receive, incoming
        self._limits = limits
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds
        self._bytes = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:  # what comes now is the end of the connection, which has no deadline
            return await self._receive()
        try:
            if self._incoming is not None and self._incoming.at_hand:
                message = await self._receive()
            else:
                async with asyncio.timeout_at(self._deadline):
                    message = await self._receive()
        except TimeoutError:
            limit = f"{self._limits.body_seconds:g} s, which is the limit"
            text = f"only {self._bytes} bytes of the body arrived within {limit}"
            raise Refusal(408, text, code="body_timeout", headers={"connection": "close"}) from None
        self._bytes += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._bytes > self._limits.max_body_bytes:
            raise too_large(f"at least {self._bytes}", self._limits)
        return message


def too_large(length: str, limits: ServeLimits, how: str = "") -> Refusal:
    """The refusal (413) of a body of `length` bytes, `how` they were counted."""
    text = f"the body is {length} bytes{how and ' ' + how}, and --max-body is {limits.max_body_bytes}"
    return Refusal(413, text, code="body_too_large", param="body")
