"""What is remembered of one request. Only the reducer writes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.events import Forecast
from headway.core.miss import Miss
from headway.core.price import Price
from headway.core.request import ENDS, Counts, Pause, Stage
from headway.core.tiers import ReloadChoice, TierName
from headway.core.verdict import Verdict

#: Preemptions of one request that are remembered, the latest ones.
MOST_PREEMPTIONS = 8
#: The closed list of interval names.
INTERVALS = (
    "received", "queued", "prefill", "decode", "stalled", "preempted", "recompute",
    "evaluate", "encode", "update", "decode_pixels", "delivery",
)  # fmt: skip


@dataclass(slots=True)
class Interval:
    """One stretch of a request's life. Waits carry what was awaited (`on`) and the rule that said so."""

    name: str
    on: str | None
    rule: str | None
    ns: int

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        return (self.name, self.on, self.rule)


@dataclass(frozen=True, slots=True)
class Preemption:
    """In which step it was preempted, so that who could go on, and what it was to cost."""

    step: int
    by: str
    price: Price


@dataclass(slots=True)
class SequenceRecord:
    index: int
    prompt: int
    computed: int = 0
    emitted: int = 0
    counts: Counts = field(default_factory=Counts)
    blocks: list[int] = field(default_factory=list)
    last_token_at: int | None = None
    pauses: list[Pause] = field(default_factory=list)
    finish: str | None = None

    @property
    def known(self) -> int:
        return self.prompt + self.emitted


@dataclass(slots=True)
class PartRecord:
    """A part whose progress is counted in items: `done` of `of` are. `positions` are what it brings, where the model
    evaluates positions, and `step` is the last that it was part of."""

    of: int
    done: int = 0
    positions: int | None = None
    step: int | None = None


@dataclass(slots=True, eq=False)
class Record:
    """One request's life so far. All times are nanoseconds of the monotonic clock.

    intervals   closed ones, in order, equal neighbours merged; the open one is `doing` since `doing_since`
    order       its place in the queue: smaller goes first
    stages      what the model does with each part, in order; empty where that is not told
    promised    whether it was promised to be complete by its deadline
    forecast    what its model's newest step expected of it, where it has a deadline and that is known
    choice      whether what was found for it in tiers was reloaded, and by which numbers; None: nothing was found
    reloaded    blocks that were brought back for it, by tier
    dropped     by whom the delivery of a finished answer was given up
    preempted_for who could go on because it was preempted, each once; itself, where it could not grow
    preempted   its latest preemptions, `MOST_PREEMPTIONS` at most
    ended_at    when the last byte was handed over (or when it ended, where nobody delivers)
    """

    id: str
    pattern: str
    received_at: int
    model: str = ""
    stage: Stage = Stage.RECEIVED
    verdict: Verdict | None = None
    since_step: int = 0
    since_at: int = 0
    order: tuple[int, ...] = ()
    priority: int = 0
    max_tokens: int = 0
    deadline_at: int | None = None
    promised: bool = False
    forecast: Forecast | None = None
    sequences: list[SequenceRecord] = field(default_factory=list)
    parts: list[PartRecord] = field(default_factory=list)
    stages: tuple[str, ...] = ()
    preemptions: int = 0
    preempted_for: list[str] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    first_reused: int = 0
    miss: Miss | None = None
    choice: ReloadChoice | None = None
    reloaded: dict[TierName, int] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    doing: tuple[str, str | None, str | None] = ("received", None, None)
    doing_since: int = 0
    reason: str | None = None
    message: str | None = None
    dropped: str | None = None
    ended_at: int | None = None
    prompt_text: str | None = None

    @property
    def ended(self) -> bool:
        return self.stage in ENDS

    @property
    def slack_ns(self) -> int | None:
        """How long before its deadline it is complete as planned, where that is known."""
        if self.deadline_at is None or self.forecast is None or not self.forecast.ready_at:
            return None
        return self.deadline_at - self.forecast.ready_at

    def turn_to(self, name: str, at: int, on: str | None = None, rule: str | None = None) -> None:
        """From `at` on the request's time belongs to another interval."""
        if self.ended_at is None and (name, on, rule) != self.doing:
            self._close(at)
            self.doing = (name, on, rule)

    def end(self, at: int) -> None:
        """The last interval ends; nothing is added afterwards."""
        if self.ended_at is None:
            self._close(at)
            self.ended_at = max(at, self.doing_since)

    def life(self, now: int) -> list[Interval]:
        """All intervals, the open one up to `now`. They sum to `elapsed_ns(now)` exactly."""
        closed = [Interval(i.name, i.on, i.rule, i.ns) for i in self.intervals]
        if self.ended_at is None:
            self._add(closed, Interval(*self.doing, max(0, now - self.doing_since)))
        return closed

    def elapsed_ns(self, now: int) -> int:
        end = max(now, self.doing_since) if self.ended_at is None else self.ended_at
        return end - self.received_at

    def _close(self, at: int) -> None:
        at = max(at, self.doing_since)
        self._add(self.intervals, Interval(*self.doing, at - self.doing_since))
        self.doing_since = at

    @staticmethod
    def _add(intervals: list[Interval], new: Interval) -> None:
        if intervals and intervals[-1].key == new.key:
            intervals[-1].ns += new.ns
        elif new.ns:
            intervals.append(new)
