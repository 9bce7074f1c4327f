"""How a span's result enters the progress of its request: positions are computed, tokens known, blocks indexed or
given back.

A request that was cancelled while its step ran is still charged for the positions that ran, and emits nothing.
"""

from __future__ import annotations

from typing import TypeAlias

from headway.core.events import DraftsPaused, Forked, Outcome
from headway.core.plan import Span, SpanResult, TokenLogprob
from headway.core.request import Emission, FinishReason, Request, Stage
from headway.engine.pattern import Books, Entry
from headway.memory.reserve import StateMemory
from headway.patterns.text.sequence import Sequence, TextProgress

#: Logprobs of some tokens, in order.
Logprobs: TypeAlias = tuple[TokenLogprob, ...]


def enter(entry: Entry, result: SpanResult, books: Books, memory: StateMemory) -> None:
    """Enter one span's result. Changes its sequence, and those that fork from it."""
    request, sequence, span = entry.request, entry.part, entry.item
    tokens = result.tokens
    kept, finish = _cut(request, sequence, tokens if span.drafts else tokens[:1])
    accepted = len(kept) - 1 if span.drafts else 0
    rejected = span.drafts - accepted
    prefilled, decoded, recomputed = sequence.advance(len(span.tokens), accepted, rejected)
    _score(sequence, span)
    emitted = _append(request, sequence, kept, finish, result.logprobs, books, result.scores)
    memory.publish(sequence)
    if span.drafts:
        memory.trim(sequence)
        _judge_drafts(request, sequence, span.drafts, accepted, books)
    held = len(sequence.state.blocks) if sequence.state else 0
    kept_positions = (prefilled, decoded, recomputed)
    books.outcomes.append(
        Outcome(request.id, sequence.index, *kept_positions, rejected, emitted, held, sequence.finish, accepted)
    )
    _fork(entry, result, books, memory)


def _fork(entry: Entry, result: SpanResult, books: Books, memory: StateMemory) -> None:
    """Siblings that waited for the positions which this span computed stand alone from now on."""
    request, lead = entry.request, entry.part
    progress: TextProgress = request.progress
    if len(progress.sequences) == 1:
        return
    drawn = {draw.index: place for place, draw in enumerate(entry.item.draws[: len(result.tokens)])}
    for sequence in progress.sequences:
        fork_at = sequence.fork_at
        if fork_at is None or lead.computed < fork_at:
            continue
        sequence.fork_at = None
        resumed = request.preemptions > 0
        sequence.inherit(fork_at, resumed=resumed)
        place = drawn.get(sequence.index, len(result.tokens))
        first, logprobs = result.tokens[place : place + 1], result.logprobs[place : place + 1]
        emitted = _append(request, sequence, *_cut(request, sequence, first), logprobs, books)
        memory.publish(sequence)
        books.forks.append(Forked(request.id, sequence.index, fork_at, resumed, emitted, sequence.finish))


def _append(
    request: Request,
    sequence: Sequence,
    tokens: tuple[int, ...],
    finish: FinishReason | None,
    logprobs: Logprobs,
    books: Books,
    scores: Logprobs = (),
) -> int:
    """`tokens` become known, and `finish` may end the sequence. Returns how many were emitted."""
    if not (tokens or scores) or request.stage is not Stage.RUNNING:
        return 0
    sequence.tokens.extend(tokens)
    sequence.finish = finish
    books.emissions.append(Emission(request.id, sequence.index, tokens, finish, logprobs[: len(tokens)], scores))
    return len(tokens)


def _score(sequence: Sequence, span: Span) -> None:
    """The prompt is scored as far as this span reaches."""
    if span.score is not None:
        upto = span.start + span.score.first + len(span.score.tokens)
        sequence.unscored = upto if upto < sequence.prompt - 1 else None


def _judge_drafts(request: Request, sequence: Sequence, drafted: int, accepted: int, books: Books) -> None:
    pause = sequence.drafter.verified(drafted, accepted) if sequence.drafter and not request.ended else None
    if pause is not None:
        books.events.append(DraftsPaused(at=books.at, id=request.id, index=sequence.index, pause=pause))


def _cut(
    request: Request, sequence: Sequence, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens up to the one that ends the sequence, and why it does. Of a request that has ended meanwhile, no
    accepted draft. What follows the sequence's text and its grammar learns of each token here."""
    if request.ended:
        return tokens[:1], None
    progress: TextProgress = request.progress
    for count, token in enumerate(tokens, 1):
        emitted = sequence.emitted + count
        if _completes(sequence, token) or (token in progress.stop_ids and emitted > progress.min_tokens):
            return tokens[:count], "stop"
        if emitted >= progress.max_tokens:
            return tokens[:count], "length"
    return tokens, None


def _completes(sequence: Sequence, token: int) -> bool:
    """Whether the text, or what the grammar allows, ends with this token."""
    guide, watch = sequence.guide, sequence.watch
    if guide is not None:
        guide.accept(token)
    return (watch is not None and watch.completes(token)) or (guide is not None and guide.complete)
