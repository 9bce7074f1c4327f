"""Who is next: an order is a key, and the smallest key goes first. The last in order is preempted first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headway.core.request import Request

#: Maps a request to its place. It must not change while the request is alive, and no two requests share one.
Order: TypeAlias = Callable[[Request], tuple[int, ...]]


def fcfs(request: Request) -> tuple[int, ...]:
    """First come, first served. A preempted request keeps its arrival, so it is ahead of all that came later."""
    return (request.arrival,)


def priority(request: Request) -> tuple[int, ...]:
    """The lowest priority number first; among equals, first come, first served."""
    return (request.priority, request.arrival)


def deadline(request: Request) -> tuple[int, ...]:
    """The earliest deadline first (EDF, Liu and Layland 1973), those without one last; among equals, first come,
    first served."""
    never_due = request.deadline_at is None
    return (never_due, request.deadline_at or 0, request.arrival)


ORDERS: dict[str, Order] = {"fcfs": fcfs, "priority": priority, "deadline": deadline}


def heeds_priority(policy: str) -> bool:
    """Whether a request's `priority` has an effect."""
    return policy == "priority"
