"""The last events, each with its number: what followers read, at their own pace."""

from __future__ import annotations

from collections import deque
from itertools import islice

from headway.core.events import AnyEvent

#: Some minutes of a busy server; what is older is in the event log, if there is one.
KEPT = 20_000


class EventRing:
    """Bounded: a follower that is further behind than `size` events sees a gap. Numbers count from 1 within one
    `epoch`, the life of one front."""

    def __init__(self, epoch: str, size: int = KEPT) -> None:
        self.epoch = epoch
        self.last = 0
        self._events: deque[AnyEvent] = deque(maxlen=size)

    def append(self, event: AnyEvent) -> None:
        self._events.append(event)
        self.last += 1

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept (of the next one, if none is)."""
        return self.last - len(self._events) + 1

    def after(self, number: int, most: int = 1000) -> list[tuple[int, AnyEvent]]:
        """Up to `most` events after number `number`, with their numbers. Where some of those are gone already it
        begins with the oldest one kept: compare with `first`."""
        begin = max(number + 1, self.first)
        skipped = begin - self.first
        return list(enumerate(islice(self._events, skipped, skipped + most), begin))
