"""What `headway top` shows, as `--json` prints it: all of it as of one moment."""

from __future__ import annotations

import msgspec

from headway.core.recovery import Demand
from headway.core.recovery import Rates as WorkRates
from headway.core.tiers import TierLevel
from headway.core.verdict import On, Unit
from headway.story.tell.views import PoolBlocks, RequestView


class EventNumbers(msgspec.Struct, frozen=True):
    """Of the first and the newest event that this is folded from; it knows of nothing earlier."""

    first: int
    last: int


class Owner(msgspec.Struct, frozen=True):
    """`blocks` are held by this request alone, `shared` with others."""

    id: str
    blocks: int
    shared: int


class PoolShown(msgspec.Struct, frozen=True):
    """Levels in the model's unit. `unowned` are live for requests that ended in a running step, or came before the
    first event."""

    blocks: PoolBlocks
    owners: tuple[Owner, ...]
    unowned: int


class SeatsShown(msgspec.Struct, frozen=True):
    """`total` is null where no event tells it."""

    used: int
    total: int | None


class Rates(msgspec.Struct, frozen=True):
    """Means over the last `over_s` seconds. All but steps and tokens are positions, `evaluated` what the items of an
    encoder or a diffusion model come to, in their own unit (positions, updates)."""

    over_s: float
    steps_per_s: float
    prefilled_per_s: float
    decoded_per_s: float
    recomputed_per_s: float
    evaluated_per_s: float
    emitted_tokens_per_s: float


class Stages(msgspec.Struct, frozen=True):
    """Live requests by stage, those that wait by what is awaited."""

    running: int
    waiting: dict[On, int]
    received: int


class StepShown(msgspec.Struct, frozen=True):
    """One step of one model. What it spent by kind and what is `left` sum to the budget, in the model's unit, unless
    one item was larger than that; `ms` is null while it runs."""

    step: int
    model: str
    budget: int
    prefilled: int
    decoded: int
    recomputed: int
    rejected: int
    evaluated: int
    left: int
    members: int
    ms: float | None
    failed: bool

    @property
    def spent(self) -> int:
        return self.prefilled + self.decoded + self.recomputed + self.rejected + self.evaluated


class ModelShown(msgspec.Struct, frozen=True):
    """One served model. `unit` is that of its space, `batch` how many items its latest step held, and `passed` how
    many of its requests wait because another model's step runs. `tiers` hold copies of its blocks."""

    model: str
    pattern: str
    unit: Unit
    pool: PoolShown
    seats: SeatsShown
    rates: Rates
    stages: Stages
    batch: int
    passed: int
    tiers: tuple[TierLevel, ...] = ()


class RequestShown(RequestView, frozen=True, kw_only=True, omit_defaults=True):
    """A record, and in `words` how it is, in one line."""

    words: str


class LoopShown(msgspec.Struct, frozen=True):
    """A recovery loop, or a cut of admission, of one model: as the engine told it last (means per second over its
    latest window), and in `words`, half a line."""

    model: str
    cut: bool
    now: WorkRates
    best: WorkRates
    offered: Demand
    rejected: Demand
    words: str


class BoardView(msgspec.Struct, frozen=True):
    """`model`, `pool` and `seats` are of the model that was named first, everything else is of all together; `models`
    has each. `steps` has the newest last, `unknown` counts the requests of the running step that came before the
    first event, `counters` count since then. `loops` are recovery loops that are not over, `stuck` has a sentence for
    each decision that is no progress."""

    source: str
    model: str
    models: tuple[ModelShown, ...]
    events: EventNumbers
    pool: PoolShown
    seats: SeatsShown
    rates: Rates
    steps: tuple[StepShown, ...]
    stages: Stages
    requests: tuple[RequestShown, ...]
    unknown: int
    counters: dict[str, int]
    loops: tuple[LoopShown, ...] = ()
    stuck: tuple[str, ...] = ()
