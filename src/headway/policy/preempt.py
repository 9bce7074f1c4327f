"""Who is preempted when a running request needs space and there is none, free or reusable, and what that costs.

Only running requests preempt each other, and none ever preempts one that goes before it: the victim is the last in
order, which may be the very one that asks. So nobody is preempted for one that would then be preempted by it, the
first in order always keeps what it has and ends, and nothing can be preempted in circles.

The price of a victim is told, not compared: space freed costs about as many positions whoever frees it (each unit
holds the same number), so a cheaper victim frees less and the next one follows sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.core.request import Request
from headway.policy.order import Order


def victim(running: Iterable[Request], order: Order) -> Request:
    """The last in order of the running requests, of which there is at least one."""
    return max(running, key=order)


@dataclass(frozen=True, slots=True)
class Part:
    """The state of one sequence of a victim.

    computed   positions that have state, `unit` of them in each unit of space
    alone      for each unit of space that it holds, in order: nobody else holds it
    """

    computed: int
    unit: int
    alone: Sequence[bool]


def price(parts: Sequence[Part], short: int, *, kept: bool) -> int:
    """Positions that a victim would have to compute again if it resumed once `short` units of its space are taken.

    With `kept` what it held stays reusable until it is taken: first what has no state yet, then from each part in
    turn the last unit before the others, so that what is left is a beginning. Units that others hold stay. Later
    needs may take more: it is the least price. Without `kept` all its state is gone at once.
    """
    if not kept:
        return sum(part.computed for part in parts)
    short -= sum(part.alone[place] for part in parts for place in range(_written(part), len(part.alone)))
    lost = 0
    for part in parts:
        first_gone = _written(part)
        for place in reversed(range(first_gone)):
            if short <= 0:
                break
            if part.alone[place]:
                short, first_gone = short - 1, place
        lost += max(0, part.computed - first_gone * part.unit)
    return lost


def _written(part: Part) -> int:
    """Units that hold state of at least one position."""
    return -(-part.computed // part.unit)
