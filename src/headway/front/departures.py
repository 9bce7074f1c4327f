"""How fast requests leave the queue, and positions with them: what `Retry-After` is computed from."""

from __future__ import annotations

from collections import deque
from math import ceil

#: Departures of so many seconds are remembered.
OVER_S = 30
#: What is told where nothing was measured.
UNKNOWN_S = 5


class Departures:
    """Places that came free: of requests that were admitted for the first time, or were over before. Counted by the
    second; all times are in seconds, of one clock."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int, int]] = deque()  # the second, requests, positions
        self._first_s: float | None = None

    def leave(self, now_s: float, positions: int) -> None:
        """One request left the queue, with so many positions."""
        self._forget(now_s)
        if self._first_s is None:
            self._first_s = now_s
        second, requests = int(now_s), 1
        if self._seconds and self._seconds[-1][0] == second:
            _, others, more = self._seconds.pop()
            requests, positions = requests + others, positions + more
        self._seconds.append((second, requests, positions))

    def wait_s(self, now_s: float, *, requests: int = 0, positions: int = 0) -> int:
        """Whole seconds, at least 1, until so many more requests and positions will have left, if they go on leaving
        as they did of late."""
        self._forget(now_s)
        over_s = min(OVER_S, max(1.0, now_s - (now_s if self._first_s is None else self._first_s)))
        waits_s = [1]
        for short, column in ((requests, 1), (positions, 2)):
            left = sum(row[column] for row in self._seconds)
            if short > 0:
                waits_s.append(ceil(short * over_s / left) if left else UNKNOWN_S)
        return max(waits_s)

    def _forget(self, now_s: float) -> None:
        """Of what was too long ago, and of what is yet to come, where the clock went back."""
        while self._seconds and self._seconds[-1][0] > now_s:
            self._seconds.pop()
        if self._first_s is not None:
            self._first_s = min(self._first_s, now_s)
        while self._seconds and self._seconds[0][0] < now_s - OVER_S:
            self._seconds.popleft()
