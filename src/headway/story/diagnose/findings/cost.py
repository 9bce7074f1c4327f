"""What a step costs, told from the steps that were seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from headway.story.diagnose.observations import Observations, ObservedStep


@dataclass(frozen=True)
class CostLine:
    """What a step costs: `fixed_ns` however small it is, and `position_ns` for each position."""

    fixed_ns: float
    position_ns: float

    def of(self, positions: int) -> float:
        return self.fixed_ns + self.position_ns * positions


def cost_line(steps: list[ObservedStep]) -> CostLine | None:
    """By least squares over the steps' durations. None where they differ too little in size, are too few, or do not
    lie near a line (less than half of their variance is explained)."""
    if len(steps) < 8:
        return None
    xs, ys = [float(step.positions) for step in steps], [float(step.ran_ns) for step in steps]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread_x, spread_y = sum((x - mean_x) ** 2 for x in xs), sum((y - mean_y) ** 2 for y in ys)
    together = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    if not spread_x or not spread_y or together <= 0 or together**2 < 0.5 * spread_x * spread_y:
        return None
    slope = together / spread_x
    return CostLine(max(0.0, mean_y - slope * mean_x), slope)


def price_ns(observed: Observations, positions: int) -> int:
    """What evaluating so many positions held requests up at most: at the price of a position where steps tell it,
    else at an equal share of all that steps cost."""
    evaluated, ran_ns = sum(step.positions for step in observed.done), sum(step.ran_ns for step in observed.done)
    if not evaluated or not ran_ns:
        return 0
    line = cost_line(observed.done)
    each_ns = ran_ns / evaluated if line is None else min(line.position_ns, ran_ns / evaluated)
    return round(positions * each_ns * sum(step.held_up_ns for step in observed.done) / ran_ns)


def middle(values: Iterable[int]) -> int:
    """The median, 0 of nothing."""
    found = list(values)
    return round(median(found)) if found else 0
