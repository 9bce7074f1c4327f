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

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

#: Answers that are remembered, and those that must have ended before anything is predicted.
REMEMBERED, LEAST_HISTORY = 256, 32
#: Of the remembered answers that were longer than a sequence is by now, this share is assumed to be shorter than it.
QUANTILE = 0.5
#: Who says what is kept while a recovery loop has admission cut.
CUT = "recovery"
#: Below all that a sequence can come to.
_LOWEST = -(1 << 62)


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
    """Space that must be left when a request is admitted. `by` says who says so: the value of `--admit`, or `CUT`.
    Where a prediction has too little history, and so is `headroom`, `seen` answers of the `least` that it needs have
    ended; else both are 0."""

    space: int
    by: str
    seen: int = 0
    least: int = 0


NOTHING_KEPT = Kept(0, "optimistic")

#: Says what is kept for a newcomer with such parts; made once for all who ask in a step.
Admission: TypeAlias = Callable[[Sequence[Outlook]], Kept]


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
        return self.seen >= LEAST_HISTORY

    @property
    def seen(self) -> int:
        """Answers that are remembered."""
        return len(self._latest)

    def likely(self, emitted: int, most: int) -> int:
        """How long an answer is likely to be that has `emitted` tokens and may have `most`: the `QUANTILE` of the
        longer ones that are remembered, `most` where none was longer."""
        longer = bisect_right(self._sorted, emitted)
        left = len(self._sorted) - longer
        return min(most, self._sorted[longer + int((left - 1) * QUANTILE)]) if left else most


def headroom(running: int) -> Admission:
    """For `running` sequences."""
    kept = Kept(running, "headroom")
    return lambda asks: kept


def reserve(running: Iterable[Outlook], by: str = "reserve") -> Admission:
    """For all that may come."""
    growth = sum(each.growth for each in running)
    return lambda asks: Kept(growth + sum(each.growth for each in asks), by)


def predict(running: Sequence[Outlook], lengths: AnswerLengths) -> Admission:
    """For the fullest moment to come; while too few answers have ended to tell, as `headroom`. All have one unit."""
    if not lengths.enough:
        kept = Kept(len(running), "predict", seen=lengths.seen, least=LEAST_HISTORY)
        return lambda asks: kept
    return Forecast(running, lengths)


class Forecast:
    """The fullest moment to come, which is just before one of them ends.

    Those that end later have grown by then, each by a unit of space for every `unit` tokens and by one more for what
    is begun; those that ended before gave back theirs. The longest to go come first. Counted in `1 / unit` of space,
    so that all numbers are whole, the one that is k-th from the front, with t tokens to go, ends at

        level[k + 1] + (k + 1) * t    with    level[k + 1] = level[k] + (1 + frees) * unit - slack

    and each newcomer before it adds t, and what its own level rises by. So a newcomer needs only the highest of those
    before it and of those behind it, which are noted. Newcomers of one request are beside each other, unless it was
    preempted with answers of several lengths: then those who run between them are gone through.
    """

    def __init__(self, running: Sequence[Outlook], lengths: AnswerLengths) -> None:
        self._lengths = lengths
        self._growth = sum(each.growth for each in running)
        order = self._longest_first(running)
        self._to_go = [tokens for tokens, _ in order]
        self._ends = [-tokens for tokens in self._to_go]  # ascending, to be searched
        unit = running[0].unit if running else 0
        self._levels = list(accumulate((_rise(each) for _, each in order), initial=-unit * _frees(running)))
        ending = (self._ending(place, 0) for place in range(len(order)))
        self._before = list(accumulate(ending, max, initial=_LOWEST))
        self._behind: dict[int, list[int]] = {}

    def __call__(self, asks: Sequence[Outlook]) -> Kept:
        """For a newcomer of at least one part."""
        unit, passed = asks[0].unit, 0
        risen = -unit * _frees(asks)
        place, peak = 0, 0
        for tokens, each in self._longest_first(asks):
            at = bisect_left(self._ends, -tokens)  # before those of the same length
            peak = max(peak, self._highest(passed, place, at) + risen)
            place, passed, risen = at, passed + 1, risen + _rise(each)
            peak = max(peak, self._levels[at] + (at + passed) * tokens + risen)
        peak = max(peak, self._highest(passed, place, len(self._ends)) + risen)
        most = self._growth + sum(each.growth for each in asks)
        return Kept(min(most, peak // unit), "predict")

    def _longest_first(self, sequences: Iterable[Outlook]) -> list[tuple[int, Outlook]]:
        """With how many tokens each is likely to go on for; of two alike the later one first."""
        likely = self._lengths.likely
        left = [(likely(each.emitted, each.most) - each.emitted, each) for each in sequences]
        left.sort(key=_first)
        left.reverse()
        return left

    def _highest(self, newcomers: int, start: int, stop: int) -> int:
        """The most that any of those in `start:stop` comes to behind so many newcomers, less what these rise by."""
        if start == stop:
            return _LOWEST
        if not newcomers and not start:
            return self._before[stop]
        if stop < len(self._ends):
            return max(self._ending(place, newcomers) for place in range(start, stop))
        if newcomers not in self._behind:
            ending = (self._ending(place, newcomers) for place in range(stop - 1, -1, -1))
            self._behind[newcomers] = list(accumulate(ending, max))
        return self._behind[newcomers][stop - 1 - start]

    def _ending(self, place: int, newcomers: int) -> int:
        return self._levels[place + 1] + (place + 1 + newcomers) * self._to_go[place]


def _rise(each: Outlook) -> int:
    return (1 + each.frees) * each.unit - each.slack


def _frees(sequences: Iterable[Outlook]) -> int:
    return sum(each.frees for each in sequences)


def _first(pair: tuple[int, Outlook]) -> int:
    return pair[0]
