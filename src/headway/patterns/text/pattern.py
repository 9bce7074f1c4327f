"""Text: a prompt is evaluated once, then each chosen token is fed back, with the state of all before it cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from headway.compute.executor import Executor, ModelFacts
from headway.core.errors import InvariantError
from headway.core.events import Admitted, AnyEvent, Arrived, Reloaded, ReloadStarted
from headway.core.miss import Miss
from headway.core.plan import SpanResult, StepPlan, StepResult
from headway.core.price import Price
from headway.core.request import Request, TextRequest
from headway.core.verdict import Input, Unit, Wait, Worst
from headway.engine.pattern import Books, Entry, Extra, Lost, Settled, Work
from headway.engine.served import EngineOptions, ServedModel
from headway.memory.pool import BlockPool
from headway.memory.reserve import Reservation, Shortfall, StateMemory
from headway.patterns.text import items, needs
from headway.patterns.text.begin import Groups, arrived, begin
from headway.patterns.text.enter import enter
from headway.patterns.text.needs import Quote
from headway.patterns.text.ports import Drafters, Watcher, no_drafts, no_watcher
from headway.patterns.text.sequence import Returning, Sequence, TextProgress
from headway.patterns.text.tiering import Tiering
from headway.policy.admit import AnswerLengths, Outlook
from headway.policy.copies import CopyBudget
from headway.policy.deadline import LeastWork
from headway.policy.schedule import Run
from headway.policy.waiting import AWAITS_GRAMMAR


class TextPattern:
    """Implements `Pattern` over a pool of state blocks. A part is a `Sequence`, a step's budget counts positions."""

    cost_unit: Unit = "positions"
    yields = False
    paced = True
    foreseen = False

    def __init__(
        self,
        executor: Executor,
        memory: StateMemory,
        *,
        drafters: Drafters = no_drafts,
        watcher: Watcher = no_watcher,
        name: str = "",
    ) -> None:
        self.memory = memory
        self._executor = executor
        self.drafters = drafters
        self.watcher = watcher
        self.tiering = Tiering(memory.pool, executor.facts.block_bytes)
        self._name = name or executor.facts.name
        self._groups = Groups()

    @property
    def space(self) -> BlockPool:
        return self.memory.pool

    @property
    def _facts(self) -> ModelFacts:
        return self._executor.facts

    # -- before it is queued ---------------------------------------------------------------------------------

    def check(self, new: TextRequest) -> None:
        new.check(self._facts.vocab)

    def worst(self, new: TextRequest) -> Worst:
        return needs.worst(new, self.memory)

    def begin(self, new: TextRequest, context: int) -> TextProgress:
        most = needs.most_tokens(new, self.memory, context)
        return begin(new, self._facts, self.memory, self.watcher, self.drafters, most)

    def awaits(self, new: TextRequest) -> dict[Input, Wait]:
        return {"grammar": AWAITS_GRAMMAR} if new.grammar else {}

    def supply(self, request: Request, what: Input, content: Any) -> None:
        """`content` is a guide for each sequence."""
        for sequence, guide in zip(_sequences(request), content, strict=True):
            sequence.guide = guide

    def arrived(self, new: TextRequest, request: Request, at: int, order: tuple[int, ...]) -> Arrived:
        return arrived(new, request, at, order, self._groups)

    # -- state tiers -----------------------------------------------------------------------------------------

    @property
    def copies(self) -> bool:
        return self.tiering.copies

    @property
    def moves(self) -> bool:
        return self.tiering.moves

    def open(self, step: int, at: int, copies: CopyBudget) -> None:
        self.space.step = step
        self.tiering.open(at, copies)

    def reloads(self, quote: Quote) -> bool:
        return quote.choice is not None and quote.choice.reload

    def reload(self, request: Request, quote: Quote, at: int, step: int) -> ReloadStarted:
        reservation, miss = self._take(request, quote)
        sequences = _open(request)
        assert quote.choice is not None
        wait = self.tiering.begin(request.progress, reservation, miss)
        return ReloadStarted(
            at=at,
            step=step,
            id=request.id,
            indexes=tuple(sequence.index for sequence in sequences),
            tables=_tables(sequences),
            wait=wait,
            choice=quote.choice,
            model=request.model,
        )

    def reloading(self, request: Request) -> Wait | None:
        return self.tiering.wait(request.progress)

    def copying(self, request: Request) -> bool:
        returning: Returning | None = request.progress.returning
        return returning is not None and returning.reload.copying > 0

    def reloaded(self, request: Request, at: int) -> Reloaded:
        return Reloaded(at=at, id=request.id, blocks=self.tiering.loaded(request.progress))

    def collect(self, at: int) -> list[AnyEvent]:
        return self.tiering.collect(at, self._name)

    def committed(self, plan: StepPlan, result: StepResult, at: int, ns: int) -> None:
        self.tiering.committed(plan, result, at, ns)

    def aborted(self) -> None:
        self.tiering.aborted()

    # -- what it needs ---------------------------------------------------------------------------------------

    def quote(self, request: Request, seats: int) -> Quote:
        return needs.quote(request.progress, self.memory, seats, self.tiering.choose)

    def admit(self, request: Request, quote: Quote, at: int, step: int) -> Admitted:
        sequences, returning = _open(request), request.progress.returning
        if returning is None:
            reservation, miss = self._take(request, quote)
        else:
            reservation, miss = returning.reservation, returning.miss
        self._inherit(request, reservation, returning)
        self.tiering.end(request.progress)
        declined = quote.choice is not None and not quote.choice.reload
        return Admitted(
            at=at,
            step=step,
            id=request.id,
            resumed=request.preemptions > 0,
            miss=Miss("slower", miss.at) if declined else miss,
            indexes=tuple(sequence.index for sequence in sequences),
            tables=_tables(sequences),
            inherited=tuple(sequence.computed for sequence in sequences),
            choice=quote.choice if declined else None,
            model=request.model,
        )

    def _take(self, request: Request, quote: Quote) -> tuple[Reservation, Miss]:
        """Take what was quoted, and why no more was found. Raises InvariantError where it is not there."""
        sequences, reservation = _open(request), quote.reservation
        if reservation is None:
            raise InvariantError(f"{request.id} was granted seats that are not there")
        miss = self.memory.miss(sequences[0], len(reservation.matched[0]) + len(reservation.stored))
        tables = self.memory.reserve(reservation)
        if isinstance(tables, Shortfall):
            raise InvariantError(f"{request.id} was granted {tables.need} blocks of {tables.have}")
        for sequence, table in zip(sequences, tables, strict=True):
            sequence.state = table
        return reservation, miss

    def _inherit(self, request: Request, reservation: Reservation, returning: Returning | None) -> None:
        """Each sequence goes on behind the state that was found for it, or waits for its fork."""
        sequences, size = _open(request), self.space.block_tokens
        lead = reservation.inherited(size) if returning is None else needs.returned(returning, size)
        if reservation.begun is not None and sequences[0].state is not None:
            sequences[0].fill = reservation.begun[0], sequences[0].state.blocks[len(reservation.matched[0])]
        begins = needs.starts(sequences, reservation, lead, size)
        for sequence, (at, forks) in zip(sequences, begins, strict=True):
            if forks:
                sequence.fork_at = at
            else:
                sequence.inherit(at, resumed=request.preemptions > 0)

    def least_work(self, request: Request, new: TextRequest, answers: AnswerLengths) -> LeastWork:
        return needs.least_work(new, request.progress, self.memory, answers)

    def runs(self, request: Request) -> tuple[Run, ...]:
        return ()

    def outlook(self, request: Request, quote: Quote | None = None) -> list[Outlook]:
        return needs.outlook(request.progress, self.space.block_tokens, quote)

    def works(self, request: Request) -> list[Work]:
        return needs.works(request.progress, self.memory)

    def index(self, part: Sequence) -> int:
        return part.index

    def grow(self, part: Sequence, lacking: int) -> tuple[int, ...]:
        assert part.state is not None
        return tuple(part.state.grow(lacking))

    def extra(self, request: Request, work: Work, left: int) -> Extra:
        return needs.drafts(request.progress, work.part, self.memory, left)

    # -- the step --------------------------------------------------------------------------------------------

    def entry(self, request: Request, work: Work, cost: int, extra: Extra) -> Entry:
        return items.entry(request, work.part, cost, extra.content, self._facts.eos_ids)

    def plan(self, step: int, entries: Iterable[Entry]) -> StepPlan:
        entries = list(entries)
        copies = tuple(copy for entry in entries for copy in entry.copies)
        fills = tuple(fill for entry in entries for fill in entry.fills)
        return StepPlan(step, tuple(entry.item for entry in entries), copies, fills, *self.tiering.name())

    def fault(self, request: Request) -> str | None:
        for sequence in _sequences(request):
            if sequence.guide and sequence.finish is None and (fault := sequence.guide.fault):
                return f"the answer cannot go on within its grammar: {fault}"
        return None

    def words(self, entry: Entry) -> str:
        return f"what the model computed at positions {entry.item.start} to {entry.item.end - 1}"

    def enter(self, entry: Entry, result: SpanResult, books: Books) -> None:
        enter(entry, result, books, self.memory)

    def settle(self, request: Request) -> Settled:
        open_sequences = 0
        answers: list[int] = []
        for sequence in _sequences(request):
            if sequence.finish is None:
                open_sequences += 1
            elif sequence.state is not None:
                answers.append(sequence.emitted)
                self._give_back(sequence)
        return Settled(open_sequences, str(_sequences(request)[0].finish), tuple(answers))

    # -- the end ---------------------------------------------------------------------------------------------

    def holding(self, request: Request) -> tuple[int, int]:
        tables = [sequence.state.blocks for sequence in _open(request) if sequence.state is not None]
        if len(tables) == 1:
            alone = self.space.unshared(tables[0])
            return alone, len(tables[0]) - alone
        held = Counter(block for table in tables for block in table)
        alone = sum(self.space.references(block) == own for block, own in held.items())
        return alone, len(held) - alone

    def lose(self, request: Request) -> Lost:
        sequences, before = _open(request), self.space.live
        self.tiering.end(request.progress)
        for sequence in sequences:
            self._give_back(sequence)
        units = tuple(sequence.lose() for sequence in sequences)
        return Lost(tuple(sequence.index for sequence in sequences), units, before - self.space.live)

    def price(self, request: Request, lost: Lost, taken: int) -> Price:
        return needs.price(request.progress, lost.units, taken, self.memory, self.tiering.choose)

    def release(self, request: Request, *, keep: bool = True) -> None:
        self.tiering.end(request.progress)
        for sequence in _sequences(request):
            self._give_back(sequence, keep=keep)

    def _give_back(self, sequence: Sequence, *, keep: bool = True) -> None:
        if keep:
            self.memory.publish_tail(sequence)
        sequence.give_back(keep=keep)

    def check_identities(self, requests: Iterable[Request]) -> None:
        held: dict[int, int] = {}
        for request in requests:
            for sequence in _sequences(request):
                for block in sequence.state.blocks if sequence.state else ():
                    held[block] = held.get(block, 0) + 1
                sequence.check(request.id)
        self.space.check(held)
        self.tiering.check()


def text_model(
    executor: Executor,
    memory: StateMemory,
    options: EngineOptions | None = None,
    *,
    drafters: Drafters = no_drafts,
    watcher: Watcher = no_watcher,
    name: str = "",
    weight: float = 1.0,
) -> ServedModel:
    """A text model as an engine serves it: `executor` computes, `memory` holds its state."""
    pattern = TextPattern(executor, memory, drafters=drafters, watcher=watcher, name=name)
    return ServedModel(executor, pattern, options, name=name, weight=weight)


def _tables(sequences: Iterable[Sequence]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sequence.state.blocks) for sequence in sequences if sequence.state is not None)


def _sequences(request: Request) -> list[Sequence]:
    progress: TextProgress = request.progress
    return progress.sequences


def _open(request: Request) -> list[Sequence]:
    progress: TextProgress = request.progress
    return progress.open_sequences
