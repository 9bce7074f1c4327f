"""Whether blocks that lie in tiers are brought back, or computed again.

Bringing back a position moves so many bytes, and computing it takes so long: reloading is worth while where the bytes
come faster than `state bytes per position × prefill positions per second`, the break-even bandwidth. Both sides are
measured while running. Until both are known, blocks are reloaded: that is what measures one of them, and it is the
usual winner. What was measured counts for a minute; so a tier that was too slow is tried again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headway.core.tiers import ReloadChoice

#: Measurements that count, at most, and for how long.
_LATEST, _FRESH_NS = 64, 60_000_000_000


@dataclass(slots=True)
class Rate:
    """Amounts per second, over the latest measurements."""

    _measured: deque[tuple[int, float, int]] = field(default_factory=lambda: deque(maxlen=_LATEST))

    def note(self, at: int, amount: float, ns: int) -> None:
        """At `at`, `amount` had taken `ns`. A clock that stood still, or went back, measured nothing; what took
        longer than it would count, as when the process was stopped meanwhile, is no measurement either."""
        if 0 < ns <= _FRESH_NS:
            self._measured.append((at, amount, ns))

    def per_second(self, now: int) -> float | None:
        """None where nothing was measured in the last minute."""
        fresh = [(amount, ns) for at, amount, ns in self._measured if 0 <= now - at <= _FRESH_NS]
        ns = sum(ns for _, ns in fresh)
        return sum(amount for amount, _ in fresh) / ns * 1e9 if ns else None


@dataclass(slots=True)
class Measured:
    """What was measured lately: `prefill` in positions, `copy` (between pool and host memory) and `read` (from disk)
    in bytes."""

    prefill: Rate = field(default_factory=Rate)
    copy: Rate = field(default_factory=Rate)
    read: Rate = field(default_factory=Rate)


def choose(host: int, disk: int, position_bytes: float, measured: Measured, now: int) -> ReloadChoice:
    """For blocks of a prefix of which `host` lie in host memory and `disk` on disk. A block from disk is read, then
    copied."""
    prefill, copy, read = (rate.per_second(now) for rate in (measured.prefill, measured.copy, measured.read))
    break_even = None if prefill is None else position_bytes * prefill
    if copy is None or (disk and read is None):
        return ReloadChoice(True, host, disk, None, break_even)
    seconds_per_byte = 1 / copy + (disk / (host + disk) / read if read else 0.0)
    bandwidth = 1 / seconds_per_byte
    return ReloadChoice(break_even is None or bandwidth >= break_even, host, disk, bandwidth, break_even)
