"""Who is preempted when a running request needs space and there is none, free or reusable.

Only running requests preempt each other, and none ever preempts one that goes before it: the victim is the last in
order, which may be the very one that asks. So the first in order always keeps what it has and ends, and nothing can
be preempted in circles.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.request import Request
from headway.policy.order import Order


def victim(running: Iterable[Request], order: Order) -> Request:
    """The last in order of the running requests, of which there is at least one."""
    return max(running, key=order)
