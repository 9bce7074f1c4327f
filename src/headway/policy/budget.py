"""What one step may spend, in the pattern's unit; for text, positions.

Whole items of running requests come first (for text, one decode position for each decoding sequence); then what
can be divided (chunks of prompts), of running requests before newly admitted ones, in order. Drafts use what decode
positions leave, so they can delay a chunk but never a token.

Whoever decodes waits for the whole step. With `--step-tokens auto` the chunks beside them are as large as keeps that
under `--gap-ms`, by what recent steps took; where nobody decodes a step is as large as any.
"""

from __future__ import annotations

from headway.policy.turns import Pace

#: The part of the gap that a step is expected to take: of steps that take it on average, half take longer.
AIM = 0.8
#: A chunk that a prompt may always have, so that it moves where decoding alone takes the gap.
LEAST_CHUNK = 32
#: How far beyond the largest step that was measured the next one may go: a line through small steps says little of
#: large ones.
_GROWTH = 4


def granted(cost: int, budget: int, *, whole: bool, untouched: bool = False) -> int:
    """What a step with `budget` left grants of `cost`: as much as there is, or, of what is whole, all of it or
    nothing. What is whole and larger than any step takes one that was `untouched`, to itself."""
    if not whole:
        return max(0, min(cost, budget))
    return cost if cost <= budget or untouched else 0


def beside(decoding: int, pace: Pace, gap_ms: float) -> int:
    """How many positions of prompts go beside `decoding` positions, so that their step keeps `gap_ms`."""
    within = min(pace.within(AIM * gap_ms * 1e6), max(1, pace.most) * _GROWTH)
    return max(LEAST_CHUNK, within - decoding)


def drafts(guesses: int, *, tokens_left: int, positions_left: int, slack: int) -> int:
    """How many of `guesses` drafts are verified beside one decode position.

    tokens_left     tokens that the sequence may still emit; the last one needs no draft after it
    positions_left  what the step has left once every decoding sequence has its one position
    slack           positions that fit into held and available blocks beyond the newest one: a guess is never
                    worth a preemption
    """
    return max(0, min(guesses, tokens_left - 1, positions_left, slack))
