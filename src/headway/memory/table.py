"""A block table: the one handle that owns one sequence's state, its part of the KV cache."""

from __future__ import annotations

from headway.memory.keys import KeyChain, block_key
from headway.memory.pool import BlockPool


class BlockTable:
    """The blocks of one sequence in order of position. Each entry is one reference in the pool; the first `found` of
    them were not taken for it."""

    __slots__ = ("_named", "_pool", "_published", "blocks", "found")

    def __init__(self, pool: BlockPool, blocks: list[int], published: int) -> None:
        self._pool = pool
        self.blocks = blocks
        self.found = len(blocks)
        self._published = published  # leading blocks that need no further publishing
        self._named: tuple[int, ...] | None = None

    @property
    def named(self) -> tuple[int, ...]:
        """The blocks as a plan names them; the same object until they change."""
        if self._named is None:
            self._named = tuple(self.blocks)
        return self._named

    def grow(self, count: int) -> list[int]:
        """Append `count` blocks, which the caller knows to be available. Returns them."""
        self._named = None
        fresh = [self._pool.take() for _ in range(count)]
        self.blocks.extend(fresh)
        return fresh

    def shrink(self, length: int) -> int:
        """Give back all but the first `length` blocks. Returns how many went."""
        return self._drop_beyond(length, keep=True)

    def publish(self, keys: KeyChain, tokens: list[int], computed: int) -> None:
        """Index every block whose positions are all computed."""
        size = self._pool.block_tokens
        whole = computed // size
        if whole <= self._published:
            return
        chain = keys.upto(tokens, whole)
        for i in range(self._published, whole):
            parent, origin = (chain[i - 1], None) if i else (keys.root, keys.origin)
            self._pool.publish(self.blocks[i], chain[i], parent, tokens[i * size : (i + 1) * size], origin)
        self._published = whole

    def publish_tail(self, keys: KeyChain, tokens: list[int], computed: int) -> None:
        """Index the block that is computed in part, when nothing more is to be written to it. A later sequence may go
        on with a copy."""
        whole, filled = divmod(computed, self._pool.block_tokens)
        if filled:
            tail = tokens[computed - filled : computed]
            parent, origin = (keys.upto(tokens, whole)[whole - 1], None) if whole else (keys.root, keys.origin)
            self._pool.publish(self.blocks[whole], block_key(parent, tail), parent, tail, origin)

    def release(self, *, keep: bool = True) -> None:
        """Give every block back; with `keep` False what they hold is not to be found again. A second call does
        nothing."""
        self._drop_beyond(0, keep=keep)

    def _drop_beyond(self, length: int, *, keep: bool) -> int:
        """The last block goes first, so that a prefix outlives what follows it."""
        self._named = None
        spare = self.blocks[length:]
        for block in reversed(spare):
            self._pool.drop(block, keep=keep)
        del self.blocks[length:]
        return len(spare)
