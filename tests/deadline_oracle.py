"""Whether deadlines can be met at all: every order of steps is looked at, one item after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import combinations

#: What one request still has to do, item by item: the work and its rows; and when that must be done.
Left = tuple[Sequence[tuple[object, int]], int]


def possible(requests: Sequence[Left], begin: int, takes: Callable[[object, int], int]) -> bool:
    """Whether all can be complete when they are due. In each step any of them move by one item, and what is alike is
    evaluated together. Being somewhere sooner is never worse, so the soonest time for each progress is enough; and
    the one that is due first loses nothing by being in every step."""
    start = (0,) * len(requests)
    soonest = {start: begin}
    heap = [(0, start)]
    while heap:
        total, done = heappop(heap)
        now = soonest[done]
        alive = [place for place, (items, _) in enumerate(requests) if done[place] < len(items)]
        if not alive:
            return True
        if any(now + _alone(requests[place], done[place], takes) > requests[place][1] for place in alive):
            continue
        first = min(alive, key=lambda place: requests[place][1])
        others = [place for place in alive if place != first]
        for beside in (each for size in range(len(others) + 1) for each in combinations(others, size)):
            moving = (first, *beside)
            rows: dict[object, int] = {}
            for place in moving:
                work, count = requests[place][0][done[place]]
                rows[work] = rows.get(work, 0) + count
            then = now + sum(takes(work, count) for work, count in rows.items())
            if any(then > requests[place][1] for place in moving):
                continue
            after = tuple(each + (place in moving) for place, each in enumerate(done))
            if then < soonest.get(after, 1 << 62):
                if after not in soonest:
                    heappush(heap, (total + len(moving), after))
                soonest[after] = then
    return False


def _alone(request: Left, done: int, takes: Callable[[object, int], int]) -> int:
    return sum(takes(work, rows) for work, rows in request[0][done:])
