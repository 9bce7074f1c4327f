"""What one step may spend, in the pattern's unit; for text, positions.

Whole items of running requests come first (for text, one decode position for each decoding sequence); then what
can be divided (chunks of prompts), of running requests before newly admitted ones, in order. Drafts use what decode
positions leave, so they can delay a chunk but never a token.
"""

from __future__ import annotations


def granted(cost: int, budget: int, *, whole: bool, untouched: bool = False) -> int:
    """What a step with `budget` left grants of `cost`: as much as there is, or, of what is whole, all of it or
    nothing. What is whole and larger than any step takes one that was `untouched`, to itself."""
    if not whole:
        return max(0, min(cost, budget))
    return cost if cost <= budget or untouched else 0


def drafts(guesses: int, *, tokens_left: int, positions_left: int, slack: int) -> int:
    """How many of `guesses` drafts are verified beside one decode position.

    tokens_left     tokens that the sequence may still emit; the last one needs no draft after it
    positions_left  what the step has left once every decoding sequence has its one position
    slack           positions that fit into held and available blocks beyond the newest one: a guess is never
                    worth a preemption
    """
    return max(0, min(guesses, tokens_left - 1, positions_left, slack))
