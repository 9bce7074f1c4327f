"""Who is preempted when a running sequence needs a block and there is none, free or reusable.

Only running requests preempt each other, and a request never preempts one that is before it in the policy's order:
the victim is the last in that order, which may be the very one that asks. So the first keeps what it has and ends,
and nothing can be preempted in circles.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.policy.order import Order
from headway.request import Request


def victim(running: Iterable[Request], order: Order) -> Request:
    """The last in order."""
    return max(running, key=order)


def price(request: Request) -> int:
    """Positions whose state is given up; how many must be recomputed shows only when it resumes."""
    return sum(sequence.computed for sequence in request.open_sequences)
