"""What a diagnosis looks at: events folded into records, and beside them every step and every gap between tokens.

Times are nanoseconds of the monotonic clock. A step's `held_up_ns` is its time once for each request that was there,
running or waiting: what making the step shorter by all of itself would spare them together. Costs are in this unit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headway.core import events as ev
from headway.core.request import Stage
from headway.core.tiers import Fault, ReloadChoice, TierName
from headway.core.verdict import Wait, awaits_input
from headway.story.reduce.record import Record
from headway.story.reduce.recovery import Recovery
from headway.story.reduce.reducer import Story

#: The latest gaps between tokens that are kept; a long log has millions.
MOST_GAPS = 200_000
_OF_TEXT = ("prefill", "decode", "recompute")


@dataclass(slots=True)
class ObservedStep:
    """One step. `prefill` are positions by request, `evaluated` what other items came to, in their unit; `context`
    all positions that its members had at its end; `waits` one verdict of each rule that somebody waits by, `stalled`
    how many running requests wait; `host_gap_ns` the time between the commit before it and its start, None when there
    was no work in between."""

    step: int
    at: int
    budget: int
    sequences: int
    requests: int
    decoded: int
    prefill: dict[str, int]
    recomputed: int
    evaluated: int
    context: int
    waiting: int
    stalled: int
    head: str | None
    waits: dict[str, Wait]
    levels: ev.Levels
    bound: ev.Bound | None
    host_gap_ns: int | None
    ended_at: int | None = None
    next_at: int | None = None

    @property
    def positions(self) -> int:
        return self.decoded + sum(self.prefill.values()) + self.recomputed + self.evaluated

    @property
    def ran_ns(self) -> int:
        """From its start to its commit; 0 while it runs."""
        return 0 if self.ended_at is None else self.ended_at - self.at

    @property
    def owned_ns(self) -> int:
        """Until the next step's start, or until its commit where nothing was to be done."""
        return self.ran_ns if self.next_at is None else self.next_at - self.at

    @property
    def held_up_ns(self) -> int:
        return self.owned_ns * (self.requests + self.waiting)


@dataclass(slots=True, frozen=True)
class Gap:
    """`ns` between two emissions of one sequence, of which `step` made the later one and `after` the earlier one."""

    id: str
    after: int
    step: int
    ns: int


@dataclass(slots=True)
class ObservedRequest:
    """What a record does not hold: moments, and how many steps its prompt took. `queue_ns` is how long it lay between
    front and replica while no step ran that it had to await."""

    id: str
    received_at: int
    sent_at: int | None = None
    arrived: ev.Arrived | None = None
    queue_ns: int = 0
    chunks: int = 0
    ended_at: int | None = None
    delivered_at: int | None = None


@dataclass(frozen=True)
class Machine:
    """A local server's machine while it was looked at: the share of its processors' time that another virtual
    machine took (None where that is not known), how many processes wanted each processor (the load average), and
    memory that is free."""

    steal: float | None
    load: float
    free_bytes: int | None = None


@dataclass
class Observations:
    """Folds one model's events in order. What happened before `since_ns` is folded into records, and counts nowhere
    else. `others_ns` are the durations of the other models' steps, by name; with those `story` is shared. `evicting`
    has, for each step that evicted blocks, who took blocks in it, and `evicted` who missed a prefix that had been
    evicted, in which step it was, and how many positions of the prompt were left to compute. `declined` are decisions
    to compute what lies in tiers."""

    model: str = ""
    loaded: ev.Loaded | None = None
    machine: Machine | None = None
    since_ns: int = -(1 << 62)
    story: Story = field(default_factory=lambda: Story(remembered=1 << 20, delivers=True))
    steps: list[ObservedStep] = field(default_factory=list)
    gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=MOST_GAPS))
    requests: dict[str, ObservedRequest] = field(default_factory=dict)
    preemptions: list[ev.Preempted] = field(default_factory=list)
    stuck: list[ev.NoProgress] = field(default_factory=list)
    evicting: dict[int, tuple[str, ...]] = field(default_factory=dict)
    evicted: list[tuple[str, int, int]] = field(default_factory=list)
    pauses: list[ev.DraftsPaused] = field(default_factory=list)
    recovery: Recovery = field(default_factory=Recovery)
    turned_away: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    tier_faults: Counter[tuple[TierName, Fault]] = field(default_factory=Counter)
    tier_words: str = ""
    reloaded: Counter[TierName] = field(default_factory=Counter)
    declined: list[ReloadChoice] = field(default_factory=list)
    others_ns: dict[str, list[int]] = field(default_factory=dict)
    most_held: int = 0
    first_at: int | None = None
    last_at: int = 0
    _committed_at: int | None = None
    _working: bool = False
    _passed_at: int | None = None
    _taking: list[str] = field(default_factory=list)
    _emitted_in: dict[tuple[str, int], int] = field(default_factory=dict)

    def fold_all(self, events: Iterable[ev.AnyEvent]) -> Observations:
        for event in events:
            self.fold(event)
        return self

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event in."""
        self.note(event)
        self.story.fold(event)
        self.settle(event)

    def note(self, event: ev.AnyEvent) -> None:
        """Take in what is seen before the story folds it."""
        counted = event.at >= self.since_ns and not isinstance(event, ev.Loaded)
        if counted:
            self.recovery.fold(event)
            self.first_at = event.at if self.first_at is None else min(self.first_at, event.at)
            self.last_at = max(self.last_at, event.at)
        match event:
            case ev.Loaded():
                self.loaded = event
                self._working = False
            case ev.Stepped():
                self._stepped(event, counted)
            case ev.Committed():
                self._committed(event, counted)
            case _ if counted:
                self._noted(event)

    def settle(self, event: ev.AnyEvent) -> None:
        """Take in what is seen once the story has folded it."""
        if isinstance(event, ev.Committed):
            self._working = event.levels.seats_used > 0 or self._has_work()
        elif isinstance(event, ev.Finished | ev.Cancelled | ev.Failed):
            self._working = self._working and self._has_work()

    def pass_turn(self, model: str, event: ev.Stepped | ev.Committed) -> None:
        """Another model's step begins, or is over: the time in between is nobody's gap."""
        if isinstance(event, ev.Stepped):
            self._passed_at = event.at
            last = self.steps[-1] if self.steps else None
            if last is not None and last.next_at is None:
                last.next_at = event.at if self._working else last.ended_at
            return
        if self._passed_at is not None and event.at >= self.since_ns:
            self.others_ns.setdefault(model, []).append(event.at - self._passed_at)
        self._committed_at, self._passed_at = event.at, None
        self._working = self._has_work()

    # -- numbers that several findings need ------------------------------------------------------------------

    @property
    def done(self) -> list[ObservedStep]:
        """The steps whose result is in."""
        return [step for step in self.steps if step.ended_at is not None]

    @property
    def held_up_ns(self) -> int:
        return sum(step.held_up_ns for step in self.steps)

    @property
    def gap_ms(self) -> float | None:
        """The gap between tokens that bounds a step's budget; None where that is a fixed number."""
        return self.loaded.gap_ms if self.loaded else None

    @property
    def seats(self) -> int:
        """Of the replica; as many as were ever used where no event tells."""
        return self.loaded.seats if self.loaded else max((step.levels.seats_used for step in self.steps), default=0)

    def records(self) -> Iterator[Record]:
        """Of the requests that were observed."""
        for record in (*self.story.ended.values(), *self.story.live.values()):
            if record.id in self.requests and self.model in ("", record.model):
                yield record

    def lives_ns(self) -> int:
        """The requests' times from their arrival to their last byte, or to now, together."""
        ends = ((r, r.delivered_at or r.ended_at or self.last_at) for r in self.requests.values())
        return sum(max(0, end - request.received_at) for request, end in ends)

    # -- one method per event --------------------------------------------------------------------------------

    def _noted(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.TurnedAway():
                self.turned_away.update(event.counts)
            case ev.Received():
                self.requests[event.id] = ObservedRequest(event.id, event.at, event.sent_at)
            case ev.Arrived():
                self._arrived(event)
            case ev.Admitted(miss=miss):
                self._taking.append(event.id)
                if event.choice is not None:
                    self.declined.append(event.choice)
                if miss is not None and miss.why == "evicted":
                    known = self.requests.get(event.id)
                    prompt = known.arrived.prompt if known and known.arrived else miss.at
                    self.evicted.append((event.id, miss.step, prompt - miss.at))
            case ev.NoProgress():
                self.stuck.append(event)
            case ev.Preempted():
                self.preemptions.append(event)
            case ev.DraftsPaused():
                self.pauses.append(event)
            case ev.Offloaded():
                for tier, faults in event.faults.items():
                    self.tier_faults.update({(tier, fault): number for fault, number in faults.items()})
                self.tier_words = event.words or self.tier_words
            case ev.ReloadStarted():
                self._taking.append(event.id)
            case ev.Reloaded():
                self.reloaded.update(event.blocks)
            case ev.Finished() | ev.Cancelled() | ev.Failed() | ev.Refused():
                ended = self.requests.setdefault(event.id, ObservedRequest(event.id, event.at))
                ended.ended_at = event.at
            case ev.Delivered():
                if (known := self.requests.get(event.id)) is not None:
                    known.delivered_at = event.at

    def _arrived(self, event: ev.Arrived) -> None:
        known = self.requests.get(event.id)
        if known is None or known.ended_at is not None:
            known = self.requests[event.id] = ObservedRequest(event.id, event.at)
        known.arrived = event
        if known.sent_at is not None:
            running = self.steps[-1] if self.steps and self.steps[-1].ended_at is None else None
            known.queue_ns = max(0, (running.at if running else event.at) - known.sent_at)

    def _stepped(self, event: ev.Stepped, counted: bool) -> None:
        gap = event.at - self._committed_at if self._working and self._committed_at is not None else None
        if gap is not None and self.steps and self.steps[-1].next_at is None:
            self.steps[-1].next_at = event.at
        if not counted or not (event.members or event.waits):
            return  # it only copies between pool and tiers
        taking, self._taking = (*self._taking, *(grown.id for grown in event.grown)), []
        if self.steps and event.levels.evictions > self.steps[-1].levels.evictions:
            self.evicting[event.step] = taking
        prefill: Counter[str] = Counter()
        for member in event.members:
            if member.doing == "prefill":
                prefill[member.id] += member.positions
        for id in prefill:
            if (known := self.requests.get(id)) is not None:
                known.chunks += 1
        running = {id for id in event.waits if self._stage(id) is Stage.RUNNING}
        self.steps.append(
            ObservedStep(
                step=event.step,
                at=event.at,
                budget=event.budget,
                sequences=len(event.members),
                requests=len({member.id for member in event.members} | running),
                decoded=sum(m.positions for m in event.members if m.doing == "decode"),
                prefill=dict(prefill),
                recomputed=sum(m.positions for m in event.members if m.doing == "recompute"),
                evaluated=sum(m.positions for m in event.members if m.doing not in _OF_TEXT),
                context=sum(m.start + m.positions for m in event.members),
                waiting=event.waiting,
                stalled=len(running),
                head=event.waits[event.head].rule if event.head else None,
                waits={wait.rule: wait for wait in event.waits.values()},
                levels=event.levels,
                bound=event.bound,
                host_gap_ns=gap,
            )
        )

    def _committed(self, event: ev.Committed, counted: bool) -> None:
        self._committed_at = event.at
        last = self.steps[-1] if counted and self.steps else None
        if last is not None and last.step == event.step and last.ended_at is None:
            last.ended_at = event.at
        for outcome in event.outcomes:
            self.most_held = max(self.most_held, outcome.held)
            if counted:
                for kind in ("prefilled", "decoded", "recomputed", "rejected", "accepted", "emitted"):
                    self.counts[kind] += getattr(outcome, kind)
            if outcome.emitted:
                self._emitted(outcome, event, counted)

    def _emitted(self, outcome: ev.Outcome, event: ev.Committed, counted: bool) -> None:
        id, index = outcome.id, outcome.index
        before = self._emitted_in.get((id, index))
        self._emitted_in[id, index] = event.step
        if outcome.finish:
            del self._emitted_in[id, index]
        record = self.story.live.get(id)
        last_at = record.sequences[index].last_token_at if record and record.sequences else None
        if counted and before is not None and last_at is not None:
            self.gaps.append(Gap(id, before, event.step, event.at - last_at))

    def _stage(self, id: str) -> Stage | None:
        record = self.story.live.get(id)
        return record.stage if record else None

    def _has_work(self) -> bool:
        """Whether somebody could move who was there at the last commit."""
        committed_at = self._committed_at or 0
        for record in self.story.live.values():
            if self.model not in ("", record.model):
                continue
            waits = record.stage is Stage.WAITING and not awaits_input(record.verdict)
            if (waits or record.stage is Stage.RUNNING) and record.received_at <= committed_at:
                return True
        return False
