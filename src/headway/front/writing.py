"""How an answer goes to its connection: head and body in one write where the body is there at once."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Answer(RequestResponseCycle):
    """An exchange as the server sees it. The head of an answer whose length is known waits for the first bytes of its
    body: one write, and the client wakes up once."""

    def __init__(self, *, transport: asyncio.Transport, **rest: Any) -> None:
        self._joined = _Joined(transport)
        super().__init__(transport=self._joined, **rest)  # type: ignore[arg-type]

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and self.scope["method"] != "HEAD":
            self._joined.holds = any(name == b"content-length" for name, _ in message["headers"])
        await super().send(message)

    @property
    def at_hand(self) -> bool:
        """Whether what is asked for next of the body is there."""
        return bool(self.body) or not self.more_body


class _Joined:
    """What an answer needs of its transport. With `holds`, the next bytes wait for those after them."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held = b""
        self.holds = False

    def write(self, data: bytes) -> None:
        if self.holds:
            self._held, self.holds = data, False
        else:
            self._transport.write(self._held + data)
            self._held = b""

    def close(self) -> None:
        if self._held:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
