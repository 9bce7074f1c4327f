"""A text model's state tiers, as its pattern uses them: what a step copies, what a request waits for, and what was
measured on the way. Without tiers all of it does nothing."""

from __future__ import annotations

from headway.core.events import AnyEvent, NoProgress, Offloaded
from headway.core.miss import Miss
from headway.core.plan import Span, StepPlan, StepResult
from headway.core.tiers import Fault, ReloadChoice, TierName
from headway.core.verdict import Wait
from headway.memory.pool import BlockPool
from headway.memory.reserve import Reservation
from headway.memory.tiers import Happened, Pairs, Tiers
from headway.patterns.text.sequence import Returning, TextProgress
from headway.policy.copies import CopyBudget
from headway.policy.progress import TIMES, Writes
from headway.policy.reload import BlockSize, Measured, choose
from headway.policy.waiting import awaits_reload


class Tiering:
    """The tiers of `pool`, if it has any, whose blocks are of `block_bytes`."""

    def __init__(self, pool: BlockPool, block_bytes: int) -> None:
        self._pool = pool
        self._block_bytes = block_bytes
        self._measured = Measured()
        self._writes = Writes()
        self._now = 0
        self._budget = CopyBudget(0)

    @property
    def copies(self) -> bool:
        """Whether there is something for a step to copy."""
        return self._pool.tiers is not None and self._pool.tiers.ready

    @property
    def moves(self) -> bool:
        """Whether reads or writes are on their way."""
        return self._pool.tiers is not None and self._pool.tiers.moving

    # -- one request -----------------------------------------------------------------------------------------

    def choose(self, stored: tuple[bytes, ...]) -> ReloadChoice:
        """Whether the blocks of these keys, which lie in tiers, are reloaded. Changes nothing."""
        assert self._pool.tiers is not None
        host, disk = self._pool.tiers.count(stored)
        block = BlockSize(self._block_bytes, self._pool.block_tokens)
        return choose(host, disk, block, self._measured, self._now, self._budget)

    def begin(self, progress: TextProgress, reservation: Reservation, miss: Miss) -> Wait:
        """Bring back what was reserved for a request and lies in tiers, to its leading sequence. Returns what it
        waits for. Changes state."""
        tiers, lead = self._pool.tiers, progress.open_sequences[0]
        assert tiers is not None and lead.state is not None
        first, stored = len(reservation.matched[0]), reservation.stored
        reload = tiers.begin(stored, lead.state.blocks[first : first + len(stored)])
        progress.returning = Returning(reservation, reload, miss)
        return awaits_reload(len(stored), 0)

    def wait(self, progress: TextProgress) -> Wait | None:
        """What a request waits for whose blocks are brought back; None once that is over."""
        returning = progress.returning
        if returning is None or returning.reload.over:
            return None
        return awaits_reload(len(returning.reload.parts), returning.reload.loaded)

    def loaded(self, progress: TextProgress) -> dict[TierName, int]:
        """Blocks that were brought back for a request, by tier. Where one could not be had, says so in its miss."""
        returning = progress.returning
        assert returning is not None
        if returning.reload.lost:
            at = (len(returning.reservation.matched[0]) + returning.reload.loaded) * self._pool.block_tokens
            returning.miss = Miss("lost", at)
        names: tuple[TierName, TierName] = ("host", "disk")
        return {name: count for name in names if (count := returning.reload.come_from(name))}

    def end(self, progress: TextProgress | None) -> None:
        """Nothing is brought back for a request any more. A second call does nothing. Changes state."""
        if progress is not None and progress.returning is not None:
            assert self._pool.tiers is not None
            self._pool.tiers.end(progress.returning.reload)
            progress.returning = None

    # -- the step --------------------------------------------------------------------------------------------

    def open(self, at: int, budget: CopyBudget) -> None:
        """A step is about to be planned, and has taken no block yet; its copies have that budget. Half of it is for
        reloads, where there are any."""
        self._now, self._budget = at, budget
        tiers = self._pool.tiers
        if tiers is not None and tiers.ready:
            own = CopyBudget(budget.ns // 2) if tiers.loadable else budget
            tiers.name_offloads(own.blocks(self._block_bytes, self._measured.copies("offload", at)))

    def name(self) -> tuple[Pairs, Pairs]:
        """`offloads` and `reloads` of the step's plan: reloads have what offloads leave of the budget."""
        tiers = self._pool.tiers
        if tiers is None or not tiers.ready:
            return (), ()
        left = self._budget.without(tiers.named, self._block_bytes, self._measured.copies("offload", self._now))
        return tiers.name(left.blocks(self._block_bytes, self._measured.copies("reload", self._now)))

    def committed(self, plan: StepPlan, result: StepResult, at: int, ns: int) -> None:
        """What the step copied is there. Its copies are measured, and its prefill, where that is most of it."""
        if self._pool.tiers is None:
            return
        self._pool.tiers.copied()
        rates = {"offload": self._measured.offload, "reload": self._measured.reload}
        copies = [spent for spent in result.spent if spent.kind in rates]
        for spent in copies:
            rates[spent.kind].note(at, spent.rows * self._block_bytes, spent.ns)
        chunks = sum(
            item.cost for item in plan.items if isinstance(item, Span) and item.cost >= self._pool.block_tokens
        )
        if 2 * chunks > plan.cost:
            self._measured.prefill.note(at, plan.cost, ns - sum(spent.ns for spent in copies))

    def aborted(self) -> None:
        """What the step copied is worth nothing."""
        if self._pool.tiers is not None:
            self._pool.tiers.failed()

    def collect(self, at: int, model: str) -> list[AnyEvent]:
        """Take in what the disk did. Returns what there is to tell of all tiers; of writes of which none got further
        for long, as when a disk hangs, the event `NoProgress` tells."""
        tiers = self._pool.tiers
        if tiers is None:
            return []
        tiers.collect()
        happened, tiers.happened = tiers.happened, Happened()
        for ns in happened.reads:
            self._measured.read.note(at, self._block_bytes, ns)
        turned = self._writes.note(tiers.backlog, at)
        stops, moves_again = turned and self._writes.stuck, turned and not self._writes.stuck
        told: list[AnyEvent] = []
        if happened.offloaded or happened.faults or moves_again:
            told.append(_offloaded(tiers, happened, at, model, moves_again))
        if stops:
            told.append(NoProgress(at=at, step=self._pool.step, model=model, writes=tiers.backlog, times=TIMES))
        return told

    def check(self) -> None:
        """Raise InvariantError unless what is on its way adds up. Changes nothing."""
        if self._pool.tiers is not None:
            self._pool.tiers.check()


def _offloaded(tiers: Tiers, happened: Happened, at: int, model: str, moves_again: bool) -> Offloaded:
    faults: dict[TierName, dict[Fault, int]] = {}
    for (tier, fault), count in happened.faults.items():
        faults.setdefault(tier, {})[fault] = count
    return Offloaded(
        at=at,
        model=model,
        blocks=dict(happened.offloaded),
        tiers=tiers.levels(),
        faults=faults,
        words=happened.words,
        moves_again=moves_again,
    )
