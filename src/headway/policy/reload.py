"""Whether blocks that lie in tiers are brought back, or computed again.

Bringing back a position moves so many bytes, and computing it takes so long: reloading is worth while where the bytes
come faster than `state bytes per position × prefill positions per second`, the break-even bandwidth. Both sides are
measured while running. Until both are known, blocks are reloaded: that is what measures one of them, and it is the
usual winner. What was measured counts for a minute; so a tier that was too slow is tried again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headway.core.tiers import ReloadChoice
from headway.policy.copies import CopyBudget

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

    def typical(self, now: int) -> float | None:
        """The median over the measurements of the last minute; None where there is none. For what takes microseconds:
        where other work has the cores, a few of them take as long as a time slice of the system's."""
        fresh = sorted(amount / ns * 1e9 for at, amount, ns in self._measured if 0 <= now - at <= _FRESH_NS)
        return fresh[len(fresh) // 2] if fresh else None


class BlockSize(NamedTuple):
    """`bytes` of state of so many `positions`."""

    bytes: int
    positions: int


@dataclass(slots=True)
class Measured:
    """What was measured lately: `prefill` in positions; `offload` and `reload` (from the pool to host memory, and
    back) and `read` (from disk) in bytes. Memory that is touched for the first time is slower, so each way has its
    own."""

    prefill: Rate = field(default_factory=Rate)
    offload: Rate = field(default_factory=Rate)
    reload: Rate = field(default_factory=Rate)
    read: Rate = field(default_factory=Rate)

    def copies(self, way: Literal["offload", "reload"], now: int) -> float | None:
        """Bytes per second of copies that way. Of one that was not measured the other one says it; None where neither
        was."""
        own, other = (self.offload, self.reload) if way == "offload" else (self.reload, self.offload)
        return own.typical(now) or other.typical(now)


def choose(host: int, disk: int, block: BlockSize, measured: Measured, now: int, budget: CopyBudget) -> ReloadChoice:
    """For blocks of a prefix of which `host` lie in host memory and `disk` on disk. A block from disk is read, then
    copied, for which each step has that budget."""
    prefill, read = measured.prefill.per_second(now), measured.read.per_second(now)
    copy = measured.copies("reload", now)
    break_even = None if prefill is None else block.bytes / block.positions * prefill
    if copy is None or (disk and read is None):
        return ReloadChoice(True, host, disk, None, break_even)
    seconds_per_byte = 1 / budget.per_second(block.bytes, copy) + (disk / (host + disk) / read if read else 0.0)
    bandwidth = 1 / seconds_per_byte
    return ReloadChoice(break_even is None or bandwidth >= break_even, host, disk, bandwidth, break_even)
