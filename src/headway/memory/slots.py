"""The slots of one tier: which block lies in which slot, by its key, the least recently used evicted first.

A slot is free, being written, or holds the block of a key. Whoever reads or writes one pins it, and a pinned slot is
never given to another block. All operations are O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from headway.core.errors import InvariantError


class Slots:
    """`total` slots. `held` are the keys that lie there already, by slot, the least recently used first."""

    def __init__(self, total: int, held: Mapping[int, bytes] | None = None) -> None:
        self.total = total
        self.evictions = 0
        self._slot: dict[bytes, int] = {}  # of blocks that are wholly there
        self._writing: dict[bytes, int] = {}
        self._key: dict[int, bytes] = {}  # of both
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # there and not pinned, least recently used first
        for slot, key in (held or {}).items():
            self._slot[key], self._key[slot], self._idle[key] = slot, key, None
        self._free = [slot for slot in range(total - 1, -1, -1) if slot not in self._key]

    def __len__(self) -> int:
        """Blocks that are there."""
        return len(self._slot)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slot

    def expects(self, key: bytes) -> bool:
        """Whether its block is there, or being written."""
        return key in self._slot or key in self._writing

    def slot(self, key: bytes) -> int:
        """Where the block of `key` lies, which is there."""
        return self._slot[key]

    @property
    def room(self) -> bool:
        """Whether another block could be written now."""
        return bool(self._free or self._idle)

    @property
    def pinned(self) -> int:
        """Slots that cannot be given to another block now."""
        return self.total - len(self._free) - len(self._idle)

    def claim(self, key: bytes) -> int | None:
        """A slot to write the block of `key` to, which is not there yet: a free one, else that of the least recently
        used block, which is evicted. None while all slots are pinned. It counts as pinned until `written` or
        `forget`."""
        if not self.room:
            return None
        if not self._free:
            oldest, _ = self._idle.popitem(last=False)
            self._drop(oldest)
            self.evictions += 1
        slot = self._free.pop()
        self._writing[key], self._key[slot] = slot, key
        return slot

    def written(self, key: bytes) -> None:
        """The block that a slot was claimed for is there now."""
        self._slot[key] = self._writing.pop(key)
        self._idle[key] = None

    def forget(self, key: bytes) -> None:
        """The block of `key` is not there, or not any more. Its slot is free again once nobody pins it."""
        if self.expects(key):
            self._idle.pop(key, None)
            self._drop(key)

    def pin(self, key: bytes) -> int:
        """The slot of a block that is there; it stays until as many `unpin`s."""
        slot = self._slot[key]
        self._idle.pop(key, None)
        self._pins[slot] = self._pins.get(slot, 0) + 1
        return slot

    def unpin(self, slot: int) -> None:
        """Done with it; its block was of use just now."""
        self._pins[slot] -= 1
        if self._pins[slot]:
            return
        del self._pins[slot]
        key = self._key.get(slot)
        if key is None:
            self._free.append(slot)
        else:
            self._idle[key] = None

    def renew(self, key: bytes) -> None:
        """Its block was of use elsewhere just now, so it is evicted last."""
        if key in self._idle:
            self._idle.move_to_end(key)

    def _drop(self, key: bytes) -> None:
        slot = self._slot.pop(key, None)
        if slot is None:
            slot = self._writing.pop(key)
        del self._key[slot]
        if slot not in self._pins:
            self._free.append(slot)

    def check(self, pinned: Iterable[int], writing: Iterable[bytes]) -> None:
        """Raise InvariantError unless the pins are exactly those of `pinned`, a slot as often as it is pinned, the
        blocks being written those of `writing`, and the slots' sets partition them."""
        counted: dict[int, int] = {}
        for slot in pinned:
            counted[slot] = counted.get(slot, 0) + 1
        if self._pins != counted or set(self._writing) != set(writing):
            raise InvariantError(f"slots pinned {self._pins}, holders count {counted}; written {len(self._writing)}")
        lost = [slot for slot in self._pins if slot not in self._key]
        if len(self._free) + len(self._slot) + len(self._writing) + len(lost) != self.total:
            raise InvariantError("free, held and written slots are not all slots")
        if any(self._slot[key] in self._pins for key in self._idle) or len(set(self._free)) != len(self._free):
            raise InvariantError("a slot is both idle and pinned, or free twice")
        if {key: slot for slot, key in self._key.items()} != self._slot | self._writing:
            raise InvariantError("keys and slots disagree")
