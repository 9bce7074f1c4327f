"""A request as `GET /v1/requests/{id}` shows it, and the pools as `GET /v1/pool` does: the server encodes these
structs, the commands and the page's route decode them. Fields that a later version adds are ignored; times are
milliseconds with six decimals."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headway.core.miss import Miss
from headway.core.request import Pause, Stage
from headway.core.tiers import ReloadChoice, TierName
from headway.core.verdict import Go, Never, Unit, Wait


class StandingWait(Wait, frozen=True, kw_only=True, tag="wait", tag_field="kind"):
    """A wait, with what is known only when asked: how many requests are `ahead`, and since when it stands."""

    ahead: int
    since_step: int
    since_ms: float


VerdictView: TypeAlias = Go | StandingWait | Never


class PositionsView(msgspec.Struct, frozen=True):
    """Of one sequence: how many it has, and how the state of each came to be, or went."""

    known: int
    computed: int
    reused: int
    regained: int
    prefilled: int
    decoded: int
    recomputed: int
    rejected: int
    lost: int


class BlocksView(msgspec.Struct, frozen=True):
    """`held` by one sequence; `shared` of them with other sequences."""

    held: int
    shared: int


class TokensView(msgspec.Struct, frozen=True):
    prompt: int
    emitted: int


class DraftsView(msgspec.Struct, frozen=True):
    accepted: int
    rejected: int
    pauses: tuple[Pause, ...]


class SequenceView(msgspec.Struct, frozen=True):
    positions: PositionsView
    blocks: BlocksView
    tokens: TokensView
    drafts: DraftsView


class PartView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A window of an input, or another part that is evaluated whole: `done` of `of` evaluations, the last of them in
    `step`, of so many `positions` where the model evaluates positions."""

    done: int
    of: int
    step: int | None
    positions: int | None = None


class PrefixView(msgspec.Struct, frozen=True):
    """Positions of the first sequence that were reused at first admission, and why no more."""

    reused: int
    miss: Miss | None


class ReloadView(ReloadChoice, frozen=True, kw_only=True):
    """What was found for it in tiers, whether that is brought back, and why; `loaded` blocks were, by tier."""

    loaded: dict[TierName, int]


class PreemptionView(msgspec.Struct, frozen=True):
    """In which step it was preempted so that `by` could go on, and what that was to cost if nothing else happened:
    positions to compute again, blocks to bring back from a tier."""

    step: int
    by: str
    recompute: int
    reload: int


class IntervalView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stretch of a life. Waits carry what was awaited (`on`) and the rule that said so."""

    name: str
    on: str | None = None
    rule: str | None = None
    ms: float = msgspec.field(default_factory=float)


class LessSlack(msgspec.Struct, frozen=True):
    id: str
    slack_ms: float


class DeadlineView(msgspec.Struct, frozen=True, omit_defaults=True):
    """When the complete answer is due, `ms` after arrival; how much of that was left at its end, or is left now (less
    than nothing: it is late); and whether it was met: null while it can be, false where there is no answer.
    `promised`: it was said on arrival that it would be.

    While what is left is known item by item: each update takes `update_ms` in the batch of this step, the decoding
    `decode_ms`, and as planned it is complete `slack_ms` before it is due. `less` are those of the same model that
    have less slack, at most four.
    """

    ms: float
    left_ms: float
    met: bool | None
    promised: bool = False
    update_ms: float | None = None
    decode_ms: float | None = None
    slack_ms: float | None = None
    less: tuple[LessSlack, ...] = ()


class RequestView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Fields with a default are left out where they say nothing: `parts` of a text and what the model
    does with each in `stages`, `model` where it is not known yet, `prompt` without --log-prompts, the latest
    eight preemptions in `preempted`, and what only an end tells."""

    id: str
    pattern: str
    model: str = ""
    stage: Stage
    verdict: VerdictView | None
    sequences: tuple[SequenceView, ...]
    parts: tuple[PartView, ...] = ()
    stages: tuple[str, ...] = ()
    preemptions: int
    preempted_for: tuple[str, ...]
    preempted: tuple[PreemptionView, ...] = ()
    prefix: PrefixView
    reload: ReloadView | None = None
    intervals: tuple[IntervalView, ...]
    elapsed_ms: float
    deadline: DeadlineView | None = None
    priority: int
    max_tokens: int
    prompt: str | None = None
    reason: str | None = None
    message: str | None = None
    dropped: str | None = None


class PageView(msgspec.Struct, frozen=True):
    """A page of `GET /v1/requests`; `next` is the id to go on `after`, or null."""

    data: list[RequestView]
    next: str | None


class ListView(msgspec.Struct, frozen=True):
    """All requests of an exchange with a list of prompts, under the exchange's `id`."""

    id: str
    data: tuple[RequestView, ...]


class PoolBlocks(msgspec.Struct, frozen=True):
    """live + reusable + free = total."""

    total: int
    live: int
    reusable: int
    free: int


class Tier(msgspec.Struct, frozen=True):
    """What lies in one tier, of all models: `blocks`, of so many `bytes` together; and how many it has room for."""

    name: TierName
    blocks: int
    bytes: int
    total: int


class HeldBlocks(msgspec.Struct, frozen=True):
    """The block tables of a request's sequences. One that is over holds its blocks until the step commits that runs
    with them."""

    id: str
    stage: Stage
    tables: tuple[tuple[int, ...], ...]


class ModelPool(msgspec.Struct, frozen=True):
    """What one model's pool holds, in the `unit` of its space (`total` is 0 for a pattern that keeps no state), and
    how many of its seats are used. With `?blocks=true` also which of the blocks (numbered from 0) are reusable, and
    who holds the live ones; all others are free."""

    model: str
    pattern: str
    unit: Unit
    reserved_bytes: int
    block_tokens: int
    total: int
    live: int
    reusable: int
    free: int
    seats: int
    reusable_blocks: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    held_blocks: tuple[HeldBlocks, ...] | msgspec.UnsetType = msgspec.UNSET


class PoolView(msgspec.Struct, frozen=True):
    """Memory reserved for state of all models; what the blocks are of the first that has some, and the levels of each
    in `models`."""

    reserved_bytes: int
    block_tokens: int
    blocks: PoolBlocks
    tiers: tuple[Tier, ...]
    models: tuple[ModelPool, ...]
