"""Who is preempted when a running request needs space and there is none, free or reusable, and what that costs.

Only running requests preempt each other, and none ever preempts one that goes before it: the victim is the last in
order, which may be the very one that asks. So nobody is preempted for one that would then be preempted by it, the
first in order always keeps what it has and ends, and nothing can be preempted in circles.

The price of a victim is told, not compared. What counts is the order alone, as `policy/order.py` has it: priority,
deadline or share first, then arrival. Space freed costs about as many positions whoever frees it (each unit holds the
same number), so a cheaper victim frees less and the next one follows sooner; and blocks that a tier holds are no
reason to preempt one that goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.core.price import Price
from headway.core.request import Request
from headway.policy.order import Order


def victim(running: Iterable[Request], order: Order) -> Request:
    """The last in order of the running requests, of which there is at least one."""
    return max(running, key=order)


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence of a victim: `lost` positions had state, and when it resumes it goes on behind the first `found`:
    they are in the pool still, come from a tier, or are taken over from a sibling."""

    lost: int
    found: int


def price(parts: Sequence[Part], reload: int) -> Price:
    """What a victim costs that lost its state, and of which `reload` blocks are to be brought back from tiers.

    Others may have computed more of its prefix than it had itself: that saves nothing of what was lost.
    """
    return Price(sum(max(0, part.lost - part.found) for part in parts), reload)
