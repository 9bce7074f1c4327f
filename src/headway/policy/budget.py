"""What one step may spend.

Decode positions come first, one for each decoding sequence; then chunks of running requests; then prompts of
admitted ones, in order. Drafts use what decode positions leave, so they can delay a chunk but never a token.
"""

from __future__ import annotations


def chunk(outstanding: int, left: int) -> int:
    """Positions of a sequence with `outstanding` ones that go into a step with `left`."""
    return min(outstanding, left)


def drafts(guesses: int, *, tokens_left: int, positions_left: int, slack: int) -> int:
    """How many of `guesses` drafts are verified beside one decode position.

    tokens_left     tokens that the sequence may still emit; the last one needs no draft after it
    positions_left  what the step has left once every decoding sequence has its one position
    slack           positions that fit into held and available blocks beyond the newest one: a guess is never
                    worth a preemption
    """
    return max(0, min(guesses, tokens_left - 1, positions_left, slack))
