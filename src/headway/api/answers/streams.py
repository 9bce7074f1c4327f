"""Server-sent events of an exchange that is followed while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

#: Clients of server-sent events skip a line that begins with a colon.
COMMENT = b": still here\n\n"


class EventStream(Response):
    """A response of `frames`, whole events as bytes; it ends early when `follow` sees its client leave."""

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        follow: Callable[[Awaitable[None]], Awaitable[None]],
        headers: dict[str, str],
    ) -> None:
        super().__init__(None, 200, headers | {"cache-control": "no-cache"}, "text/event-stream")
        del self.headers["content-length"]
        self._frames, self._follow = frames, follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._follow(self._write(send))

    async def _write(self, send: Send) -> None:
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
