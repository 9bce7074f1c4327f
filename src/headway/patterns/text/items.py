"""The item that a sequence puts into a step: a span of consecutive positions, and the tokens to choose after it."""

from __future__ import annotations

from headway.core.events import Member
from headway.core.plan import Draw, Score, Span
from headway.core.request import Request
from headway.engine.pattern import Entry
from headway.patterns.text.sequence import Sequence, TextProgress


def entry(
    request: Request, sequence: Sequence, positions: int, guesses: tuple[int, ...], eos_ids: tuple[int, ...]
) -> Entry:
    """The span of the next `positions` positions of `sequence`, and guesses after them."""
    progress: TextProgress = request.progress
    start, end = sequence.computed, sequence.computed + positions
    assert sequence.state is not None and positions > 0
    drawn = _drawn(progress, sequence) if end == sequence.known else []
    span = Span(
        start,
        (*sequence.tokens[start:end], *guesses),
        sequence.state.named,
        _draws(progress, sequence, drawn, guesses, eos_ids),
        len(guesses),
        _score(progress, sequence, start, end),
    )
    prefilled, _, recomputed = sequence.split(positions)
    doing = "recompute" if recomputed else "prefill" if prefilled else "decode"
    member = Member(request.id, sequence.index, start, positions + len(guesses), len(guesses), doing)
    fills = (sequence.fill,) if sequence.fill else ()
    return Entry(request, sequence, span, member, _tail_copies(sequence, drawn[1:]), fills)


def _drawn(progress: TextProgress, lead: Sequence) -> list[Sequence]:
    """Whose next token is chosen after the newest known position of `lead`: its own, and at the end of a shared
    prompt that of each sibling."""
    if len(progress.sequences) == 1 or lead.emitted:
        return [lead]
    waiting = (
        sibling for sibling in progress.open_sequences if sibling is not lead and sibling.fork_at == lead.known
    )
    return [lead, *waiting]


def _draws(
    progress: TextProgress,
    sequence: Sequence,
    drawn: list[Sequence],
    guesses: tuple[int, ...],
    eos_ids: tuple[int, ...],
) -> tuple[Draw, ...]:
    if not drawn:
        return ()
    sampling = progress.sampling
    history = tuple(sequence.tokens) if sampling.remembers else ()
    ends_at = sequence.prompt + progress.min_tokens
    banned = _endings(progress, eos_ids) if sequence.known < ends_at else ()
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
            logprobs=progress.logprobs,
        )
        for each in drawn
    )


def _endings(progress: TextProgress, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that would end an answer; within a grammar the model's own end tokens always do."""
    guided = any(sequence.guide for sequence in progress.open_sequences)
    return tuple({*progress.stop_ids, *(eos_ids if guided else ())})


def _tail_copies(lead: Sequence, siblings: list[Sequence]) -> tuple[tuple[int, int], ...]:
    """Each sibling gets its own copy of the last, partly filled block of a prompt."""
    if not siblings:
        return ()
    assert lead.state is not None
    tail, filled = divmod(lead.prompt, lead.keys.block_tokens)
    tables = [sibling.state for sibling in siblings if sibling.state is not None]
    return tuple((lead.state.blocks[tail], table.blocks[tail]) for table in tables) if filled else ()


def _score(progress: TextProgress, sequence: Sequence, start: int, end: int) -> Score | None:
    """What is to be reported about the prompt's tokens when positions `start` to `end` are evaluated."""
    if sequence.unscored is None or progress.prompt_logprobs is None:
        return None
    first = max(start, sequence.unscored)
    tokens = tuple(sequence.tokens[first + 1 : min(end + 1, sequence.prompt)])
    return Score(first - start, tokens, progress.prompt_logprobs) if tokens else None
