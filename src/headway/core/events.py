"""What happened, in the order in which it happened. Everything that Headway tells is folded from these.

`at` is nanoseconds of the monotonic clock, the same for front and replica. There is no event per token: `Stepped`
carries a step's membership, spending, pool levels and everyone who was judged and waits; `Committed` what came of it.
Events hold no prompt text and no token ids.

Which blocks of a pool are live, reusable or free follows from the events, without the pool. A block is live from the
event that names it in a table (`Admitted`, `ReloadStarted`, `Grown`) until every sequence that it was named for gave
it back. It is reusable from an event that lists it under `reusable` until one names it in a table: it was matched
then, or evicted. `Loaded` empties the pool, and so does a replica's end (then `levels` count no reusable block).
Every other block is free.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headway.core.miss import Miss
from headway.core.price import Price
from headway.core.recovery import NO_DEMAND, Demand, Phase, Rates
from headway.core.request import Pause
from headway.core.tiers import Backlog, Fault, ReloadChoice, TierLevel, TierName
from headway.core.verdict import Never, Wait

#: The numbers of blocks over which the beginnings of prompts are compared.
BEGINNINGS = (1, 4, 16, 64)
#: By whom a request ends that took too long, or whose client stopped reading.
TIME, SLOW_READER, GRAMMAR = "time", "slow reader", "grammar"
#: Why a request failed whose positions came out as NaN or infinite.
NOT_FINITE = "not_finite"


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="event", kw_only=True):
    at: int


class Loaded(Event, frozen=True, tag="loaded", kw_only=True):
    """A model of a replica is ready: its resources, and in words which kernels compute (`kernels`). The blocks of a
    pool that is counted in bytes are bytes; `weights` and `state` are data types, and `weights_why` says why the
    weights have theirs, where none was asked for. With `gap_ms` the budget of a step follows the time, up to
    `step_tokens`.
    """

    model: str
    blocks: int
    block_tokens: int
    block_bytes: int
    seats: int
    step_tokens: int
    threads: int
    gap_ms: float | None = None
    weights: str
    weights_why: str = ""
    state: str = ""
    kernels: dict[str, str] = {}
    pattern: str = "text"
    tiers: tuple[TierLevel, ...] = ()


class TurnedAway(Event, frozen=True, tag="turned_away", kw_only=True):
    """Requests that the front turned away before they had a record, since the last such event: counts by reason."""

    counts: dict[str, int]


class Received(Event, frozen=True, tag="received", kw_only=True):
    """The front read the headers of a request (`at` is that moment), and sent it to the replica at `sent_at`."""

    id: str
    pattern: str = "text"
    model: str = ""
    sent_at: int | None = None


class Prompted(Event, frozen=True, tag="prompted", kw_only=True):
    """What a request's prompt says. Only with `--log-prompts`: no other event holds any text."""

    id: str
    text: str


class Arrived(Event, frozen=True, tag="arrived", kw_only=True):
    """The engine took it. `order` is its place in the queue: smaller goes first. With `wait` it is not in the queue
    yet: it awaits something from outside the step. `parts` are, for a pattern whose progress is counted in items, the
    items of each of its parts, `positions` the positions of each where they are evaluated whole, and `stages` what
    the model does with each, in order; a text has `n` sequences of `prompt` positions instead.

    Prompts of one `cache_salt` whose first 1, 4, 16 and 64 blocks are equal have equal numbers in `beginnings`,
    which is as long as the prompt allows; requests of one salt have the same `salt`, 0 without one. The numbers tell
    nothing but that. `promised` says whether it was promised to be complete by `deadline_at`.
    """

    id: str
    pattern: str
    priority: int
    order: tuple[int, ...]
    model: str = ""
    deadline_at: int | None = None
    promised: bool = False
    prompt: int = 0
    n: int = 0
    max_tokens: int = 0
    parts: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    stages: tuple[str, ...] = ()
    wait: Wait | None = None
    beginnings: tuple[int, ...] = ()
    salt: int = 0


class Supplied(Event, frozen=True, tag="supplied", kw_only=True):
    """What it awaited from outside the step is there: it is in the queue now."""

    id: str


class Refused(Event, frozen=True, tag="refused", kw_only=True):
    """It can never be served here (`verdict`), or the front turned it away (`reason`)."""

    id: str
    reason: str
    verdict: Never | None = None
    model: str = ""


class Admitted(Event, frozen=True, tag="admitted", kw_only=True):
    """It got its seats and blocks. `tables` are block numbers per open sequence, named by index; `inherited` are the
    positions that each found computed, or that were reloaded: reused at first admission, regained when resumed.
    `choice` is there where blocks that lie in tiers were not reloaded, since computing them is faster. `model` is
    told for whoever did not hear of its arrival; logs from before it was told have none."""

    step: int
    id: str
    resumed: bool
    indexes: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    inherited: tuple[int, ...]
    miss: Miss | None = None
    choice: ReloadChoice | None = None
    model: str = ""


class Preempted(Event, frozen=True, tag="preempted", kw_only=True):
    """Its blocks were taken so that `by` could grow. `lost` are positions per open sequence; `price` is what it costs
    to resume (logs from before tiers counted have a number of positions). `reusable` are the blocks that became so
    with this event, by number."""

    step: int
    id: str
    by: str
    indexes: tuple[int, ...]
    lost: tuple[int, ...]
    blocks: int
    price: Price | int = Price()
    reusable: tuple[int, ...] = ()


class ReloadStarted(Event, frozen=True, tag="reload_started", kw_only=True):
    """It got its blocks (`tables` and `model` as in `Admitted`), and no seat: blocks that follow the ones it found
    are brought back from tiers first (`wait` counts them)."""

    step: int
    id: str
    indexes: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    wait: Wait
    choice: ReloadChoice
    model: str = ""


class Reloaded(Event, frozen=True, tag="reloaded", kw_only=True):
    """Its blocks are there, `blocks` of them by the tier they came from, or the rest cannot be had (fewer than it
    awaited): it needs a seat now."""

    id: str
    blocks: dict[TierName, int]


class ReloadDropped(Event, frozen=True, tag="reload_dropped", kw_only=True):
    """Its blocks were taken so that `by`, which goes before it, could grow: it queues again without any. It was not
    active, so this is no preemption. `reusable` as in `Preempted`."""

    step: int
    id: str
    by: str
    blocks: int
    reusable: tuple[int, ...] = ()


class Offloaded(Event, frozen=True, tag="offloaded", kw_only=True):
    """Blocks were copied to tiers since the last such event: `blocks` by tier; how much each tier holds now; and
    `faults` by tier and by what was wrong with a block that could not be written or read, the last one in words.
    With `moves_again` writes are no longer held up of which `NoProgress` told."""

    model: str
    blocks: dict[TierName, int]
    tiers: tuple[TierLevel, ...]
    faults: dict[TierName, dict[Fault, int]] = {}
    words: str = ""
    moves_again: bool = False


class Levels(msgspec.Struct, frozen=True, gc=False):
    """The pool and the seats at one moment. `evictions` counts since the start."""

    live: int
    reusable: int
    free: int
    seats_used: int
    evictions: int

    @property
    def total(self) -> int:
        return self.live + self.reusable + self.free


class Member(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One span of a step: `positions` from `start` of sequence `index` of `id`. `doing` names the interval."""

    id: str
    index: int
    start: int
    positions: int
    drafts: int
    doing: str


class Grown(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Blocks that a running sequence got."""

    id: str
    index: int
    blocks: tuple[int, ...]


class Bound(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Why a step's budget is less than --step-tokens allows: a step is expected to take `fixed_ms` and
    `position_ms` for each position, and those who decode in it wait for all of it, at most `gap_ms`."""

    gap_ms: float
    fixed_ms: float
    position_ms: float


class Forecast(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is expected of a request with a deadline, whose work is known item by item: each of its updates takes
    `step_ns` in the batch of this step, its last item `last_ns`, and it is complete at `ready_at` as planned (0: not
    known)."""

    id: str
    step_ns: int
    last_ns: int
    ready_at: int


class Stepped(Event, frozen=True, tag="step", kw_only=True):
    """A step of one model begins to run. `at` is when planning began: from then on the step owns the time.

    `head` is the first request in order that waits. `waits` holds the verdict of everyone judged who does not move;
    who waits and is not in it stands behind (Wait(turn, order)). An `oversized` step holds one item that cannot be
    divided and is larger than the budget. `kept` names the model for whose pace the budget was cut, if it was; with
    `bound` it was cut for the gap between this model's own tokens. `forecasts` are of those with deadlines.
    """

    step: int
    budget: int
    members: tuple[Member, ...]
    grown: tuple[Grown, ...]
    waits: dict[str, Wait]
    head: str | None
    waiting: int
    levels: Levels
    model: str = ""
    oversized: bool = False
    kept: str = ""
    bound: Bound | None = None
    forecasts: tuple[Forecast, ...] = ()


class Outcome(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The result of one span. `held` is the length of its block table afterwards, `finish` why its sequence ended."""

    id: str
    index: int
    prefilled: int
    decoded: int
    recomputed: int
    rejected: int
    emitted: int
    held: int
    finish: str | None = None
    accepted: int = 0


class Forked(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A sibling took over `positions` positions from its request's leading sequence, and emitted `emitted`."""

    id: str
    index: int
    positions: int
    resumed: bool
    emitted: int
    finish: str | None = None


class Moved(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Part `index` of a request whose progress is counted in items: `done` of its `of` items are. `positions` were
    evaluated for it in this step, where the model evaluates positions."""

    id: str
    index: int
    done: int
    of: int
    positions: int = 0


class Committed(Event, frozen=True, tag="committed", kw_only=True):
    """A step's result is in the books. `reusable` as in `Preempted`: of all who gave blocks back with the step, those
    whose `Failed` follows among them."""

    step: int
    outcomes: tuple[Outcome, ...]
    forks: tuple[Forked, ...]
    levels: Levels
    model: str = ""
    moves: tuple[Moved, ...] = ()
    reusable: tuple[int, ...] = ()


class Recovery(Event, frozen=True, tag="recovery", kw_only=True):
    """A recovery loop of one model (`policy/recovery.py`): it `began`, `lasts` (told once a window), or is `over`.

    now       how the window was that ended with this; `best` is the best one before the loop, all 0 where there was
              none: as much was lost since the start
    cut       from here on admission goes by `reserve`, until `needed` windows in a row had no preemption; `clean`
              were it so far
    offered   what came while admission was cut, and `rejected` what of it was not admitted: means per second since
              then; those that the front turned away for want of a place in the queue are in both
    """

    step: int
    model: str
    phase: Phase
    cut: bool
    now: Rates
    best: Rates
    offered: Demand = NO_DEMAND
    rejected: Demand = NO_DEMAND
    clean: int = 0
    needed: int = 0


class NoProgress(Event, frozen=True, tag="no_progress", kw_only=True):
    """It was looked at so many times in a row, and nothing moved: nothing that the engine can do will change that.
    Either a request (`id`) was told the same `wait` each time, or what is to be written to a tier (`writes`) stands.
    """

    step: int
    model: str
    id: str = ""
    wait: Wait | None = None
    writes: Backlog | None = None
    times: int


class DraftsPaused(Event, frozen=True, tag="drafts_paused", kw_only=True):
    """Drafts did not pay for a sequence, and rest for a while."""

    id: str
    index: int
    pause: Pause


class Finished(Event, frozen=True, tag="finished", kw_only=True):
    """All its sequences ended by themselves."""

    id: str
    reason: str


class Cancelled(Event, frozen=True, tag="cancelled", kw_only=True):
    """Someone ended it: `client` (it left), `request` (DELETE), `drain`, `time` (it took too long), `slow reader`
    (its client stopped reading), `grammar` (its answer could not be continued within the grammar) or `caller` (a
    library user). `reusable` as in `Preempted`; none where a step that runs names its blocks: then they go with its
    commit (`until_commit`)."""

    id: str
    by: str
    levels: Levels
    reusable: tuple[int, ...] = ()
    until_commit: bool = False


class Failed(Event, frozen=True, tag="failed", kw_only=True):
    """A step that it was part of failed, or the replica ended (`reason` is error), or its grammar could not be
    compiled (`grammar`), or what the model computed for it is not finite (`not_finite`). Where it does not follow a
    step's `Committed` it has the levels, `reusable` and `until_commit`, as in `Cancelled`."""

    id: str
    message: str
    reason: str = "error"
    levels: Levels | None = None
    reusable: tuple[int, ...] = ()
    until_commit: bool = False


class Delivered(Event, frozen=True, tag="delivered", kw_only=True):
    """The front handed the last byte to the socket, or gave up doing so: `dropped` is then by whom, as in
    `Cancelled`."""

    id: str
    dropped: str | None = None


AnyEvent: TypeAlias = (
    Loaded
    | TurnedAway
    | Received
    | Prompted
    | Arrived
    | Supplied
    | Refused
    | Admitted
    | Preempted
    | ReloadStarted
    | Reloaded
    | ReloadDropped
    | Offloaded
    | Stepped
    | Committed
    | Recovery
    | NoProgress
    | DraftsPaused
    | Finished
    | Cancelled
    | Failed
    | Delivered
)
