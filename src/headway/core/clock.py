"""Time as a value that is passed in: the real clock, and one that a model of the machine moves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Nanoseconds since an arbitrary origin, never decreasing. It may jump forwards, as when a process is stopped
    for hours; where one should go back after all, what is measured by it is worth nothing, and nothing breaks."""

    def now_ns(self) -> int: ...


class RealClock:
    """The system's monotonic clock; on one machine it is the same for every process."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class ModelledClock:
    """A clock that stands still until `advance` moves it."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Move forward by `ns` ≥ 0."""
        if ns < 0:
            raise ValueError(f"a clock cannot move by {ns} ns")
        self._now_ns += ns
