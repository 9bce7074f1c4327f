"""Whose step is next, and how large it may be, where several models share one device.

Each model has a weight. The one that has had the least device time for its weight goes next, so over time busy models
have the device in proportion to their weights, however long their steps are (fair queueing by virtual time, as in
start-time fair queueing, Goyal et al. 1996). Time that an idle model did not ask for is not saved up: when it becomes
busy, it starts level with the busy one that has had least.

A model whose callers wait for the next token of each step is *paced*: other models' steps stretch the gap between
its tokens. They may do so up to a bound (`--max-slowdown`): what has passed since its last step, and the step to
come, fit into (slowdown − 1) of its own steps. A step whose budget is cut for that comes directly after one of the
paced model's, and may always hold one item, however large: the bound comes before the weights, but text never starves
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.core.request import MOST

#: A step that begins within this part of another one's length begins directly after it.
_AT_ONCE = 0.1
#: A first step beside a paced model, before anything is known of how long one takes.
_FIRST_BUDGET = 64
#: Device time that one step counts for, at most. A clock that jumps while a step runs, as when the process is stopped
#: for hours, makes no model wait that long for its turn.
_MOST_CHARGED_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Share:
    """What a model had of the device: `device_ns`, of which it is due a part in proportion to `weight` > 0."""

    device_ns: int
    weight: float

    @property
    def virtual_ns(self) -> float:
        """Device time for one unit of weight."""
        return self.device_ns / self.weight


def next_model(busy: Sequence[Share]) -> int:
    """The place in `busy` of the model whose step is next; among equals the first."""
    return min(range(len(busy)), key=lambda place: busy[place].virtual_ns)


def charged(ns: int) -> int:
    """What a step that took `ns` by the clock counts for in its model's share."""
    return max(0, min(ns, _MOST_CHARGED_NS))


def caught_up(returning: Share, busy: Sequence[Share]) -> int:
    """The device time at which a model that was idle counts on, beside those that were `busy` meanwhile."""
    least = min((share.virtual_ns for share in busy), default=0.0)
    return max(returning.device_ns, int(least * returning.weight))


@dataclass(frozen=True, slots=True)
class Pace:
    """What is measured of a model's recent steps: how long one takes undisturbed (`step_ns`, the fastest of them:
    work for other models slows this one's own steps too, and must not widen their bound), and what a step of a given
    cost would take, `fixed_ns + unit_ns * cost`. All 0: nothing yet.

    most       the largest cost of these steps
    paced      callers wait for each of its steps now: it has running sequences that emit a token in each
    since_ns   how long ago its last step ended; None: it has had none since it became busy
    """

    step_ns: int
    fixed_ns: float = 0.0
    unit_ns: float = 0.0
    most: int = 0
    paced: bool = False
    since_ns: int | None = None

    @classmethod
    def of(
        cls,
        whole: Sequence[tuple[int, int]],
        divided: Sequence[tuple[int, int]] = (),
        *,
        paced: bool = False,
        since_ns: int | None = None,
    ) -> Pace:
        """The pace of steps that took (ns, cost) each: the line through them with the least squares, as far as a line
        that neither starts below 0 nor falls can be. In those of `divided` something was divided: a unit costs no
        less than in the dearest of the large ones, since each chunk of a prompt attends to more than the one before,
        and a mean lags behind."""
        if not (steps := [*whole, *divided]):
            return cls(0, paced=paced, since_ns=since_ns)
        mean_ns, mean_cost = (sum(values) / len(steps) for values in zip(*steps, strict=True))
        spread = sum((cost - mean_cost) ** 2 for _, cost in steps)
        together = sum((ns - mean_ns) * (cost - mean_cost) for ns, cost in steps)
        most = mean_ns / mean_cost if mean_cost else 0.0
        unit_ns = min(most, max(0.0, together / spread)) if spread else most
        fixed_ns = mean_ns - unit_ns * mean_cost
        large = max((cost for _, cost in divided), default=0) / 2  # of small ones fixed_ns says too little
        unit_ns = max([unit_ns, *((ns - fixed_ns) / cost for ns, cost in divided if cost > large)])
        return cls(
            step_ns=min(ns for ns, _ in steps),
            fixed_ns=fixed_ns,
            unit_ns=unit_ns,
            most=max(cost for _, cost in steps),
            paced=paced,
            since_ns=since_ns,
        )

    def within(self, room_ns: float) -> int:
        """The largest cost of a step that takes no more than `room_ns`; 0 when not even the least fits."""
        if not self.step_ns:
            return _FIRST_BUDGET if room_ns > 0 else 0
        left_ns = room_ns - self.fixed_ns
        if left_ns <= 0:
            return 0
        return int(min(MOST, left_ns / self.unit_ns)) if self.unit_ns else MOST


class Turn(NamedTuple):
    """The place of the model whose step is next, the budget of that step, and the place of the model for whose pace
    that budget was cut, if it was."""

    place: int
    budget: int
    kept: int | None = None


def next_turn(shares: Sequence[Share], paces: Sequence[Pace], budgets: Sequence[int], slowdown: float | None) -> Turn:
    """Whose step is next among busy models, within `slowdown`; None: without that bound."""
    place = next_model(shares)
    pressing = [] if slowdown is None else [other for other in _pressing(paces) if other != place]
    if not pressing:
        return Turn(place, budgets[place])
    assert slowdown is not None
    kept = min(pressing, key=lambda other: _room_ns(paces[other], slowdown))
    within = paces[place].within(_room_ns(paces[kept], slowdown))
    if within >= budgets[place]:
        return Turn(place, budgets[place])
    if (paces[kept].since_ns or 0) > _AT_ONCE * paces[kept].step_ns:
        return Turn(kept, budgets[kept])
    return Turn(place, max(1, within), kept)


def _pressing(paces: Sequence[Pace]) -> list[int]:
    return [place for place, pace in enumerate(paces) if pace.paced and pace.step_ns and pace.since_ns is not None]


def _room_ns(pace: Pace, slowdown: float) -> float:
    """How long steps of others may take before the next one of this pace."""
    return (slowdown - 1) * pace.step_ns - (pace.since_ns or 0)
