"""Which deadlines cannot be met, by what was measured: refused at once instead of being served too late.

The estimate is a lower bound: everything goes as fast as the fastest steps of late did, and nobody comes in between
but those whose deadlines are earlier and who wait. So what is refused was lost; what is taken may still be late.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.verdict import Never

#: With each further step what was fastest counts a little less, so that it follows a machine that became slower.
FADES = 1.01
_MS = 1_000_000
_LONGEST_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest that steps were lately: how short one was, and how little one that was at least half full took for
    each unit of its cost. 0: not measured yet."""

    step_ns: float = 0.0
    unit_ns: float = 0.0

    def after(self, ns: int, cost: int, budget: int) -> Fastest:
        """With one more step, which took `ns` for `cost` of `budget`. A clock that stood still, or went back,
        measured nothing, nor did one that ran for longer than a minute: the process was stopped meanwhile. A unit
        costs no more than in a step that was not half full."""
        if not 0 < ns <= _LONGEST_NS:
            return self
        step_ns, unit_ns = min(self.step_ns * FADES, ns) if self.step_ns else ns, ns / cost
        if 2 * cost < budget:
            return Fastest(step_ns, min(self.unit_ns, unit_ns))
        return Fastest(step_ns, min(self.unit_ns * FADES, unit_ns) if self.unit_ns else unit_ns)


@dataclass(frozen=True, slots=True)
class LeastWork:
    """What is left of a request at least: `cost` before it emits anything, then `steps` more steps."""

    cost: int
    steps: int


def soonest_ns(work: LeastWork, ahead: int, fastest: Fastest, budget: int) -> float:
    """How long `work` takes at least behind others that cost `ahead` together, in steps of `budget`."""
    cost = work.cost + ahead
    return max(-(-cost // budget) * fastest.step_ns, cost * fastest.unit_ns) + work.steps * fastest.step_ns


def too_late(soonest: float, deadline_ms: float) -> Never | None:
    """The refusal of a request that ends `soonest` ns after its arrival at the earliest, or None when it may be in
    time."""
    if soonest <= deadline_ms * _MS:
        return None
    limit = max(0, int(deadline_ms))
    return Never(rule="deadline", unit="ms", need=max(limit + 1, round(soonest / _MS)), limit=limit, option=None)
