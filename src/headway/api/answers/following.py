"""The requests of one exchange, followed from submission to their end: what all patterns share. Leaving cancels."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from headway.api.answers.never import Wanted, never
from headway.core.events import NOT_FINITE
from headway.core.request import AnyRequest, Stage
from headway.core.verdict import Never
from headway.front.exchange import Exchange
from headway.front.inbox import Arrivals, Arriving, End, Inbox
from headway.front.models import FrontModel
from headway.front.refusals import Refusal, cancelled
from headway.front.state import Front
from headway.story.reduce.record import Record
from headway.story.tell.explain import timing

T = TypeVar("T")


class _Quiet:
    """Puts None among arrivals of which none was taken for `seconds`. One timer for a whole stream: one for each
    token would cost as much as its text."""

    def __init__(self, arrivals: Arrivals, seconds: float) -> None:
        self._arrivals, self._seconds = arrivals, seconds
        self._loop = asyncio.get_running_loop()
        self.taken()
        self._timer = self._loop.call_later(seconds, self._look)

    def taken(self) -> None:
        self._since = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._since + self._seconds - self._loop.time()
        if left <= 0 and not self._arrivals:
            self._arrivals.put(None)
        self._timer = self._loop.call_later(left if left > 0 else self._seconds, self._look)


class Following(ABC):
    """One request, or one for each input of a list. What ends one of them early ends the exchange, and with it the
    others. What comes of all of them comes in one order."""

    def __init__(self, front: Front, model: FrontModel, exchange: Exchange) -> None:
        self._front = front
        self._model = model
        self._exchange = exchange
        self._arrivals = Arrivals()
        self._quiet: _Quiet | None = None
        self._inboxes: dict[str, Inbox] = {}
        self._left = 0  # requests without an end yet
        self._wanted: dict[str, Wanted] = {}

    def submit(self, news: Sequence[AnyRequest], wanted: Sequence[Wanted]) -> list[Inbox]:
        """`wanted` says in which fields of the body each asked for what. Raises DuplicateRequest."""
        exchange = self._exchange
        inboxes = self._front.submit(news, exchange.received_at, exchange.claim, self._arrivals)
        self._left += len(news)
        for new, each, inbox in zip(news, wanted, inboxes, strict=True):
            exchange.served.append(new.id)
            self._inboxes[new.id], self._wanted[new.id] = inbox, each
        return inboxes

    @property
    def records(self) -> list[Record]:
        return [self._front.story.record(id) for id in self._inboxes]

    def timing(self) -> str:
        """Where the time went: of several requests, that of the one that took longest."""
        now = self._front.clock.now_ns()
        return timing(max(self.records, key=lambda record: record.elapsed_ns(now)), now)

    async def collect(self) -> End:
        """`take` everything; the last end, or the first that is not good."""
        while True:
            item = await self._arrivals.take()
            if not isinstance(item, End):
                assert item is not None, "only a stream tells of silence"
                self.take(item)
                continue
            self._left -= 1
            if item.stage is not Stage.FINISHED:
                return item
            self.ended()
            if not self._left:
                return item

    async def next(self) -> Arriving | None:
        """What comes next; None when nothing comes for so long that whoever passes the stream on might think it
        dead. Only within `unless_gone`."""
        if self._quiet is None:
            self._quiet = _Quiet(self._arrivals, self._front.limits.comment_seconds)
        item = await self._arrivals.take()
        self._quiet.taken()
        return item

    def ended(self) -> None:  # noqa: B027  (most have no more)
        """One of the requests came to a good end: there may be more to submit."""

    @abstractmethod
    def take(self, item: Arriving) -> object:
        """Something that is not an end has come."""

    async def unless_gone(self, work: Awaitable[T]) -> T | None:
        """The result of `work`, or None when the client left first, which cancels it; the end of the exchange cancels
        the request."""
        task, gone = asyncio.current_task(), False
        assert task is not None

        def leave() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        self._exchange.when_gone(leave)
        try:
            return await work
        except asyncio.CancelledError:
            if not gone or task.uncancel():  # something else cancels it
                raise
            return None
        finally:
            self._exchange.when_gone(None)
            if self._quiet is not None:
                self._quiet.stop()

    def refusal(self, end: End) -> Refusal:
        """Why there is no answer, or no more of it. Raises what the replica rejected the request with."""
        rejected = self._inboxes[end.id].rejected
        if rejected is not None:
            raise rejected
        record = self._front.story.record(end.id)
        if isinstance(record.verdict, Never):
            assert self._model.ready is not None
            return never(record.verdict, self._wanted[end.id], self._model.ready.block_tokens)
        if end.stage is Stage.CANCELLED:
            return cancelled(record.reason, self._front.limits.max_seconds)
        return Refusal(500, end.message, code=NOT_FINITE if record.reason == NOT_FINITE else "failed")
