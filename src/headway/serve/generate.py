"""From an accepted body to its answer: submit, follow the inbox, write JSON or a stream. Leaving cancels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.request import Emission, NewRequest, Stage
from headway.serve.errors import Refusal, never
from headway.serve.front import End, Front, Inbox
from headway.serve.shapes import Shape, usage
from headway.serve.visit import Visit
from headway.story.explain import timing
from headway.story.record import Record
from headway.text.answer import AnswerText
from headway.verdict import Never

T = TypeVar("T")
_json = msgspec.json.Encoder()


class Answer:
    """One generating request, followed from submission to its end."""

    def __init__(self, front: Front, shape: Shape, new: NewRequest, visit: Visit) -> None:
        self._front = front
        self._shape = shape
        self._new = new
        self._texts: dict[int, AnswerText] = {}
        self._inbox: Inbox = front.submit(new, visit.received_at)
        visit.served.append(new.id)

    async def whole(self, request: Request, headers: dict[str, str]) -> Response:
        """The unstreamed answer. Raises Refusal when it cannot be given."""
        end = await self._unless_gone(request.receive, self._collect())
        if end is None:
            return Response(status_code=499)
        if end.stage is not Stage.FINISHED:
            raise self._refusal(end)
        body = self._shape.whole(usage(self._record))
        headers = headers | {"headway-timing": timing(self._record, self._front.clock.now_ns())}
        return Response(_json.encode(body), 200, headers, "application/json")

    async def stream(self, request: Request, headers: dict[str, str], *, include_usage: bool) -> Response:
        """A response that streams. Raises Refusal when the request was refused or failed before it was queued."""
        if not await self._unless_gone(request.receive, self._inbox.settled.wait()):
            return Response(status_code=499)
        if self._inbox.refused is not None:
            raise self._refusal(self._inbox.refused)
        return _Stream(self, headers, include_usage)

    async def events(self, include_usage: bool) -> AsyncIterator[bytes]:
        """The data of a stream's events, one by one."""
        open_choices = self._new.n
        while True:
            item = await self._inbox.queue.get()
            if isinstance(item, End):
                if item.stage is Stage.FINISHED:
                    yield b"[DONE]"
                else:
                    yield _json.encode(self._refusal(item).body())
                return
            open_choices -= item.finish is not None
            rows = self._take(item)
            for i, row in enumerate(rows):
                chunk = self._shape.chunk([row])
                if include_usage:
                    chunk["usage"] = None
                elif not open_choices and i == len(rows) - 1:
                    chunk["headway"] = self._timing()
                yield _json.encode(chunk)
            if include_usage and not open_choices:
                last = self._shape.chunk([]) | {"usage": usage(self._record), "headway": self._timing()}
                yield _json.encode(last)

    async def follow(self, receive: Receive, work: Awaitable[None]) -> None:
        """Do `work` unless the client leaves."""
        await self._unless_gone(receive, work)

    @property
    def _record(self) -> Record:
        return self._front.story.record(self._new.id)

    def _timing(self) -> str:
        return timing(self._record, self._front.clock.now_ns())

    async def _collect(self) -> End:
        while isinstance(item := await self._inbox.queue.get(), Emission):
            self._take(item)
        return item

    def _take(self, emission: Emission) -> list[dict[str, Any]]:
        """Add tokens to their choice. Returns what a stream says about them."""
        choice = self._shape.choice_of(emission.index)
        if emission.index not in self._texts:
            new = self._new
            self._texts[emission.index] = AnswerText(self._front.tokenizer, new.stop, new.min_tokens)
        answer = self._texts[emission.index]
        text = answer.push(emission.tokens)
        if emission.finish is not None:
            text += answer.finish()
            choice.finish = emission.finish
        choice.text += text
        return self._shape.deltas(choice, text, emission.finish)

    async def _unless_gone(self, receive: Receive, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None when the client left first; the end of the exchange cancels the request."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _refusal(self, end: End) -> Refusal:
        """Why there is no answer, or no more of it."""
        if self._inbox.rejected is not None:
            raise self._inbox.rejected
        verdict = self._record.verdict
        if isinstance(verdict, Never):
            assert self._front.ready is not None
            return never(verdict, self._front.ready.facts.max_context)
        if end.stage is Stage.CANCELLED:
            return Refusal(499, "the request was cancelled", code="cancelled")
        return Refusal(500, end.message, code="failed")


class _Stream(Response):
    """Server-sent events."""

    def __init__(self, answer: Answer, headers: dict[str, str], include_usage: bool) -> None:
        super().__init__(None, 200, headers | {"cache-control": "no-cache"}, "text/event-stream")
        del self.headers["content-length"]
        self._answer = answer
        self._include_usage = include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._answer.follow(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        async for data in self._answer.events(self._include_usage):
            await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
