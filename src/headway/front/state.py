"""The front's state: its models, story, metrics, the link to the replica, and what is known of live requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count, takewhile
from shlex import quote
from typing import Literal

from headway.artifacts.files import ModelFiles
from headway.core import events as ev
from headway.core.clock import RealClock
from headway.core.errors import DuplicateRequest, InvalidRequest, UnknownRequest
from headway.core.request import AnyEmission, AnyRequest, EmbedRequest, Stage
from headway.core.verdict import Never
from headway.front.chronicle import Chronicle
from headway.front.departures import Departures
from headway.front.ids import plain_ids
from headway.front.inbox import Arrivals, End, Inbox
from headway.front.limits import ServeLimits
from headway.front.looks import Looks
from headway.front.models import FrontModel, front_model
from headway.front.quota import Claim, WaitingQuota
from headway.front.served import ServedModels
from headway.replica.link import Link
from headway.replica.messages import (
    Cancel,
    LoadFailed,
    Loading,
    Looked,
    Ready,
    Rejected,
    Submit,
    ToFront,
    Told,
    TurnedAway,
)
from headway.replica.options import ReplicaOptions
from headway.story.reduce.record import Record
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.metrics import Metrics
from headway.story.sinks.ring import EventRing

#: Work is present and nothing has moved for this long: `/health` fails.
STUCK_AFTER_S = 60.0
#: The replica is told so often how many requests found no place.
_TELL_AWAY_S = 1.0
#: So many steps' tokens may lie in an inbox. A client that is further behind is a slow reader.
MOST_BEHIND = 16_384

State = Literal["loading", "ready", "draining", "failed"]
_ENDS = (ev.Finished, ev.Cancelled, ev.Failed, ev.Refused)


class Front:
    """Everything between HTTP and the replica. All methods run on one event loop. `files` are the models' by served
    name. `on_alarm` is told at once, in a sentence, what whoever runs the server should know."""

    def __init__(
        self,
        files: Mapping[str, ModelFiles],
        options: ReplicaOptions,
        *,
        limits: ServeLimits | None = None,
        log: EventLog | None = None,
        log_prompts: bool = False,
        on_change: Callable[[ToFront], None] = lambda message: None,
        on_alarm: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.options = options
        self.limits = limits or ServeLimits()
        most_bytes = self.limits.max_body_bytes
        self.models = ServedModels(
            (model.served_name, front_model(files[model.served_name], model, most_bytes=most_bytes))
            for model in options.models
        )
        self.quota = WaitingQuota(self.limits.max_waiting_positions)
        self.clock = RealClock()
        self._log_prompts = log_prompts
        self.state: State = "loading"
        self.ready: Ready | None = None  # of the replica that serves now, or served last
        self.failure = ""
        self.link = Link(options, heard=self._heard, died=self._died)
        self._chronicle = Chronicle(
            self.models, log, on_alarm=on_alarm, contradicted=lambda error: self.link.distrust(error)
        )
        self.looks = Looks(lambda message: self.link.say(message))
        self._on_change = on_change
        self._inboxes: dict[str, Inbox] = {}
        self._departures = Departures()
        self._ids = {"r": count(1), "look": count(1)}
        self._moved_at = self._told_away_at = time.monotonic()
        self._untold: Counter[str] = Counter()  # turned away for want of a place since the replica was told, by model

    # -- what happened ---------------------------------------------------------------------------------------

    @property
    def story(self) -> Story:
        """The records, as of now: whoever waits meanwhile asks again."""
        return self._chronicle.story

    @property
    def metrics(self) -> Metrics:
        """As of now, likewise."""
        return self._chronicle.metrics

    @property
    def ring(self) -> EventRing:
        """As of now, likewise."""
        return self._chronicle.ring

    @property
    def log(self) -> EventLog | None:
        return self._chronicle.log

    # -- requests --------------------------------------------------------------------------------------------

    def new_id(self, method: str) -> str:
        """An id that no live request has. What only looks counts on its own, so that the first request is r-1
        however often the server was polled before."""
        kind = "r" if method == "POST" else "look"
        while (id := f"{kind}-{next(self._ids[kind])}") in self.story.live:
            pass
        return id

    def submit(
        self,
        news: Sequence[AnyRequest],
        received_at: int,
        claim: Claim | None = None,
        arrivals: Arrivals | None = None,
    ) -> list[Inbox]:
        """Send the requests of one exchange to the replica, in one message; their positions are split off from the
        exchange's `claim`, and what comes of them goes to `arrivals`. Raises DuplicateRequest, with nothing sent,
        for an id that is alive; it is until the last byte of its answer was handed over."""
        for new in news:
            if new.id in self.story.live:
                raise DuplicateRequest(new.id)
        arrivals = Arrivals() if arrivals is None else arrivals
        inboxes = [self._open(new, received_at, claim or Claim(self.quota, 0), arrivals) for new in news]
        if len(self._inboxes) == len(news):
            self._moved_at = time.monotonic()
        first, *others = news
        self.link.say(Submit(first, tuple(others)))
        return inboxes

    def _open(self, new: AnyRequest, received_at: int, claim: Claim, arrivals: Arrivals) -> Inbox:
        """A request's inbox, and the beginning of its story."""
        inbox = self._inboxes[new.id] = Inbox(arrivals)
        inbox.claim = claim.split(new.positions)
        if self.limits.max_seconds is not None:
            left_s = self.limits.max_seconds - (self.clock.now_ns() - received_at) / 1e9
            inbox.timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self.cancel, new.id, ev.TIME)
        model = self.models[new.model]
        sent_at = self.clock.now_ns()
        self._fold(ev.Received(at=received_at, id=new.id, pattern=model.pattern, model=model.name, sent_at=sent_at))
        if self._log_prompts:
            texts = (each.tokens for each in new.inputs) if isinstance(new, EmbedRequest) else (new.prompt,)
            text = "\n".join(model.tokenizer.decode(each, skip_special=False) for each in texts)
            self._fold(ev.Prompted(at=self.clock.now_ns(), id=new.id, text=text))
        return inbox

    def refuse(self, request_id: str, received_at: int, model: str, verdict: Never) -> None:
        """Tell the story of a request that could not be served even alone, and was not sent to the replica to learn
        it. Raises DuplicateRequest for an id that is alive."""
        self.check_free(request_id)
        now, pattern = self.clock.now_ns(), self.models[model].pattern
        self._fold(ev.Received(at=received_at, id=request_id, pattern=pattern, model=model, sent_at=now))
        self._fold(ev.Refused(at=now, id=request_id, model=model, reason=verdict.rule, verdict=verdict))

    def turn_away(self, reason: str, model: str | None = None) -> None:
        """Count a request that never got a record: of the first model, where none is known to be meant."""
        self._chronicle.turn_away(model or next(iter(self.models)), reason)

    def no_place(self, model: FrontModel | None, requests: int) -> None:
        """The same for want of a place in the queue. The replica is told how many such `requests` there were: it is
        demand that a cut of admission keeps out."""
        name = next(iter(self.models)) if model is None else model.name
        self.turn_away("queue", name)
        self._untold[name] += requests

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

    def leave(self, request_id: str, dropped: str | None = None) -> None:
        """The exchange that this request belongs to is over: its last byte was handed over, or its client left, or
        was `dropped`. Unless it ended before, it is cancelled, since nobody will read its answer."""
        inbox = self._inboxes.get(request_id)
        if inbox is None:
            record = self.story.live.get(request_id)
            by = dropped if record is not None and record.stage is Stage.FINISHED else None
            self._fold(ev.Delivered(at=self.clock.now_ns(), id=request_id, dropped=by))
        else:
            inbox.left, inbox.dropped = True, dropped
            self.cancel(request_id, dropped or "client")

    def drain(self, patience_s: float) -> None:
        """Take nothing more on; what is still alive after `patience_s` is cancelled."""
        if self.state != "failed":
            self.state = "draining"
        asyncio.get_running_loop().call_later(patience_s, self._cut_off)

    def find(self, id: str) -> list[Record]:
        """The record of a request, named with or without OpenAI's prefix; for an exchange with a list of prompts
        those of all its requests. Raises UnknownRequest."""
        for plain in plain_ids(id):
            if self._known(plain):
                return [self.story.record(plain)]
            if self._known(f"{plain}~0"):
                members = takewhile(self._known, (f"{plain}~{i}" for i in count()))
                return [self.story.record(member) for member in members]
        raise UnknownRequest(id, self._elsewhere(id))

    def check_free(self, id: str) -> None:
        """Raises DuplicateRequest when a request of that id is alive, or one of a list of prompts under that id."""
        if (live := self.story.alive(id)) is not None:
            raise DuplicateRequest(live)

    def _elsewhere(self, id: str) -> str:
        """Where to look for a request that is not remembered any more."""
        if self.log is None:
            return "; a server with --event-log keeps the story of older ones"
        return (
            f"; an older one's story is in the event log: headway why {quote(id)} --log {quote(str(self.log.path))}"
        )

    def _known(self, id: str) -> bool:
        return id in self.story.live or id in self.story.ended

    def close(self) -> None:
        """Nothing is rendered any more."""
        for model in self.models.values():
            model.close()

    # -- numbers ---------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that wait, those included whose prompt is still being tokenised."""
        return self.quota.coming + len(self.story.waiting)

    def retry_after_s(self, *, requests: int = 0, positions: int = 0) -> int:
        """Seconds until so many more requests, or positions, will likely have left the queue."""
        return self._departures.wait_s(self.clock.now_ns() / 1e9, requests=requests, positions=positions)

    def stuck_s(self) -> float:
        """How long work has been present without anything moving; 0 when there is none."""
        return time.monotonic() - self._moved_at if self._inboxes else 0.0

    # -- the replica's words ---------------------------------------------------------------------------------

    def _heard(self, message: ToFront) -> None:
        match message:
            case Told():
                self._told(message)
            case Ready():
                self._are_ready(message)
                if self.state == "loading":
                    self.state = "ready"
            case Rejected():
                self._rejected(message)
            case LoadFailed():
                self.state, self.failure = "failed", message.message
            case Looked():
                self.looks.heard(message)
            case Loading():
                pass
        if not isinstance(message, Told | Rejected | Looked):
            self._on_change(message)

    def _are_ready(self, message: Ready) -> None:
        self.ready = message
        for model in message.models:
            self.models[model.name].ready = model
            self.metrics.size(
                model.name,
                seats=model.seats,
                reserved_bytes=model.reserved_bytes,
                block_tokens=model.block_tokens,
            )
            self._fold(model.event(self.clock.now_ns(), message.threads))

    def _told(self, message: Told) -> None:
        """Whatever is wrong in what the replica says: of those that it says are over, none stays."""
        self._moved_at = time.monotonic()
        if self._untold and self._moved_at - self._told_away_at >= _TELL_AWAY_S:
            self._tell_away()
        steps = [event for event in message.events if isinstance(event, ev.Stepped | ev.Committed)]
        if len(steps) == len(message.events):  # those who run go on, and nobody else is told of
            for emission in message.emissions:
                self._pass_on(emission)
            self._chronicle.tell_soon(steps)
            return
        over: list[str] = []
        try:
            for event in message.events:
                self._fold(event)
                if isinstance(event, _ENDS):
                    over.append(event.id)
                else:
                    self._advance(event)
            for emission in message.emissions:
                self._pass_on(emission)
        finally:
            for request_id in over:
                self._close(request_id)

    def _tell_away(self) -> None:
        """Once in a while, as the replica steps, so that a flood costs it little."""
        self._told_away_at = self._moved_at
        for name, requests in self._untold.items():
            self.link.say(TurnedAway(name, requests))
        self._untold.clear()

    def _advance(self, event: ev.AnyEvent) -> None:
        """What an exchange waits for beside its answer: its request is queued, or admitted."""
        if isinstance(event, ev.Supplied) or (isinstance(event, ev.Arrived) and event.wait is None):
            inbox = self._inboxes.get(event.id)
            if inbox:
                inbox.settled.set()
        if isinstance(event, ev.Admitted) and (inbox := self._inboxes.get(event.id)):
            self._free_place(inbox)

    def _free_place(self, inbox: Inbox, *, refused: bool = False) -> None:
        """A request is no longer among those that wait to be admitted at first. One that was `refused` never was."""
        if inbox.claim is not None:
            if not refused:
                self._departures.leave(self.clock.now_ns() / 1e9, inbox.claim.positions)
            inbox.claim.release()
            inbox.claim = None

    def _pass_on(self, emission: AnyEmission) -> None:
        if inbox := self._inboxes.get(emission.id):
            inbox.arrivals.put(emission)
            if len(inbox.arrivals) > MOST_BEHIND:
                self.cancel(emission.id, ev.SLOW_READER)

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
        for model in self.ready.models if self.ready else ():
            gone, step, at = ev.Levels(0, 0, model.blocks, 0, 0), self.story.step, self.clock.now_ns()
            self._fold(ev.Committed(at=at, step=step, model=model.name, outcomes=(), forks=(), levels=gone))
        message = f"the replica process ended (exit status {status}) while this request was in flight"
        alive = [record.id for record in self.story.live.values() if not record.ended]
        for request_id in dict.fromkeys([*self._inboxes, *alive]):
            self._fold(ev.Failed(at=self.clock.now_ns(), id=request_id, message=message))
            self._close(request_id)

    def _close(self, request_id: str) -> None:
        inbox = self._inboxes.pop(request_id, None)
        if inbox is None:
            self.leave(request_id)  # nobody asked for it, so it must not stay
        else:
            record = self.story.record(request_id)
            if inbox.timer is not None:
                inbox.timer.cancel()
            self._free_place(inbox, refused=record.stage is Stage.REFUSED)
            end = End(request_id, record.stage, record.message or "")
            if not inbox.settled.is_set():
                inbox.refused = end
                inbox.settled.set()
            inbox.arrivals.put(end)
            inbox.ended.set()
            if inbox.left:
                self.leave(request_id, inbox.dropped)

    def _cut_off(self) -> None:
        for request_id in self._inboxes:
            self.cancel(request_id, "drain")

    def _fold(self, event: ev.AnyEvent) -> None:
        self._chronicle.tell(event)
