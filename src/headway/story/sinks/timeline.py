"""The timeline: the story as a trace that Perfetto (ui.perfetto.dev) and Chrome open.

The format is Google's "Trace Event Format", its JSON object form: complete slices (X), counters (C), instants (i),
flows (s, f) and names (M), times in microseconds. Everything is made from records and events, so a request's slices
are the intervals that `headway why` tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headway.core import events as ev
from headway.core.tiers import Backlog, TierLevel
from headway.core.verdict import Wait
from headway.story.reduce.record import Record
from headway.story.reduce.reducer import NO_LEVELS, Story
from headway.story.reduce.steps import StepRecord, Steps

#: The format's "processes": the engine has the steps and the counters, the requests a track each.
ENGINE, REQUESTS, STEPS_TRACK = 1, 2, 1
_MARKS = {
    ev.Preempted: "preempted",
    ev.ReloadStarted: "reload",
    ev.Reloaded: "reloaded",
    ev.ReloadDropped: "reload dropped",
    ev.Cancelled: "cancelled",
    ev.Failed: "failed",
    ev.Refused: "refused",
    ev.DraftsPaused: "drafts paused",
    ev.NoProgress: "no progress",
}
#: At one moment a slice comes first: a flow is bound to the slice that is open where it stands.
_RANKS = {"X": 0, "C": 1, "i": 2, "s": 3, "f": 3}
_NEVER = 1 << 63
TraceEvent = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment: to a request, or (`life` is None) to a model and its pool."""

    at: int
    name: str
    life: Record | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Level:
    """One model's pool, seats and queue at one moment; `waiting` is None where only a step's beginning tells it."""

    at: int
    model: str
    levels: ev.Levels
    waiting: int | None


@dataclass(frozen=True, slots=True)
class PlacedInterval:
    """One interval of a life, in its place."""

    name: str
    on: str | None
    rule: str | None
    begin: int
    end: int


class Timeline:
    """Folds events; `trace` is what they tell. `delivers` as in `Story`."""

    def __init__(self, *, model: str = "", delivers: bool = True) -> None:
        self.model = model
        self.story = Story(remembered=1 << 20, delivers=delivers)
        self.lives: list[Record] = []  # in order of arrival; an id may have had several
        self.newest_at = 0
        self._latest: dict[str, Record] = {}
        self._steps = Steps()
        self._marks: list[Mark] = []
        self._levels: list[Level] = []
        self._evictions: dict[str, int] = {}
        self._tiers: list[tuple[int, str, tuple[TierLevel, ...]]] = []

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event in."""
        self.story.fold(event)
        self._steps.fold(event)
        self.newest_at = max(self.newest_at, event.at)
        if isinstance(event, ev.Received | ev.Arrived | ev.Refused):
            record = self.story.record(event.id)
            if self._latest.get(event.id) is not record:
                self._latest[event.id] = record
                self.lives.append(record)
        if isinstance(event, ev.Loaded):
            self.model = event.model
        if isinstance(event, ev.Loaded | ev.Stepped | ev.Committed | ev.Cancelled | ev.Failed):
            waiting = event.waiting if isinstance(event, ev.Stepped) else None
            model = self._model_of(event) or next(iter(self.story.models), "")
            self._level(Level(event.at, model, self.story.models.get(model, NO_LEVELS), waiting))
        if isinstance(event, ev.Offloaded):
            self._tiers.append((event.at, event.model, event.tiers))
        name = _MARKS.get(type(event))
        life = self._latest.get(getattr(event, "id", ""))
        if name is not None and life is not None:
            self._marks.append(Mark(event.at, name, life, _facts(event)))
        if isinstance(event, ev.Recovery):
            self._marks.append(Mark(event.at, f"recovery loop {event.phase}", None, _facts(event)))

    def named(self, id: str) -> list[Record]:
        """The lives of a request, or of all requests of the list of prompts with that id; empty if there is none."""
        return [life for life in self.lives if id in (life.id, life.id.rpartition("~")[0])]

    def unknown(self) -> set[str]:
        """Ids that steps name, but whose arrival was told before the first event that was folded."""
        return {m.id for step in self._steps.records for m in step.members} - self._latest.keys()

    def trace(self, now: int, lives: Sequence[Record] | None = None) -> dict[str, Any]:
        """The trace as plain data, ready for JSON; what is open runs to `now`. With `lives` their tracks only, and
        the steps, the counters and the evictions of their time."""
        shown = self.lives if lives is None else lives
        begin = min((life.received_at for life in shown), default=now)
        end = max((life.received_at + life.elapsed_ns(now) for life in shown), default=now)
        if lives is None:
            begin = min([begin, *(step.began_at for step in self._steps.records), *(mark.at for mark in self._marks)])
            end = max(end, now)
        steps = [step for step in self._steps.records if step.began_at <= end and (step.ended_at or now) >= begin]
        drawing = _Drawing(min([begin, *(step.began_at for step in steps)]))
        drawing.engine(self.model, steps, now)
        drawing.levels(self._levels_within(begin, end))
        drawing.tiers([told for told in self._tiers if begin <= told[0] <= end])
        marks = defaultdict[int, list[Mark]](list)
        for mark in self._marks:
            marks[id(mark.life)].append(mark)
        for mark in marks[id(None)]:
            if begin <= mark.at <= end:
                drawing.mark(mark, ENGINE, STEPS_TRACK)
        for track, life in enumerate(shown, 1):
            drawing.life(track, life.id, placed_intervals(life, now), marks[id(life)])
        return drawing.finish()

    def _model_of(self, event: ev.Loaded | ev.Stepped | ev.Committed | ev.Cancelled | ev.Failed) -> str:
        if isinstance(event, ev.Cancelled | ev.Failed):
            life = self._latest.get(event.id)
            return life.model if life else ""
        return event.model

    def _level(self, level: Level) -> None:
        told = level.levels.evictions
        before = self._evictions.get(level.model, told)
        evicted = told - (before if before <= told else 0)  # another replica counts from its own start
        if evicted:
            self._marks.append(Mark(level.at, "evicted", None, {"blocks": evicted}))
        self._evictions[level.model] = told
        self._levels.append(level)

    def _levels_within(self, begin: int, end: int) -> list[Level]:
        """Those of a stretch of time, beginning with the ones that stood when it began."""
        before = {level.model: level for level in self._levels if level.at < begin}
        standing = [Level(begin, level.model, level.levels, level.waiting) for level in before.values()]
        return standing + [level for level in self._levels if begin <= level.at <= end]


def placed_intervals(life: Record, now: int) -> list[PlacedInterval]:
    """A life's intervals in their places: each begins where the one before it ends."""
    found, at = [], life.received_at
    for interval in life.life(now):
        found.append(PlacedInterval(interval.name, interval.on, interval.rule, at, at + interval.ns))
        at += interval.ns
    return found


class _Drawing:
    """The events of one trace. `origin` is the moment that it calls 0."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._names: list[TraceEvent] = []
        self._events: list[TraceEvent] = []
        self._flows = 0

    def engine(self, model: str, steps: Sequence[StepRecord], now: int) -> None:
        """One slice per step, from the beginning of its planning to its commit."""
        self._name("process_name", ENGINE, f"engine {model}".rstrip())
        self._name("thread_name", ENGINE, "steps", STEPS_TRACK)
        for step in steps:
            end = max(now, step.began_at) if step.ended_at is None else step.ended_at
            args = {
                "positions": {k: number for k, number in step.positions().items() if number or k != "evaluated"},
                "budget": step.budget,
                "left": step.budget - step.spent,
                "emitted": step.emitted,
                "waiting": step.waiting,
                "head": step.head,
                "members": step.batch(),
            }
            if step.failed:
                args["failed"] = True
            self._slice(f"step {step.step}", "step", ENGINE, STEPS_TRACK, step.began_at, end, args)

    def levels(self, levels: Sequence[Level]) -> None:
        """The counter tracks, of several models by name; a value that did not change is not said again."""
        said: dict[str, dict[str, int]] = {}
        several = len({level.model for level in levels}) > 1
        for level in levels:
            pool = level.levels
            values = {
                "blocks": {"live": pool.live, "reusable": pool.reusable, "free": pool.free},
                "seats": {"used": pool.seats_used},
            }
            if level.waiting is not None:
                values["waiting"] = {"requests": level.waiting}
            for kind, value in values.items():
                name = f"{kind} {level.model}" if several else kind
                if said.get(name) != value:
                    said[name] = value
                    self._add("C", name, "level", ENGINE, 0, level.at, args=value)

    def tiers(self, told: Sequence[tuple[int, str, tuple[TierLevel, ...]]]) -> None:
        """A counter track of the blocks in each tier, of several models by name."""
        several = len({model for _, model, _ in told}) > 1
        for at, model, tiers in told:
            name = f"tiers {model}" if several else "tiers"
            self._add("C", name, "level", ENGINE, 0, at, args={tier.name: tier.blocks for tier in tiers})

    def life(self, track: int, id: str, life: Sequence[PlacedInterval], marks: Sequence[Mark]) -> None:
        """A request's track: its intervals, what happened to it, a flow from each preemption to its resumption."""
        if track == 1:
            self._name("process_name", REQUESTS, "requests")
        self._name("thread_name", REQUESTS, id, track)
        self._names.append(
            {"ph": "M", "name": "thread_sort_index", "pid": REQUESTS, "tid": track, "args": {"sort_index": track}}
        )
        for part in life:
            awaited = {} if part.on is None else {"on": part.on, "rule": part.rule}
            self._slice(part.name, "interval", REQUESTS, track, part.begin, part.end, {"id": id, **awaited})
        for mark in marks:
            self.mark(mark, REQUESTS, track)
        preempted_at = [mark.at for mark in marks if mark.name == "preempted"]
        for at, next_at in pairwise([*preempted_at, _NEVER]):
            self._flow(track, life, at, next_at)

    def mark(self, mark: Mark, pid: int, tid: int) -> None:
        """One moment on a track."""
        self._add("i", mark.name, "event", pid, tid, mark.at, s="t", args=mark.facts)

    def finish(self) -> dict[str, Any]:
        """Names first, then everything in order of time."""
        self._events.sort(key=lambda event: (event["ts"], _RANKS[event["ph"]]))
        return {
            "traceEvents": self._names + self._events,
            "displayTimeUnit": "ms",
            "otherData": {"made_by": "headway timeline", "began_at_ns": str(self._origin)},
        }

    def _flow(self, track: int, life: Sequence[PlacedInterval], at: int, next_at: int) -> None:
        """From the preemption at `at` to the first slice in which the request moves again; none where it never does,
        or is preempted again (at `next_at`) before."""
        waits = [place for place, part in enumerate(life) if part.name == "preempted" and part.end > at]
        if not waits:
            return
        resumed = next((part for part in life[waits[0] :] if part.name != "preempted"), None)
        if resumed is None or resumed.name == "delivery" or resumed.begin >= next_at:
            return
        self._flows += 1
        for ph, moment, more in (("s", max(at, life[waits[0]].begin), {}), ("f", resumed.begin, {"bp": "e"})):
            self._add(ph, "preemption", "preemption", REQUESTS, track, moment, id=self._flows, **more)

    def _slice(self, name: str, cat: str, pid: int, tid: int, begin: int, end: int, args: dict[str, Any]) -> None:
        self._add("X", name, cat, pid, tid, begin, dur=(end - begin) / 1000, args=args)

    def _add(self, ph: str, name: str, cat: str, pid: int, tid: int, at: int, **more: Any) -> None:
        ts = (at - self._origin) / 1000
        self._events.append({"ph": ph, "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, **more})

    def _name(self, what: str, pid: int, name: str, tid: int = 0) -> None:
        self._names.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}})


def _facts(event: ev.AnyEvent) -> dict[str, Any]:
    """What an event says of the request that it is about."""
    match event:
        case ev.Preempted():
            return {"by": event.by, "lost_positions": sum(event.lost), "blocks": event.blocks, "step": event.step}
        case ev.ReloadStarted(choice=choice):
            return {"blocks": event.wait.need, "host": choice.host, "disk": choice.disk, "step": event.step}
        case ev.Reloaded():
            return {"blocks": sum(event.blocks.values())}
        case ev.ReloadDropped():
            return {"by": event.by, "blocks": event.blocks, "step": event.step}
        case ev.Cancelled():
            return {"by": event.by}
        case ev.Failed():
            return {"message": event.message, "reason": event.reason}
        case ev.Refused():
            return {"reason": event.reason}
        case ev.DraftsPaused(pause=pause):
            return {"accepted": pause.accepted, "drafted": pause.drafted, "tokens": pause.tokens}
        case ev.NoProgress(writes=Backlog() as writes):
            return {"tier": writes.tier, "writing": writes.writing, "queued": writes.queued, "times": event.times}
        case ev.NoProgress(wait=Wait() as wait):
            return {"on": wait.on, "rule": wait.rule, "short": wait.short, "times": event.times}
        case ev.Recovery():
            return {
                "cut": event.cut,
                "preempted_per_s": event.now.preempted,
                "recomputed_per_s": event.now.recomputed,
                "goodput_per_s": event.now.goodput,
            }
    return {}
