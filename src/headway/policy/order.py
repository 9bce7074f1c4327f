"""Who is next: an order is a key, and the smallest key goes first. The last in order is preempted first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headway.core.request import Request

#: Maps a request to its place. It must not change while the request is alive, and no two requests share one; its last
#: number is the arrival.
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
    never_due = int(request.deadline_at is None)  # events hold numbers
    return (never_due, request.deadline_at or 0, request.arrival)


def promised_first(order: Order) -> Order:
    """Whoever was promised a deadline goes first, the earliest before the others, and whoever has one without a
    promise before those that have none; else as in `order`."""

    def place(request: Request) -> tuple[int, ...]:
        kind = 2 if request.deadline_at is None else 0 if request.promised else 1
        return (kind, request.deadline_at or 0, *order(request))

    return place


def shorter_first(order: Order, size: Callable[[Request], int], *, step: int, within: int) -> Order:
    """`order`, but that among requests that arrive close together the smaller goes first.

    A request counts as if it had arrived later, by its share of a step: one of `size` 0 by nothing, one that fills a
    step of `step` (or more) by `within` arrivals, the others in between. So a mean wait is shorter, as with the
    shortest job first, and none is starved: whoever arrives more than `within` requests later goes behind, whatever
    the sizes are. Ages are counted in arrivals, not in time: a place never changes, and the queue stays sorted.
    With `within` 0 it is `order` itself. Nobody ever waits for others to come.

    Only for requests that are evaluated whole: a step that has no place left for the next one has none for those
    behind it, and packs best when the sizes beside each other are alike.
    """

    def place(request: Request) -> tuple[int, ...]:
        *first, arrival = order(request)
        return (*first, arrival + within * min(size(request), step) // step, arrival)

    return place


#: By `--policy`. What is fair among callers changes as they are served (`policy/fair.py`), so it orders only those
#: who wait; those who run are in order of arrival then too.
ORDERS: dict[str, Order] = {"fcfs": fcfs, "priority": priority, "deadline": deadline, "fair": fcfs}
