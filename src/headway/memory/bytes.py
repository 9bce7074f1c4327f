"""A pool that is counted in bytes, for state of no fixed size: live + reusable + free = total, as in `BlockPool`."""

from __future__ import annotations

from collections.abc import Callable

from headway.core.errors import InvariantError
from headway.core.verdict import SpaceRule, Unit


class BytePool:
    """`total` bytes. What is taken is a `Grant`, which owns its bytes until it is released. `freed` is told the slot
    of each grant that is released, so that whoever keeps what lies there can let go of it."""

    rule: SpaceRule = "latent"
    unit: Unit = "bytes"
    reusable = 0
    evictions = 0
    step = 0

    def __init__(self, total: int, freed: Callable[[int], None] = lambda slot: None) -> None:
        self.total = total
        self._freed = freed
        self._live: dict[int, int] = {}
        self._number = 0

    @property
    def live(self) -> int:
        return sum(self._live.values())

    @property
    def free(self) -> int:
        return self.total - self.live

    def newly_reusable(self) -> tuple[int, ...]:
        """None: nothing in it is found again."""
        return ()

    def take(self, size: int) -> Grant:
        """`size` bytes, which the caller knows to be free. Raises InvariantError when they are not."""
        if size > self.free:
            raise InvariantError(f"{size} bytes were taken from a pool that has {self.free} left")
        self._number += 1
        self._live[self._number] = size
        return Grant(self, self._number, size)

    def check(self, grants: dict[int, int]) -> None:
        """Raise InvariantError unless what is live is exactly `grants`: sizes by slot."""
        if self._live != grants or self.free < 0:
            raise InvariantError(f"{self._live} bytes are live by slot, holders count {grants}")


class Grant:
    """Bytes of a pool; `slot` is a number that no other grant has, or had."""

    __slots__ = ("_pool", "size", "slot")

    def __init__(self, pool: BytePool, slot: int, size: int) -> None:
        self._pool, self.slot, self.size = pool, slot, size

    def release(self) -> None:
        """Give the bytes back. A second call does nothing."""
        if self._pool._live.pop(self.slot, None) is not None:
            self._pool._freed(self.slot)
