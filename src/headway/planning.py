"""How one step is put together: decode positions, chunks of the running, admissions, in that order.

The decisions are the policy's; the blocks are taken here, at once and for good, so a plan never has to be undone.
A `Planning` lives for one call of `Engine.plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.errors import InvariantError
from headway.memory.reserve import Quote, Shortfall
from headway.plan import Draw, Score, Span, StepPlan
from headway.policy import budget, preempt
from headway.policy.waiting import Ask, Room, judge, look_further, no_budget
from headway.request import Request, Sequence, Stage
from headway.story.events import Admitted, Grown, Member, Preempted, Stepped
from headway.verdict import Go, Holder, Wait

if TYPE_CHECKING:
    from headway.engine import Engine

_NAMED_HOLDERS = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """Whose span it is."""

    request: Request
    sequence: Sequence
    span: Span


class Planning:
    """One step in the making.

    left    positions that the step may still spend
    owed    of these, positions that decoding sequences have yet to take
    """

    def __init__(self, engine: Engine, step: int, at: int) -> None:
        self.entries: list[Entry] = []
        self.waits: dict[str, Wait] = {}
        self._engine = engine
        self._memory = engine.memory
        self._pool = engine.memory.pool
        self._step = step
        self._at = at
        self._left = engine.options.step_tokens
        self._owed = sum(len(_decoding(request)) for request in engine.running)
        self._seats = engine.options.seats - engine.seats_used
        self._head: str | None = None
        self._members: list[Member] = []
        self._grown: list[Grown] = []
        self._copies: list[tuple[int, int]] = []
        self._holders: tuple[tuple[Holder, ...], int] | None = None

    # -- the three passes ------------------------------------------------------------------------------------

    def decodes(self) -> None:
        """Each running sequence whose newest token alone lacks state moves by that position, in order.

        Growing may preempt others, always the last in order, so nobody who was already planned.
        """
        moving: list[tuple[Request, Sequence]] = []
        for request in sorted(self._engine.running, key=self._engine.order):
            if request.stage is not Stage.RUNNING:
                continue  # preempted a moment ago
            decoding = _decoding(request)
            lacking = sum(max(0, self._memory.lacking(sequence, sequence.known)) for sequence in decoding)
            if not self._make_room(request, lacking):
                continue
            for sequence in decoding:
                self._grow(request, sequence, sequence.known)
                moving.append((request, sequence))
        for request, sequence in moving:  # drafts take only what every newest position has left over
            self._owed -= 1
            self._spend(request, sequence, 1, self._drafts(request, sequence))

    def chunks(self) -> None:
        """Running sequences with more to evaluate get what the step has left, in order."""
        for request in sorted(self._engine.running, key=self._engine.order):
            for sequence in request.open_sequences:
                if sequence.outstanding <= 1:
                    continue  # planned among the decodes, or waiting for its fork
                positions = budget.chunk(sequence.outstanding, self._left)
                if positions:
                    self._spend(request, sequence, positions)
                elif not any(entry.request is request for entry in self.entries):
                    self.waits[request.id] = no_budget(self._room())

    def admissions(self) -> None:
        """Judge the head of the queue, and behind a blocked head as far as `look_further` allows."""
        queue = self._engine.waiting
        head: Request | None = None
        place = behind = 0
        while place < len(queue):
            request = queue[place]
            if head is not None:
                if not look_further(behind, head.overtaken, self._engine.options.max_bypass):
                    break
                behind += 1
            verdict, quote = self._judge(request)
            request.verdict = verdict
            if isinstance(verdict, Go):
                assert quote is not None
                self._admit(request, quote, verdict.positions)
                if head is not None:
                    head.overtaken += 1
                continue
            self.waits[request.id] = verdict
            head = head or request
            place += 1
            if verdict.rule == "budget":
                break  # nobody behind could have a position either
        self._head = head.id if head else None

    def finish(self) -> StepPlan:
        """The plan; tells the story of how it came about."""
        spans = tuple(entry.span for entry in self.entries)
        engine = self._engine
        engine.emit(
            Stepped(
                at=self._at,
                step=self._step,
                budget=engine.options.step_tokens,
                members=tuple(self._members),
                grown=tuple(self._grown),
                waits=self.waits,
                head=self._head,
                waiting=len(engine.waiting),
                levels=engine.levels(),
            )
        )
        return StepPlan(self._step, spans, tuple(self._copies))

    # -- space -----------------------------------------------------------------------------------------------

    def _make_room(self, request: Request, blocks: int) -> bool:
        """Preempt the last in order until `blocks` are available. False when that was `request` itself."""
        while blocks > self._pool.free + self._pool.reusable:
            victim = preempt.victim(self._engine.running, self._engine.order)
            self._preempt(victim, by=request)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, by: Request) -> None:
        self._owed -= len(_decoding(victim))
        self._seats += len(victim.open_sequences)
        sequences, lost, blocks = self._engine.preempt(victim)
        self._engine.emit(
            Preempted(
                at=self._at,
                step=self._step,
                id=victim.id,
                by=by.id,
                lost=tuple(lost),
                indexes=tuple(sequence.index for sequence in sequences),
                blocks=blocks,
            )
        )

    def _grow(self, request: Request, sequence: Sequence, positions: int) -> None:
        blocks = self._memory.grow(sequence, positions)
        if blocks:
            self._grown.append(Grown(request.id, sequence.index, tuple(blocks)))

    def _drafts(self, request: Request, sequence: Sequence) -> list[int]:
        """Guesses to verify beside one decode position, with the blocks for them. None beside a prompt's last
        position: its draws may be the first tokens of several sequences. A grammar cuts them where it forbids one."""
        guesses = sequence.drafter.guess(sequence.tokens) if sequence.drafter and sequence.emitted else []
        if guesses and sequence.guide:
            guesses = guesses[: len(sequence.guide.masks(guesses)) - 1]
        if not guesses:
            return []
        assert sequence.state is not None
        available = len(sequence.state.blocks) + self._pool.free + self._pool.reusable
        count = budget.drafts(
            len(guesses),
            tokens_left=request.max_tokens - sequence.emitted,
            positions_left=self._left - 1 - self._owed,
            slack=available * self._pool.block_tokens - sequence.known,
        )
        self._grow(request, sequence, sequence.known + count)
        return guesses[:count]

    # -- the queue -------------------------------------------------------------------------------------------

    def _judge(self, request: Request) -> tuple[Go | Wait, Quote | None]:
        sequences = request.open_sequences
        if len(sequences) > self._seats:  # refused by its seats: spare the search for a known prefix
            return judge(Ask(len(sequences), 0, 0, 0), self._room(), self._name_holders), None
        quote = self._memory.quote(sequences)
        positions = sequences[0].known - len(quote.matched[0]) * self._pool.block_tokens
        ask = Ask(len(sequences), quote.fresh, quote.revived, positions)
        return judge(ask, self._room(), self._name_holders), quote

    def _admit(self, request: Request, quote: Quote, positions: int) -> None:
        """Give the request its seats and blocks, and its leading sequence a first chunk."""
        miss = self._memory.miss(request.open_sequences[0], len(quote.matched[0]))
        tables = self._memory.reserve(quote)
        if isinstance(tables, Shortfall):
            raise InvariantError(f"{request.id} was granted {tables.need} blocks of {tables.have}")
        sequences = request.open_sequences
        resumed = request.preemptions > 0
        size = self._pool.block_tokens
        for sequence, table, matched in zip(sequences, tables, quote.matched, strict=True):
            sequence.state = table
            found = len(matched) * size
            lead = sequence is sequences[0]
            fork_at = quote.shared * size if sequence.emitted else sequence.prompt
            if lead or found >= fork_at:
                sequence.inherit(found, resumed=resumed)
            else:
                sequence.fork_at = fork_at
        self._engine.waiting.remove(request)
        self._engine.running.append(request)
        request.move(Stage.RUNNING)
        request.overtaken = 0
        self._seats -= len(sequences)
        self._holders = None
        self._engine.emit(
            Admitted(
                at=self._at,
                step=self._step,
                id=request.id,
                resumed=resumed,
                miss=miss,
                indexes=tuple(sequence.index for sequence in sequences),
                tables=tuple(tuple(table.blocks) for table in tables),
                inherited=tuple(sequence.computed for sequence in sequences),
            )
        )
        self._spend(request, sequences[0], positions)
        for sequence in sequences[1:]:
            more = budget.chunk(sequence.outstanding, self._left)
            if more:
                self._spend(request, sequence, more)

    def _room(self) -> Room:
        return Room(self._seats, self._pool.free, self._pool.reusable, self._left)

    def _name_holders(self) -> tuple[tuple[Holder, ...], int]:
        """Who would free how much by leaving, the largest first."""
        if self._holders is None:
            rows = [_holding(request, self._pool.references) for request in self._engine.running]
            rows.sort(key=lambda row: -row.blocks)
            self._holders = tuple(rows[:_NAMED_HOLDERS]), max(0, len(rows) - _NAMED_HOLDERS)
        return self._holders

    # -- spending --------------------------------------------------------------------------------------------

    def _spend(self, request: Request, sequence: Sequence, positions: int, guesses: list[int] | None = None) -> None:
        """Put `positions` positions of `sequence`, and guesses after them, into the step."""
        guesses = guesses or []
        start, end = sequence.computed, sequence.computed + positions
        assert sequence.state is not None and positions > 0
        draws: tuple[Draw, ...] = ()
        if end == sequence.known:
            draws = self._draws(request, sequence, guesses)
        tokens, blocks = (*sequence.tokens[start:end], *guesses), tuple(sequence.state.blocks)
        span = Span(start, tokens, blocks, draws, len(guesses), _score(request, sequence, start, end))
        self.entries.append(Entry(request, sequence, span))
        request.in_flight = True
        request.verdict = Go(positions)
        self._left -= len(span.tokens)
        prefilled, _, recomputed = sequence.split(positions)
        doing = "recompute" if recomputed else "prefill" if prefilled else "decode"
        self._members.append(Member(request.id, sequence.index, start, positions + len(guesses), len(guesses), doing))

    def _draws(self, request: Request, sequence: Sequence, guesses: list[int]) -> tuple[Draw, ...]:
        """The tokens to choose: one, or at the end of a shared prompt one for each sibling, whose own copy of the
        last, partly filled block is then made."""
        drawn = [sequence]
        for sibling in request.open_sequences:
            if sibling is not sequence and sibling.fork_at == sequence.known and not sequence.emitted:
                drawn.append(sibling)
                self._copy_tail(sequence, sibling)
        sampling = request.sampling
        history = tuple(sequence.tokens) if sampling.remembers else ()
        ends_at = sequence.prompt + request.min_tokens
        banned = self._endings(request) if sequence.known < ends_at else ()
        return tuple(
            Draw(
                index=each.index,
                position=sequence.known,
                sampling=sampling,
                history=history,
                prompt=sequence.prompt,
                banned=banned,
                banned_before=ends_at,
                masks=tuple(each.guide.masks(guesses)) if each.guide else (),
                logprobs=request.logprobs,
            )
            for each in drawn
        )

    def _endings(self, request: Request) -> tuple[int, ...]:
        """Tokens that would end an answer; within a grammar the model's own end tokens always do."""
        eos_ids = self._engine.executor.facts.eos_ids if any(s.guide for s in request.open_sequences) else ()
        return tuple({*request.stop_ids, *eos_ids})

    def _copy_tail(self, lead: Sequence, sibling: Sequence) -> None:
        tail, filled = divmod(lead.prompt, self._pool.block_tokens)
        if filled:
            assert lead.state is not None and sibling.state is not None
            self._copies.append((lead.state.blocks[tail], sibling.state.blocks[tail]))


def _decoding(request: Request) -> list[Sequence]:
    return [sequence for sequence in request.open_sequences if sequence.outstanding == 1]


def _score(request: Request, sequence: Sequence, start: int, end: int) -> Score | None:
    """What is to be reported about the prompt's tokens when positions `start` to `end` are evaluated."""
    if sequence.unscored is None or request.prompt_logprobs is None:
        return None
    first = max(start, sequence.unscored)
    tokens = tuple(sequence.tokens[first + 1 : min(end + 1, sequence.prompt)])
    return Score(first - start, tokens, request.prompt_logprobs) if tokens else None


def _holding(request: Request, references: Callable[[int], int]) -> Holder:
    held: dict[int, int] = {}
    for sequence in request.open_sequences:
        for block in sequence.state.blocks if sequence.state else ():
            held[block] = held.get(block, 0) + 1
    alone = sum(references(block) == own for block, own in held.items())
    return Holder(request.id, alone, len(held) - alone)
