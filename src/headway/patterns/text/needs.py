"""What a text request needs: at most, to be admitted or resumed, and to move.

A text of p prompt tokens is admitted with blocks for p + 1 positions: the first token that it emits has a place.
While it runs, each further position needs its place before the step that evaluates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from headway.core.price import Price
from headway.core.request import TextRequest
from headway.core.tiers import ReloadChoice
from headway.core.verdict import Ask, Worst
from headway.engine.pattern import Extra, Work
from headway.memory.reserve import Reservation, StateMemory
from headway.patterns.text.sequence import Returning, Sequence, TextProgress
from headway.policy import budget, preempt
from headway.policy.admit import AnswerLengths, Outlook
from headway.policy.deadline import LeastWork
from headway.policy.preempt import Part

NO_DRAFTS = Extra((), 0)
#: Whether the blocks of these keys, which lie in tiers, are reloaded.
Chooses: TypeAlias = Callable[[tuple[bytes, ...]], ReloadChoice]


def reload_all(stored: tuple[bytes, ...]) -> ReloadChoice:
    """Nothing is known that speaks against it."""
    return ReloadChoice(True, len(stored), 0)


@dataclass(frozen=True, slots=True)
class Quote:
    """An `Ask`, and the reservation that would meet it; None where free seats already rule it out, which spares the
    search for a known prefix, and for a request that has what it needs: its blocks were reloaded. `choice` is whether
    blocks that lie in tiers are reloaded, where there are such."""

    ask: Ask
    reservation: Reservation | None
    choice: ReloadChoice | None = None


def worst(new: TextRequest, memory: StateMemory) -> Worst:
    """Its prompt and every token that it may emit; without `max_tokens`, one."""
    prompt, longest = len(new.prompt), new.max_tokens or 1
    return Worst(seats=new.n, context=prompt + longest, space=memory.worst_case(prompt, new.n, longest))


def most_tokens(new: TextRequest, memory: StateMemory, context: int) -> int:
    """What each of its sequences may emit: what it asks for, else what context and pool have room for."""
    prompt = len(new.prompt)
    return new.max_tokens or min(context - prompt, memory.longest(prompt, new.n))


def quote(progress: TextProgress, memory: StateMemory, seats: int, chooses: Chooses = reload_all) -> Quote:
    sequences, size = progress.open_sequences, memory.pool.block_tokens
    if len(sequences) > seats:
        return Quote(Ask(len(sequences), 0, 0, 0), None)
    if progress.returning is not None:
        return Quote(Ask(len(sequences), 0, 0, sequences[0].known - returned(progress.returning, size)), None)
    found, choice = _found(sequences, memory, chooses)
    cost = sequences[0].known - found.inherited(size)
    return Quote(Ask(len(sequences), found.fresh, found.revived, cost), found, choice)


def _found(
    sequences: list[Sequence], memory: StateMemory, chooses: Chooses, taken: int | None = None
) -> tuple[Reservation, ReloadChoice | None]:
    """What there is for them, and whether that of it is reloaded which lies in tiers; `taken` as `StateMemory.quote`
    has it."""
    found = memory.quote(sequences, taken=taken)
    if not found.stored:
        return found, None
    choice = chooses(found.stored)
    return (found if choice.reload else memory.quote(sequences, reload=False, taken=taken)), choice


def starts(sequences: list[Sequence], taken: Reservation, lead: int, block_tokens: int) -> list[tuple[int, bool]]:
    """Where each sequence goes on: behind so many positions, and whether it takes them over from the leading one,
    which goes on behind `lead`, once that has computed them."""
    found = [(lead, False)]
    for sequence, matched in zip(sequences[1:], taken.matched[1:], strict=True):
        own = len(matched) * block_tokens
        fork_at = taken.shared * block_tokens if sequence.emitted else sequence.prompt
        found.append((max(own, fork_at), own < fork_at))
    return found


def price(progress: TextProgress, lost: tuple[int, ...], taken: int, memory: StateMemory, chooses: Chooses) -> Price:
    """Of a preemption by which its sequences `lost` so many positions each, before others take `taken` blocks."""
    sequences, size = progress.open_sequences, memory.pool.block_tokens
    found, _ = _found(sequences, memory, chooses, taken)
    begins = starts(sequences, found, found.inherited(size), size)
    return preempt.price([Part(had, at) for had, (at, _) in zip(lost, begins, strict=True)], len(found.stored))


def returned(returning: Returning, block_tokens: int) -> int:
    """Positions of the leading sequence that were found in the pool, or reloaded."""
    return (len(returning.reservation.matched[0]) + returning.reload.loaded) * block_tokens


def least_work(new: TextRequest, progress: TextProgress, memory: StateMemory, answers: AnswerLengths) -> LeastWork:
    """What of its prompt is not found now; then a step for each token after the first, of an answer that is as long
    as recent ones are, or as short as it may be while too few have ended to tell."""
    cost = quote(progress, memory, len(progress.sequences)).ask.cost
    endless = new.ignore_eos and not (new.stop_ids or new.stop or new.grammar)
    least = progress.max_tokens if endless else max(1, new.min_tokens)
    likely = answers.likely(0, progress.max_tokens) if answers.enough else least
    return LeastWork(cost, max(least, likely) - 1)


def outlook(progress: TextProgress, block_tokens: int, quote: Quote | None = None) -> list[Outlook]:
    """Of each sequence that has not finished: as it runs, or as it is when what was quoted is taken."""
    return [
        Outlook(
            frees=held - found,
            slack=held * block_tokens - sequence.known + 1,
            unit=block_tokens,
            emitted=sequence.emitted,
            most=progress.max_tokens,
        )
        for sequence, (held, found) in zip(progress.open_sequences, _held(progress, quote), strict=True)
    ]


def _held(progress: TextProgress, quote: Quote | None) -> list[tuple[int, int]]:
    """Of each sequence the blocks that it holds, or is to hold, and how many of these it found."""
    if quote is None or quote.reservation is None:
        tables = [sequence.state for sequence in progress.open_sequences]
        return [(len(table.blocks), table.found) for table in tables if table is not None]
    taken = quote.reservation
    lead, *others = zip(taken.sizes, taken.matched, strict=True)
    shared = [(size, max(taken.shared, len(found))) for size, found in others]
    return [(lead[0], len(lead[1])), *shared]


def works(progress: TextProgress, memory: StateMemory) -> list[Work]:
    """The newest position of a sequence is whole; a prompt, or what must be recomputed, is not. A sequence that waits
    for its fork has nothing to do."""
    found = []
    for sequence in progress.sequences:
        outstanding = sequence.outstanding
        if sequence.finish is None and outstanding:
            whole = outstanding == 1
            lacking = max(0, memory.lacking(sequence, sequence.known)) if whole else 0
            found.append(Work(sequence, outstanding, whole, lacking))
    return found


def drafts(progress: TextProgress, sequence: Sequence, memory: StateMemory, left: int) -> Extra:
    """Guesses to verify beside one decode position, and the blocks that they lack. None beside a prompt's last
    position: its draws may be the first tokens of several sequences. A grammar cuts them where it forbids one."""
    guesses = sequence.drafter.guess(sequence.tokens) if sequence.drafter and sequence.emitted else []
    if guesses and sequence.guide:
        guesses = guesses[: len(sequence.guide.masks(guesses)) - 1]
    if not guesses:
        return NO_DRAFTS
    assert sequence.state is not None
    pool = memory.pool
    available = len(sequence.state.blocks) + pool.free + pool.reusable
    count = budget.drafts(
        len(guesses),
        tokens_left=progress.max_tokens - sequence.emitted,
        positions_left=left,
        slack=available * pool.block_tokens - sequence.known,
    )
    return Extra(tuple(guesses[:count]), count, max(0, memory.lacking(sequence, sequence.known + count)))
