"""The front's state: story, metrics, tokenizer, the link to the replica, and an inbox for each live request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from headway.artifacts.files import ModelFiles
from headway.clock import RealClock
from headway.errors import DuplicateRequest, InvalidRequest
from headway.replica.link import Link
from headway.replica.messages import Cancel, LoadFailed, Loading, Ready, Rejected, Submit, ToFront, Told
from headway.replica.options import ReplicaOptions
from headway.request import Emission, NewRequest, Stage
from headway.serve.shapes import plain_ids
from headway.story import events as ev
from headway.story.metrics import Metrics
from headway.story.record import Record
from headway.story.reducer import Story
from headway.text.template import ChatTemplate
from headway.text.tokenizer import Tokenizer

#: Work is present and nothing has moved for this long: `/health` fails.
STUCK_AFTER_S = 60.0
_RATE_OVER_S = 30.0

State = Literal["loading", "ready", "draining", "failed"]
_ENDS = (ev.Finished, ev.Cancelled, ev.Failed, ev.Refused)


@dataclass(frozen=True)
class End:
    """Nothing more will come for a request; `stage` says how it ended."""

    stage: Stage
    message: str = ""


@dataclass
class Inbox:
    """What the replica said about one live request, in order, ending with an `End`.

    `settled` is set once it is queued or over; `refused` is its end when it never was queued; `left` says that its
    exchange is over already.
    """

    queue: asyncio.Queue[Emission | End] = field(default_factory=asyncio.Queue)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    refused: End | None = None
    rejected: InvalidRequest | DuplicateRequest | None = None
    left: bool = False


class Front:
    """Everything between HTTP and the replica. All methods run on one event loop."""

    def __init__(
        self,
        files: ModelFiles,
        options: ReplicaOptions,
        *,
        served_name: str,
        max_waiting: int,
        on_change: Callable[[ToFront], None] = lambda message: None,
    ) -> None:
        self.served_name = served_name
        self.max_waiting = max_waiting
        self.clock = RealClock()
        self.story = Story(delivers=True)
        self.metrics = Metrics(self.story)
        self.tokenizer = Tokenizer(files)
        self.template = ChatTemplate(files)
        self.files = files
        self.created = int(time.time())
        self.state: State = "loading"
        self.ready: Ready | None = None
        self.failure = ""
        self.link = Link(options, heard=self._heard, died=self._died)
        self._on_change = on_change
        self._inboxes: dict[str, Inbox] = {}
        self._ends: deque[float] = deque(maxlen=1000)
        self._ids = {"r": count(1), "look": count(1)}
        self._moved_at = time.monotonic()

    # -- requests --------------------------------------------------------------------------------------------

    def new_id(self, method: str) -> str:
        """An id that no live request has. What only looks counts on its own, so that the first request is r-1
        however often the server was polled before."""
        kind = "r" if method == "POST" else "look"
        while (id := f"{kind}-{next(self._ids[kind])}") in self.story.live:
            pass
        return id

    def submit(self, new: NewRequest, received_at: int) -> Inbox:
        """Send a request to the replica. Raises DuplicateRequest for an id that is alive; it is until the last byte
        of its answer was handed over."""
        if new.id in self.story.live:
            raise DuplicateRequest(new.id)
        inbox = self._inboxes[new.id] = Inbox()
        self._fold(ev.Received(at=received_at, id=new.id))
        if len(self._inboxes) == 1:
            self._moved_at = time.monotonic()
        self.link.say(Submit(new))
        return inbox

    def cancel(self, request_id: str, by: str) -> None:
        """Ask the replica to end a request; its inbox tells when it has."""
        if request_id in self._inboxes:
            self.link.say(Cancel(request_id, by))

    async def cancelled(self, record: Record) -> None:
        """End a request as DELETE does, and return when it has ended (at most one step later)."""
        inbox = self._inboxes.get(record.id)
        if inbox is not None:
            self.cancel(record.id, "request")
            await inbox.ended.wait()

    def leave(self, request_id: str) -> None:
        """The exchange that this request belongs to is over: its last byte was handed over, or its client left. In
        the second case it is cancelled, since nobody will read its answer."""
        inbox = self._inboxes.get(request_id)
        if inbox is None:
            self._fold(ev.Delivered(at=self.clock.now_ns(), id=request_id))
        else:
            inbox.left = True
            self.cancel(request_id, "client")

    def drain(self, patience_s: float) -> None:
        """Take nothing more on; what is still alive after `patience_s` is cancelled."""
        if self.state != "failed":
            self.state = "draining"
        asyncio.get_running_loop().call_later(patience_s, self._cut_off)

    def find(self, id: str) -> Record:
        """The record of a request, named with or without OpenAI's prefix. Raises UnknownRequest."""
        known = (i for i in plain_ids(id) if i in self.story.live or i in self.story.ended)
        return self.story.record(next(known, id))

    # -- numbers ---------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return sum(record.stage in (Stage.RECEIVED, Stage.WAITING) for record in self.story.live.values())

    def retry_after_s(self) -> int:
        """Seconds until a place in the queue is likely free: one request's share of the recent rate of ends."""
        now = time.monotonic()
        recent = sum(now - at < _RATE_OVER_S for at in self._ends)
        return max(1, round(_RATE_OVER_S / recent)) if recent else 5

    def stuck_s(self) -> float:
        """How long work has been present without anything moving; 0 when there is none."""
        return time.monotonic() - self._moved_at if self._inboxes else 0.0

    # -- the replica's words ---------------------------------------------------------------------------------

    def _heard(self, message: ToFront) -> None:
        match message:
            case Told():
                self._told(message)
            case Ready(facts=facts):
                self.ready = message
                self.metrics.size(
                    seats=message.seats,
                    reserved_bytes=message.blocks * facts.block_bytes,
                    block_tokens=message.block_tokens,
                )
                self.story.levels = ev.Levels(0, 0, message.blocks, 0, 0)
                if self.state == "loading":
                    self.state = "ready"
            case Rejected():
                self._rejected(message)
            case LoadFailed():
                self.state, self.failure = "failed", message.message
            case Loading():
                pass
        if not isinstance(message, Told | Rejected):
            self._on_change(message)

    def _told(self, message: Told) -> None:
        self._moved_at = time.monotonic()
        for event in message.events:
            self._fold(event)
            if isinstance(event, ev.Arrived) and (inbox := self._inboxes.get(event.id)):
                inbox.settled.set()
        for emission in message.emissions:
            if inbox := self._inboxes.get(emission.id):
                inbox.queue.put_nowait(emission)
        for event in message.events:
            if isinstance(event, _ENDS):
                self._close(event.id)

    def _rejected(self, message: Rejected) -> None:
        inbox = self._inboxes.get(message.id)
        if inbox is not None:
            by_id = message.field == "id"
            inbox.rejected = DuplicateRequest(message.id) if by_id else InvalidRequest(message.field, message.message)
            self._fold(ev.Refused(at=self.clock.now_ns(), id=message.id, reason="invalid"))
            self._close(message.id)

    def _died(self, status: int) -> None:
        """The replica ended by itself: its state is gone, what was alive fails, and nothing is served until another
        one is there."""
        if self.state == "ready":
            self.state = "loading"
        if self.ready is not None:
            gone = ev.Levels(0, 0, self.ready.blocks, 0, 0)
            self._fold(ev.Committed(at=self.clock.now_ns(), step=self.story.step, outcomes=(), forks=(), levels=gone))
        message = f"the replica process ended (exit status {status}) while this request was in flight"
        for request_id in list(self._inboxes):
            self._fold(ev.Failed(at=self.clock.now_ns(), id=request_id, message=message))
            self._close(request_id)

    def _close(self, request_id: str) -> None:
        inbox = self._inboxes.pop(request_id, None)
        if inbox is not None:
            record = self.story.record(request_id)
            self._ends.append(time.monotonic())
            end = End(record.stage, record.message or "")
            if not inbox.settled.is_set():
                inbox.refused = end
                inbox.settled.set()
            inbox.queue.put_nowait(end)
            inbox.ended.set()
            if inbox.left:
                self.leave(request_id)

    def _cut_off(self) -> None:
        for request_id in self._inboxes:
            self.cancel(request_id, "drain")

    def _fold(self, event: ev.AnyEvent) -> None:
        self.metrics.fold(event)
        self.story.fold(event)
