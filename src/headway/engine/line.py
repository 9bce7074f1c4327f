"""Those who wait, and in which order they are looked at: by a place that never changes, or by who has had least."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from headway.core.request import Request
from headway.policy.fair import Counters
from headway.policy.order import Order, deadline, fcfs


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
