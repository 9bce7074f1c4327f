"""How a step's result enters the books: positions are computed, tokens known, blocks indexed or given back.

A `Committing` lives for one call of `Engine.commit`. A request that was cancelled while its step ran is still
charged for the positions that ran, and emits nothing; so is one whose numbers came out as not finite, and nothing
that it computed is found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from headway.memory.reserve import StateMemory
from headway.plan import StepPlan, TokenLogprob
from headway.planning import Entry
from headway.request import Emission, FinishReason, Pause, Request, Sequence, Stage
from headway.story.events import Forked, Outcome

#: Logprobs of some tokens, in order.
Logprobs: TypeAlias = tuple[TokenLogprob, ...]


@dataclass(slots=True)
class Flight:
    """A planned step whose result is not in yet."""

    plan: StepPlan
    entries: list[Entry]

    def requests(self) -> list[Request]:
        """Each request of the step once. An id may have come back while its cancelled namesake is still here."""
        return list({id(entry.request): entry.request for entry in self.entries}.values())


class Committing:
    """What came of one step: `emissions` for the callers, `outcomes`, `forks` and `pauses` for the story."""

    def __init__(self, memory: StateMemory) -> None:
        self.emissions: list[Emission] = []
        self.outcomes: list[Outcome] = []
        self.forks: list[Forked] = []
        self.pauses: list[tuple[str, int, Pause]] = []
        self._memory = memory

    def enter(self, entry: Entry, tokens: tuple[int, ...], logprobs: Logprobs = (), scores: Logprobs = ()) -> None:
        """Enter one span's result: `tokens` answer its draws, `logprobs` are theirs, `scores` the prompt's."""
        request, sequence, span = entry.request, entry.sequence, entry.span
        kept, finish = _cut(request, sequence, tokens if span.drafts else tokens[:1])
        accepted = len(kept) - 1 if span.drafts else 0
        rejected = span.drafts - accepted
        split = sequence.advance(len(span.tokens), accepted, rejected)
        emitted = self._append(request, sequence, kept, finish, logprobs, self._scored(entry, scores))
        self._memory.publish(sequence)
        if span.drafts:
            self._memory.trim(sequence)
            self._judge_drafts(request, sequence, span.drafts, accepted)
        held = len(sequence.state.blocks) if sequence.state else 0
        self.outcomes.append(
            Outcome(request.id, sequence.index, *split, rejected, emitted, held, sequence.finish, accepted)
        )
        self._fork(entry, tokens, logprobs)

    def _fork(self, entry: Entry, tokens: tuple[int, ...], logprobs: Logprobs) -> None:
        """Siblings that waited for the positions which this span computed stand alone from now on."""
        request, lead = entry.request, entry.sequence
        drawn = {draw.index: place for place, draw in enumerate(entry.span.draws[: len(tokens)])}
        for sequence in request.sequences:
            fork_at = sequence.fork_at
            if fork_at is None or lead.computed < fork_at:
                continue
            sequence.fork_at = None
            resumed = request.preemptions > 0
            sequence.inherit(fork_at, resumed=resumed)
            place = drawn.get(sequence.index, len(tokens))
            first, said = tokens[place : place + 1], logprobs[place : place + 1]
            emitted = self._append(request, sequence, *_cut(request, sequence, first), said)
            self._memory.publish(sequence)
            self.forks.append(Forked(request.id, sequence.index, fork_at, resumed, emitted, sequence.finish))

    def _append(
        self,
        request: Request,
        sequence: Sequence,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        logprobs: Logprobs,
        scores: Logprobs = (),
    ) -> int:
        """`tokens` become known, and `finish` may end the sequence. Returns how many were emitted."""
        if not (tokens or scores) or request.stage is not Stage.RUNNING:
            return 0
        sequence.tokens.extend(tokens)
        sequence.finish = finish
        self.emissions.append(Emission(request.id, sequence.index, tokens, finish, logprobs[: len(tokens)], scores))
        return len(tokens)

    def _scored(self, entry: Entry, scores: Logprobs) -> Logprobs:
        """The prompt is scored as far as this span reaches. Returns `scores`."""
        score, sequence = entry.span.score, entry.sequence
        if score is not None:
            upto = entry.span.start + score.first + len(score.tokens)
            sequence.unscored = upto if upto < sequence.prompt - 1 else None
        return scores

    def _judge_drafts(self, request: Request, sequence: Sequence, drafted: int, accepted: int) -> None:
        pause = sequence.drafter.verified(drafted, accepted) if sequence.drafter and not request.ended else None
        if pause is not None:
            self.pauses.append((request.id, sequence.index, pause))


def give_back(sequence: Sequence, *, keep: bool = True) -> None:
    """The one way in which a sequence's state ends."""
    if sequence.state is not None:
        sequence.state.release(keep=keep)
        sequence.state = None


def not_finite(request: Request, spoiled: Iterable[Entry]) -> str:
    """Why `request` fails: which of its positions came out as no numbers."""
    span = next(entry.span for entry in spoiled if entry.request is request)
    return (
        f"what the model computed at positions {span.start} to {span.end - 1} is not finite (NaN or infinity): "
        "its weights are damaged, or too large for the format that they are served in"
    )


def _cut(
    request: Request, sequence: Sequence, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens up to the one that ends the sequence, and why it does. Of a request that has ended meanwhile, no
    accepted draft. What follows the sequence's text and its grammar learns of each token here."""
    if request.ended:
        return tokens[:1], None
    for count, token in enumerate(tokens, 1):
        emitted = sequence.emitted + count
        if _completes(sequence, token) or (token in request.stop_ids and emitted > request.min_tokens):
            return tokens[:count], "stop"
        if emitted >= request.max_tokens:
            return tokens[:count], "length"
    return tokens, None


def _completes(sequence: Sequence, token: int) -> bool:
    """Whether the text, or what the grammar allows, ends with this token."""
    guide, watch = sequence.guide, sequence.watch
    if guide is not None:
        guide.accept(token)
    return (watch is not None and watch.completes(token)) or (guide is not None and guide.complete)
