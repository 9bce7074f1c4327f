"""How much a step copies between its pool and host memory, where somebody waits for that step.

Whoever decodes waits for all of a step, its copies too. Writes behind are never urgent, and a reload waits beside the
steps. So what a step copies takes a small part of what the shortest recent step took, by the rate at which copies
were measured; the rest is copied by the steps that follow. Where nobody waits for a step it copies for longer, but
not so long that whoever comes meanwhile would notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: What copies may add to a step that somebody waits for, in percent of the shortest recent one.
PERCENT = 5
#: How long a step may copy at most, whether or not anyone waits for it.
MOST_NS = 10_000_000
#: Bytes per second before a copy was measured: what a slow machine copies to memory that was never touched.
UNMEASURED = 1e9


@dataclass(frozen=True, slots=True)
class CopyBudget:
    """`ns` that the copies of a step may take. Where somebody waits for it, there is such a step every `every_ns`; 0:
    nobody does."""

    ns: int
    every_ns: int = 0

    def blocks(self, block_bytes: int, per_second: float | None) -> int:
        """How many blocks can be copied in it, at that rate of bytes (None: it was not measured): at least one, so
        that copies never stop."""
        return max(1, int(self.ns * (per_second or UNMEASURED) / (block_bytes * 1e9)))

    def without(self, blocks: int, block_bytes: int, per_second: float | None) -> CopyBudget:
        """What is left of it once so many blocks are copied."""
        spent = blocks * block_bytes * 1e9 / (per_second or UNMEASURED)
        return CopyBudget(max(0, int(self.ns - spent)), self.every_ns)

    def per_second(self, block_bytes: int, per_second: float) -> float:
        """Bytes per second that come with step after step, where a step's copies go at `per_second`."""
        if not self.every_ns:
            return per_second
        each = self.blocks(block_bytes, per_second) * block_bytes
        return each / (self.every_ns / 1e9 + each / per_second)


def copy_budget(steps_ns: Iterable[int]) -> CopyBudget:
    """Of a step for which running requests wait: of each of their models how long its shortest recent step took, 0
    where it has had none."""
    shortest = min(steps_ns, default=None)
    if shortest is None:
        return CopyBudget(MOST_NS)
    return CopyBudget(min(MOST_NS, shortest * PERCENT // 100), shortest)
