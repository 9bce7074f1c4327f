"""How a step's result enters the books: positions are computed, tokens known, blocks indexed or given back.

A `Committing` lives for one call of `Engine.commit`. A request that was cancelled while its step ran is still
charged for the positions that ran, and emits nothing.
"""

from __future__ import annotations

from headway.memory.reserve import StateMemory
from headway.planning import Entry
from headway.request import Emission, FinishReason, Request, Sequence, Stage
from headway.story.events import Forked, Outcome


class Committing:
    """What came of one step: `emissions` for the callers, `outcomes` and `forks` for the story."""

    def __init__(self, memory: StateMemory) -> None:
        self.emissions: list[Emission] = []
        self.outcomes: list[Outcome] = []
        self.forks: list[Forked] = []
        self._memory = memory

    def enter(self, entry: Entry, tokens: tuple[int, ...]) -> None:
        """Enter one span's result. `tokens` answers its draws."""
        request, sequence, span = entry.request, entry.sequence, entry.span
        kept, finish = _cut(request, sequence, tokens if span.drafts else tokens[:1])
        rejected = span.drafts + 1 - len(kept) if span.drafts else 0
        split = sequence.advance(len(span.tokens), rejected)
        emitted = self._append(request, sequence, kept, finish)
        self._memory.publish(sequence)
        if span.drafts:
            self._memory.trim(sequence)
        held = len(sequence.state.blocks) if sequence.state else 0
        self.outcomes.append(Outcome(request.id, sequence.index, *split, rejected, emitted, held, sequence.finish))
        self._fork(entry, tokens)

    def _fork(self, entry: Entry, tokens: tuple[int, ...]) -> None:
        """Siblings that waited for the positions which this span computed stand alone from now on."""
        request, lead = entry.request, entry.sequence
        drawn = {draw.index: token for draw, token in zip(entry.span.draws, tokens, strict=False)}
        for sequence in request.sequences:
            fork_at = sequence.fork_at
            if fork_at is None or lead.computed < fork_at:
                continue
            sequence.fork_at = None
            resumed = request.preemptions > 0
            sequence.inherit(fork_at, resumed=resumed)
            first = (drawn[sequence.index],) if sequence.index in drawn else ()
            emitted = self._append(request, sequence, *_cut(request, sequence, first))
            self._memory.publish(sequence)
            self.forks.append(Forked(request.id, sequence.index, fork_at, resumed, emitted, sequence.finish))

    def _append(
        self, request: Request, sequence: Sequence, tokens: tuple[int, ...], finish: FinishReason | None
    ) -> int:
        """`tokens` become known, and `finish` may end the sequence. Returns how many were emitted."""
        if not tokens or request.stage is not Stage.RUNNING:
            return 0
        sequence.tokens.extend(tokens)
        sequence.finish = finish
        self.emissions.append(Emission(request.id, sequence.index, tokens, finish))
        return len(tokens)


def _cut(
    request: Request, sequence: Sequence, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens up to the one that ends the sequence, and why it does. Of a request that has ended meanwhile, no
    accepted draft."""
    if request.ended:
        return tokens[:1], None
    for count, token in enumerate(tokens, 1):
        emitted = sequence.emitted + count
        complete = sequence.watch is not None and sequence.watch.completes(token)
        if complete or (token in request.stop_ids and emitted > request.min_tokens):
            return tokens[:count], "stop"
        if emitted >= request.max_tokens:
            return tokens[:count], "length"
    return tokens, None
