"""What one step evaluates, and what came of it: the only words between the engine and an executor.

A plan holds positions, token ids and block numbers. It knows no request: an executor cannot depend on who asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen.

    `temperature` 0 is greedy (then `top_k`, `top_p` and `seed` have no effect). `top_k` 0 keeps all tokens.
    Random numbers depend on (`seed`, sequence index, position) only.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to choose from the logits after a span's last position.

    `index` is the sequence within its request, `position` the one that the chosen token will occupy.
    """

    index: int
    position: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one sequence, evaluated in one step.

    tokens   the inputs at positions `start` … `start + len(tokens) - 1`; the last `drafts` of them are guesses
    blocks   the sequence's block table, in order; it covers every position up to the span's end, and state for
             positions before `start` is already there
    draws    tokens to choose after the last position; empty when the span ends before the newest known token.
             Several draws on one span are the first tokens of a request's sequences, from the same logits.
             With drafts there is exactly one draw: it applies to each verified position in turn
    """

    start: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    draws: tuple[Draw, ...] = ()
    drafts: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `copies` are (source block, target block) pairs, carried out after all spans were evaluated
    (a forked sequence gets its own copy of the last, partly filled block)."""

    step: int
    spans: tuple[Span, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def positions(self) -> int:
        """Positions that this step evaluates, rejected drafts included."""
        return sum(len(span.tokens) for span in self.spans)


@dataclass(frozen=True, slots=True)
class StepResult:
    """`tokens[i]` answers `plan.spans[i]`: one token per draw in order, or, with `drafts`, the accepted drafts
    followed by one more token (so between 1 and drafts + 1)."""

    tokens: tuple[tuple[int, ...], ...]
