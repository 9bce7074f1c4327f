"""How much space an admission leaves free for those who run to grow: four ways to decide it, all pure.

A request is admitted with space for what it has to say so far and one position more; its answer needs more, step by
step. Whoever then finds none preempts, and what was lost is computed again. So what is kept back at admission is what
is paid for preemptions or for waiting:

optimistic   nothing is kept: the pool is as full as it can be, growth may preempt
headroom     one unit of space for each running sequence (each can fill the block it writes to, and one more)
reserve      all that those who run, and the newcomer, may still take at most: nothing is ever preempted
predict      what they are likely to need at the fullest moment to come, as recent answers were long (the
             "past-future" scheduler, Gong et al., ASPLOS 2025); while too few have ended to tell, it is `headroom`

Where nobody runs, the newcomer has the pool to itself, and goes under all four. While a recovery loop has admission
cut (`policy/recovery.py`), it is `reserve`, whatever it was.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Answers that are remembered, and those that must have ended before anything is predicted.
REMEMBERED, LEAST_HISTORY = 256, 32
#: Of the remembered answers that were longer than a sequence is by now, this share is assumed to be shorter than it.
QUANTILE = 0.5
#: Who says what is kept while a recovery loop has admission cut.
CUT = "recovery"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one sequence, running or about to, may still take.

    frees     space that comes back with its end: what it holds and did not find
    slack     tokens that it may emit before it needs more
    unit      tokens for which each further unit of space is enough
    emitted   tokens of its answer so far, and `most` how many there may be in all
    """

    frees: int
    slack: int
    unit: int
    emitted: int
    most: int

    @property
    def growth(self) -> int:
        """The most space that it may still take."""
        return max(0, -(-(self.most - self.emitted - self.slack) // self.unit))


@dataclass(frozen=True, slots=True)
class Kept:
    """Space that must be left when a request is admitted. `by` says who says so: the value of `--admit`, or `CUT`."""

    space: int
    by: str


NOTHING_KEPT = Kept(0, "optimistic")


class AnswerLengths:
    """How long the latest answers were, in tokens, those that a limit or a stop string ended as well."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, tokens: int) -> None:
        """An answer of so many tokens has ended."""
        if len(self._latest) == REMEMBERED:
            oldest = self._latest.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._latest.append(tokens)
        insort(self._sorted, tokens)

    @property
    def enough(self) -> bool:
        """Whether anything can be said of the next ones."""
        return len(self._latest) >= LEAST_HISTORY

    def likely(self, emitted: int, most: int) -> int:
        """How long an answer is likely to be that has `emitted` tokens and may have `most`: the `QUANTILE` of the
        longer ones that are remembered, `most` where none was longer."""
        longer = bisect_right(self._sorted, emitted)
        left = len(self._sorted) - longer
        return min(most, self._sorted[longer + int((left - 1) * QUANTILE)]) if left else most


def headroom(running: int) -> Kept:
    """For `running` sequences."""
    return Kept(running, "headroom")


def reserve(running: Iterable[Outlook], asks: Iterable[Outlook], by: str = "reserve") -> Kept:
    """For all that may come."""
    return Kept(sum(each.growth for each in running) + sum(each.growth for each in asks), by)


def predict(running: Sequence[Outlook], asks: Sequence[Outlook], lengths: AnswerLengths) -> Kept:
    """For the fullest moment to come, which is just before one of them ends.

    Those that end later have grown by then, each by a unit of space for every `unit` tokens and by one more for what
    is begun; those that ended before gave back theirs. The longest to go come first, so that one pass finds it.
    """
    if not lengths.enough:
        return headroom(len(running))
    together = [*running, *asks]
    left = sorted(((lengths.likely(each.emitted, each.most) - each.emitted, each) for each in together), key=_first)
    ended = sum(each.frees for each in together)
    grown = peak = 0.0
    per_token = 0.0
    for tokens, each in reversed(left):
        ended -= each.frees
        per_token += 1 / each.unit
        grown += 1 - each.slack / each.unit
        peak = max(peak, grown + per_token * tokens - ended)
    most = reserve(running, asks).space
    return Kept(min(most, int(peak)), "predict")


def _first(pair: tuple[int, Outlook]) -> int:
    return pair[0]
