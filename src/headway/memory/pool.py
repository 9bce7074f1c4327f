"""The block pool of the KV cache (as in PagedAttention): every block is live (referenced), reusable (unreferenced,
content kept) or free, always.

All operations are O(1) per block. The pool knows no sequence and decides nothing: who may have a block is settled
before it is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from headway.core.errors import InvariantError
from headway.core.verdict import SpaceRule, Unit
from headway.memory.keys import Elsewhere, Origin
from headway.memory.prefix import PrefixIndex
from headway.memory.tiers import Tiers


class BlockPool:
    """`total` blocks of `block_tokens` positions each. `step` is the step that is being planned, which is what an
    eviction is remembered with. `tiers`, where there are any, are told of every whole block that is indexed.
    `elsewhere` is as in `PrefixIndex`."""

    rule: SpaceRule = "blocks"
    unit: Unit = "blocks"

    def __init__(
        self, total: int, block_tokens: int, tiers: Tiers | None = None, elsewhere: tuple[Elsewhere, ...] = ()
    ) -> None:
        self.total = total
        self.tiers = tiers
        self.block_tokens = block_tokens
        self.index = PrefixIndex(elsewhere)
        self.evictions = 0
        self.step = 0
        self._references = [0] * total
        self._key: list[bytes | None] = [None] * total
        self._free = list(range(total - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._untold: dict[int, None] = {}  # became reusable since `newly_reusable` was last asked

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def reusable(self) -> int:
        return len(self._reusable)

    @property
    def live(self) -> int:
        return self.total - len(self._free) - len(self._reusable)

    def references(self, block: int) -> int:
        return self._references[block]

    def unshared(self, blocks: Sequence[int]) -> int:
        """How many of these have one reference."""
        return list(map(self._references.__getitem__, blocks)).count(1)

    def is_reusable(self, block: int) -> bool:
        return block in self._reusable

    def next_evicted(self, taken: int) -> frozenset[int]:
        """The reusable blocks that are evicted when `taken` blocks are taken. Changes nothing."""
        return frozenset(islice(self._reusable, max(0, taken - len(self._free))))

    def newly_reusable(self) -> tuple[int, ...]:
        """Blocks that became reusable since this was last asked, and still are. Asking is what makes them old."""
        if not self._untold:
            return ()
        told = tuple(block for block in self._untold if block in self._reusable)
        self._untold.clear()
        return told

    def take(self) -> int:
        """A block of unknown content with one reference: a free one, else the least recently used reusable one,
        whose content is then evicted. Raises InvariantError when there is neither (the caller must have asked)."""
        if self._free:
            block = self._free.pop()
        elif self._reusable:
            block, _ = self._reusable.popitem(last=False)
            key = self._key[block]
            assert key is not None
            self.index.evict(key, self.step)
            self._key[block] = None
            self.evictions += 1
            if self.tiers is not None:
                self.tiers.gone(block)
        else:
            raise InvariantError("a block was taken from a pool that has none left")
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a live or reusable block."""
        if self._references[block] == 0:
            if block not in self._reusable:
                raise InvariantError(f"block {block} is free and cannot be shared")
            del self._reusable[block]
        self._references[block] += 1

    def used(self, block: int) -> None:
        """An indexed block was found by a request: its copies are of use, or it is to have one."""
        key = self._key[block]
        if self.tiers is not None and key is not None:
            self.tiers.indexed(block, key)

    def renew(self, block: int) -> None:
        """A reusable block was of use just now, so it is evicted last."""
        if block in self._reusable:
            self._reusable.move_to_end(block)

    def drop(self, block: int, *, keep: bool = True) -> None:
        """One reference less. At none, an indexed block becomes reusable and any other one free; with `keep` False
        an indexed one is forgotten, and free too."""
        if self._references[block] == 0:
            raise InvariantError(f"block {block} was dropped without a reference")
        self._references[block] -= 1
        if self._references[block]:
            return
        key = self._key[block]
        if key is not None and not keep:
            self.index.forget(key)
            if self.tiers is not None:
                self.tiers.spoil(block, key)
            key = self._key[block] = None
        if key is None:
            self._free.append(block)
        else:
            self._reusable[block] = self._untold[block] = None

    def publish(self, block: int, key: bytes, parent: bytes, tokens: list[int], origin: Origin | None = None) -> None:
        """The computed content of live `block` may be found under `key` from now on; `origin` is given with the first
        of a chain. Where another block already holds the same content, this one stays unindexed."""
        if self._references[block] == 0:
            raise InvariantError(f"block {block} is not live and cannot be published")
        if self._key[block] is None and self.index.get(key) is None:
            self._key[block] = key
            self.index.put(key, block, parent, tokens, origin)
            if self.tiers is not None and len(tokens) == self.block_tokens:
                self.tiers.indexed(block, key)

    def check(self, references: dict[int, int]) -> None:
        """Raise InvariantError unless the pool's references are exactly `references` and its sets partition it."""
        for block in range(self.total):
            if self._references[block] != references.get(block, 0):
                raise InvariantError(
                    f"block {block}: {self._references[block]} references, holders count {references.get(block, 0)}"
                )
        idle = [*self._free, *self._reusable]
        if len(set(idle)) != len(idle) or any(self._references[block] for block in idle):
            raise InvariantError("a block is both idle and in use, or idle twice")
        if self.live + self.reusable + self.free != self.total or self.live != len(references):
            raise InvariantError("live + reusable + free is not total")
        keyed = {block for block in range(self.total) if self._key[block] is not None}
        if len(keyed) != len(self.index) or any(self._key[block] is None for block in self._reusable):
            raise InvariantError("the prefix index and the blocks' keys disagree")
        if any(self._key[block] is not None for block in self._free):
            raise InvariantError("a free block is still indexed")
