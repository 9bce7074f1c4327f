"""Those who wait, and in which order they are looked at: by a place that never changes, or by who has had least."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Protocol

from headway.core.request import Request
from headway.policy.fair import Counters
from headway.policy.order import Order, deadline, fcfs

#: Requests in a run of a `CostedLine`; at most twice as many.
_RUN = 32


class Line(Protocol):
    """Waiting requests. Adding and taking out cost in proportion to the logarithm of their number, looking at the
    first few nothing more than these."""

    def __len__(self) -> int: ...

    def upcoming(self) -> Iterator[Request]:
        """In order, each once; the one that was given last may be taken out before the next is asked for."""
        ...

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...

    def block(self, head: Request) -> None:
        """The first in order cannot go: it is to stay the first, however the order changes."""
        ...


class SortedLine:
    """By an order that never changes."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def upcoming(self) -> Iterator[Request]:
        place = 0
        while place < len(self._requests):
            request = self._requests[place]
            yield request
            if place < len(self._requests) and self._requests[place] is request:
                place += 1

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=self._order)

    def remove(self, request: Request) -> None:
        del self._requests[bisect_left(self._requests, self._order(request), key=self._order)]

    def block(self, head: Request) -> None:
        """It is the first until one comes that goes before it."""


class CostedLine(SortedLine):
    """One that can say what those ahead of a place cost, together. A request's cost does not change while it waits.

    They are kept in runs as well, neighbours of one run together, with what each run costs: so an answer adds up the
    sums of the runs before, and the costs within one. Any two neighbouring runs have more than `_RUN` requests.
    """

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self._runs: list[list[Request]] = []
        self._sums: list[int] = []

    def cost_before(self, place: tuple[int, ...]) -> int:
        """Of those whose place is before this one."""
        at = self._find(place)
        if at == len(self._runs):
            return sum(self._sums)
        run = self._runs[at]
        return sum(self._sums[:at]) + _cost(run[: bisect_left(run, place, key=self._order)])

    def add(self, request: Request) -> None:
        super().add(request)
        if not self._runs:
            self._lay(0, 0, [request])
            return
        at = min(self._find(self._order(request)), len(self._runs) - 1)
        run = self._runs[at]
        insort(run, request, key=self._order)
        self._sums[at] += request.cost
        if len(run) > 2 * _RUN:
            self._lay(at, at + 1, run[:_RUN], run[_RUN:])

    def remove(self, request: Request) -> None:
        super().remove(request)
        place = self._order(request)
        at = self._find(place)
        run = self._runs[at]
        del run[bisect_left(run, place, key=self._order)]
        self._sums[at] -= request.cost
        if not run:
            self._lay(at, at + 1)
        for left in (at, at - 1):
            together = [each for run in self._runs[max(0, left) : left + 2] for each in run]
            if 0 <= left < len(self._runs) - 1 and len(together) <= _RUN:
                self._lay(left, left + 2, together)

    def _find(self, place: tuple[int, ...]) -> int:
        """The first run that does not end before a place."""
        return bisect_left(self._runs, place, key=self._last)

    def _last(self, run: list[Request]) -> tuple[int, ...]:
        return self._order(run[-1])

    def _lay(self, start: int, stop: int, *runs: list[Request]) -> None:
        """These runs in place of others."""
        self._runs[start:stop] = runs
        self._sums[start:stop] = map(_cost, runs)


def _cost(requests: Iterable[Request]) -> int:
    return sum(request.cost for request in requests)


class FairLine:
    """The caller that has had least comes first, behind those that were promised a deadline, the earliest of which
    goes before all; of one caller first come, first served.

    Counters change while requests wait, so a blocked head could lose its place for ever to callers that had less. It
    keeps it until it goes: then the bound on how many may overtake it holds here too.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._waiting: dict[str, list[Request]] = {}  # by caller, in order of arrival
        self._ranks: list[tuple[int, str]] = []  # of the callers that wait: what they had, least first
        self._promised = SortedLine(deadline)
        self._blocked: Request | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._promised)

    def upcoming(self) -> Iterator[Request]:
        yield from self._promised.upcoming()
        seen: set[int] = set()
        while (request := self._next(seen)) is not None:
            seen.add(request.arrival)
            yield request

    def add(self, request: Request) -> None:
        if request.promised:
            self._promised.add(request)
            return
        caller = request.caller
        if caller not in self._waiting:
            self._waiting[caller] = []
            insort(self._ranks, (self._counters[caller], caller))
        insort(self._waiting[caller], request, key=fcfs)
        self._count += 1

    def remove(self, request: Request) -> None:
        if request.promised:
            self._promised.remove(request)
            return
        mine = self._waiting[request.caller]
        del mine[bisect_left(mine, fcfs(request), key=fcfs)]
        if not mine:
            del self._waiting[request.caller]
            self._drop_rank(request.caller)
        if self._blocked is request:
            self._blocked = None
        self._count -= 1

    def block(self, head: Request) -> None:
        self._blocked = None if head.promised else head

    def charge(self, caller: str, tokens: int) -> None:
        """What was served for a caller may move it back."""
        waits = caller in self._waiting
        if waits:
            self._drop_rank(caller)
        self._counters.charge(caller, tokens)
        if waits:
            insort(self._ranks, (self._counters[caller], caller))

    def _drop_rank(self, caller: str) -> None:
        del self._ranks[bisect_left(self._ranks, (self._counters[caller], caller))]

    def _next(self, seen: set[int]) -> Request | None:
        """The first in order that was not seen; those that were are few."""
        if self._blocked is not None and self._blocked.arrival not in seen:
            return self._blocked
        for _, caller in self._ranks:
            for request in self._waiting[caller]:
                if request.arrival not in seen:
                    return request
        return None
