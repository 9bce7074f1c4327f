"""How long a step takes by how much is in it: measured while it runs, and answered for what was not measured yet.

The best batch differs by machine and size, so it is never a constant: what a joiner would cost the others is read
from here. A measurement is of one kind of work (`encode`, `update`, `decode_pixels`), one size of what is evaluated
(an image's width and height), and so many rows evaluated together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

#: Work that is measured alike: its kind and its size.
Work: TypeAlias = tuple[str, tuple[int, ...]]
#: A measurement as it is kept: kind, size, rows, mean in ns, times measured.
Row: TypeAlias = tuple[str, tuple[int, ...], int, int, int]

#: Weights of the newest sample in a mean and in its deviation (RFC 6298, after Jacobson 1988).
_MEAN, _DEVIATION = 1 / 8, 1 / 4
#: The mean follows the machine: a measurement counts for at least so much of it.
_LEAST_SHARE = 1 / 16
_MOST_LONGER = _MOST_STRETCHED = 4


@dataclass(slots=True)
class _Mean:
    ns: float
    count: int = 1

    def add(self, ns: int) -> None:
        """The first measurement holds what happens only once (memory is touched, kernels are chosen), so a shorter
        second one replaces it. A later one counts as `_MOST_LONGER` times the mean at most: what was measured while
        the process was stopped for hours must not stand for what comes, nor be kept for the next start."""
        self.count += 1
        if self.count == 2:
            self.ns = min(self.ns, ns)
        else:
            self.ns += (min(ns, _MOST_LONGER * self.ns) - self.ns) * max(1 / self.count, _LEAST_SHARE)


@dataclass(slots=True)
class Durations:
    """Means by kind, size and rows."""

    _means: dict[Work, dict[int, _Mean]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Durations:
        """What `rows()` gave."""
        found = cls()
        for kind, size, batch, ns, count in rows:
            found._means.setdefault((kind, tuple(size)), {})[batch] = _Mean(ns, count)
        return found

    def note(self, kind: str, size: tuple[int, ...], rows: int, ns: int) -> None:
        """One measurement: `rows` of this kind and size took `ns` together."""
        means = self._means.setdefault((kind, size), {})
        if rows in means:
            means[rows].add(ns)
        else:
            means[rows] = _Mean(ns)

    def knows(self, kind: str, size: tuple[int, ...]) -> bool:
        """Whether anything of this kind and size was measured."""
        return (kind, size) in self._means

    def exactly(self, kind: str, size: tuple[int, ...], rows: int) -> int | None:
        """What so many rows took themselves; None where just as many were never measured."""
        mean = self._means.get((kind, size), {}).get(rows)
        return None if mean is None else round(mean.ns)

    def ns(self, kind: str, size: tuple[int, ...], rows: int) -> int | None:
        """What `rows` would take; None where nothing of this kind and size was measured.

        Between two measured numbers it lies on the line between them. Beyond the largest it grows as between the two
        largest, and never shrinks; from one measurement alone it grows in proportion, which is the most it can be.
        Below the smallest it is what the smallest takes.
        """
        means = self._means.get((kind, size))
        if not means:
            return None
        known = sorted(means)
        place = sum(each < rows for each in known)
        if place < len(known) and (known[place] == rows or place == 0):
            return round(means[known[place]].ns)
        if place < len(known):
            low, high = known[place - 1], known[place]
            slope = (means[high].ns - means[low].ns) / (high - low)
            return round(means[low].ns + (rows - low) * slope)
        last = known[-1]
        slope = means[last].ns / last
        if len(known) > 1:
            before = known[-2]
            slope = max(0.0, (means[last].ns - means[before].ns) / (last - before))
        return round(means[last].ns + (rows - last) * slope)

    def rows(self) -> list[Row]:
        """All of it as plain data, to be kept between runs."""
        return [
            (kind, size, batch, round(mean.ns), mean.count)
            for (kind, size), means in sorted(self._means.items())
            for batch, mean in sorted(means.items())
        ]


@dataclass(slots=True)
class Stretch:
    """How much longer it is from step to step than what the parts of a step took by themselves: what lies between
    them, and the steps of other models. `factor` is the mean and its deviation together, so that a promise leaves
    room for what varies; 1 where steps take what their parts do."""

    _mean: float = 1.0
    _deviation: float = 0.0

    def note(self, ratio: float) -> None:
        """One step took so many times as long. It counts as `_MOST_STRETCHED` times the factor at most, and as no
        time at least: one step in which the clock jumped must not stand for those to come."""
        ratio = max(0.0, min(ratio, _MOST_STRETCHED * self.factor))
        self._deviation += (abs(ratio - self._mean) - self._deviation) * _DEVIATION
        self._mean += (ratio - self._mean) * _MEAN

    @property
    def factor(self) -> float:
        return max(1.0, self._mean + self._deviation)
