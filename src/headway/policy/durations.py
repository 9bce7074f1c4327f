"""How long a step takes by how much is in it: measured while it runs, and answered for what was not measured yet.

The best batch differs by machine and shape, so it is never a constant: what a joiner would cost the others is read
from here. A measurement is of one kind of work (`encode`, `update`, `decode_pixels`), one shape of tensors, and so
many rows evaluated together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

#: Work that is measured alike: its kind, and the shape of its tensors.
Work: TypeAlias = tuple[str, tuple[int, ...]]
#: A measurement as it is kept: kind, shape, rows, mean in ns, times measured.
Row: TypeAlias = tuple[str, tuple[int, ...], int, int, int]

#: The mean follows the machine: a measurement counts for at least so much of it.
_LEAST_SHARE = 1 / 16


@dataclass(slots=True)
class _Mean:
    ns: float
    count: int = 1

    def add(self, ns: int) -> None:
        """The first measurement holds what happens only once (memory is touched, kernels are chosen), so a shorter
        second one replaces it."""
        self.count += 1
        if self.count == 2:
            self.ns = min(self.ns, ns)
        else:
            self.ns += (ns - self.ns) * max(1 / self.count, _LEAST_SHARE)


@dataclass(slots=True)
class Durations:
    """Means by kind, shape and rows."""

    _means: dict[Work, dict[int, _Mean]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Durations:
        """What `rows()` gave."""
        found = cls()
        for kind, shape, batch, ns, count in rows:
            found._means.setdefault((kind, tuple(shape)), {})[batch] = _Mean(ns, count)
        return found

    def note(self, kind: str, shape: tuple[int, ...], rows: int, ns: int) -> None:
        """One measurement: `rows` of this kind and shape took `ns` together."""
        means = self._means.setdefault((kind, shape), {})
        if rows in means:
            means[rows].add(ns)
        else:
            means[rows] = _Mean(ns)

    def ns(self, kind: str, shape: tuple[int, ...], rows: int) -> int | None:
        """What `rows` would take; None where nothing of this kind and shape was measured.

        Between two measured numbers it lies on the line between them. Beyond the largest it grows as between the two
        largest, and never shrinks; from one measurement alone it grows in proportion, which is the most it can be.
        Below the smallest it is what the smallest takes.
        """
        means = self._means.get((kind, shape))
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
            (kind, shape, batch, round(mean.ns), mean.count)
            for (kind, shape), means in sorted(self._means.items())
            for batch, mean in sorted(means.items())
        ]
