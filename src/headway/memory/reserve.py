"""Reservations: what a request needs to be admitted or resumed whole, and taking exactly that.

`quote` reads, `reserve` writes. Between the two the policy judges; what it granted is what is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from headway.core.miss import Miss
from headway.memory.keys import KeyChain, block_key
from headway.memory.pool import BlockPool
from headway.memory.table import BlockTable


class History(Protocol):
    """A token history whose state is kept in blocks (see `patterns/text/sequence.py`)."""

    tokens: list[int]
    prompt: int
    keys: KeyChain
    computed: int
    unscored: int | None
    state: BlockTable | None

    @property
    def known(self) -> int: ...
    @property
    def emitted(self) -> int: ...
    @property
    def inheritable(self) -> int: ...


def blocks_for(positions: int, block_tokens: int) -> int:
    """Blocks that hold `positions` positions: ⌈positions / block_tokens⌉."""
    return -(-positions // block_tokens)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What admission or resumption of some sequences takes.

    sizes      blocks of each sequence's table, one position beyond the known ones included
    shared     leading blocks that all tables have in common (only the leading sequence computes them)
    matched    already computed blocks per sequence, found by prefix, in table order
    fresh      blocks that must come from the free and reusable ones
    revived    matched blocks that are reusable now: they cannot be counted as available as well
    stored     keys of the blocks that follow the leading sequence's matched ones and lie in tiers: to be reloaded
    begun      what the block behind the leading sequence's matched ones begins with: a block to copy, and how many
               of its positions agree; None when none does
    """

    sizes: tuple[int, ...]
    shared: int
    matched: tuple[tuple[int, ...], ...]
    fresh: int
    revived: int
    begun: tuple[int, int] | None = None
    stored: tuple[bytes, ...] = ()

    def inherited(self, block_tokens: int) -> int:
        """Positions that the leading sequence need not compute."""
        whole = len(self.matched[0]) + len(self.stored)
        return whole * block_tokens + (self.begun[1] if self.begun else 0)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A reservation that could not be made: `need` blocks, `have` available."""

    need: int
    have: int


class StateMemory:
    """The state memory (KV cache) of one model: a pool, and the rules by which sequences share it."""

    def __init__(self, pool: BlockPool, *, prefix_cache: bool) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache

    def worst_case(self, prompt: int, n: int, emitted: int) -> int:
        """Blocks for `n` sequences that each grow to `prompt + emitted` positions."""
        size = self.pool.block_tokens
        shared = prompt // size if n > 1 else 0
        return shared + n * (blocks_for(prompt + emitted, size) - shared)

    def longest(self, prompt: int, n: int) -> int:
        """Most tokens that each of `n` sequences may emit so that the pool alone could hold all; may be < 1."""
        size = self.pool.block_tokens
        shared = prompt // size if n > 1 else 0
        return (shared + (self.pool.total - shared) // n) * size - prompt

    def quote(self, sequences: Sequence[History], *, reload: bool = True, taken: int | None = None) -> Reservation:
        """For the unfinished sequences of one request, the leading one first; without `reload` nothing of it comes
        from tiers. With `taken` as it would be once so many blocks were taken by others, and what is on its way to
        tiers had come there. Changes nothing."""
        gone = self.pool.next_evicted(taken or 0)
        size = self.pool.block_tokens
        sizes = tuple(blocks_for(sequence.known + 1, size) for sequence in sequences)
        shared = sequences[0].prompt // size if len(sequences) > 1 else 0
        matched = [self._match(sequences[0], gone)]
        for sequence in sequences[1:]:
            followed = len(matched[0]) >= shared
            # Before the first token a follower takes everything from the leading sequence, by forking.
            own = self._match(sequence, gone) if followed and sequence.emitted else []
            matched.append(own if len(own) >= shared else matched[0][:shared])
        have = min(len(matched[0]), shared)
        fresh = shared - have
        fresh += sum(total - max(len(found), shared) for total, found in zip(sizes, matched, strict=True))
        revived = len({block for found in matched for block in found if self.pool.is_reusable(block)})
        stored = self._stored(sequences[0], len(matched[0]), taken is not None) if reload else ()
        begun = None if stored else self._begun(sequences[0], len(matched[0]), gone)
        return Reservation(sizes, shared, tuple(tuple(found) for found in matched), fresh, revived, begun, stored)

    def available(self, quoted: Reservation) -> int:
        """Blocks that could serve `quoted.fresh`."""
        return self.pool.free + self.pool.reusable - quoted.revived

    def reserve(self, quoted: Reservation) -> list[BlockTable] | Shortfall:
        """Take exactly what was quoted, all of it or nothing. The pool must not have changed since."""
        have = self.available(quoted)
        if quoted.fresh > have:
            return Shortfall(quoted.fresh, have)
        for found in quoted.matched:
            for block in found:
                self.pool.share(block)
                self.pool.used(block)
        if quoted.begun is not None:  # copied before anything is written, so it may even be evicted by this
            self.pool.renew(quoted.begun[0])
        tables: list[BlockTable] = []
        for size, found in zip(quoted.sizes, quoted.matched, strict=True):
            table = BlockTable(self.pool, list(found), len(found))
            if tables:
                for block in tables[0].blocks[len(found) : quoted.shared]:
                    self.pool.share(block)
                    table.blocks.append(block)
                table.found = len(table.blocks)
            table.grow(size - len(table.blocks))
            tables.append(table)
        return tables

    def miss(self, sequence: History, matched: int) -> Miss:
        """Why no more than `matched` whole blocks, and what agrees of one more, were found for `sequence`. Changes
        nothing."""
        if not self.prefix_cache:
            return Miss("off", 0)
        if sequence.unscored is not None:
            return Miss("logprobs", sequence.unscored)
        return self.pool.index.explain(sequence.keys, sequence.tokens, matched=matched, limit=sequence.inheritable)

    def publish(self, sequence: History) -> None:
        """Index the blocks of `sequence` that are wholly computed."""
        if self.prefix_cache and sequence.state is not None:
            sequence.state.publish(sequence.keys, sequence.tokens, sequence.computed)

    def publish_tail(self, sequence: History) -> None:
        """Index also the block of `sequence` that is computed in part; it is about to be given back."""
        if self.prefix_cache and sequence.state is not None:
            sequence.state.publish_tail(sequence.keys, sequence.tokens, sequence.computed)

    def trim(self, sequence: History) -> int:
        """Give back the blocks beyond the known positions. Returns how many went."""
        assert sequence.state is not None
        return sequence.state.shrink(blocks_for(sequence.known, self.pool.block_tokens))

    def grow(self, sequence: History, positions: int) -> list[int]:
        """Take the blocks that `sequence` lacks to hold `positions` positions; the caller knows that they are
        available. Returns the new ones."""
        assert sequence.state is not None
        return sequence.state.grow(max(0, self.lacking(sequence, positions)))

    def lacking(self, sequence: History, positions: int) -> int:
        """Blocks that `sequence` would need beyond those it holds to have state for `positions` positions; negative
        when it holds more than that."""
        assert sequence.state is not None
        return blocks_for(positions, self.pool.block_tokens) - len(sequence.state.blocks)

    def _match(self, sequence: History, gone: frozenset[int]) -> list[int]:
        """Computed blocks for the longest known prefix without those that are `gone`; the last position is always
        left to be computed."""
        if not self.prefix_cache:
            return []
        limit = sequence.inheritable // self.pool.block_tokens
        found = self.pool.index.match(sequence.keys.upto(sequence.tokens, limit), limit)
        return list(takewhile(lambda block: block not in gone, found)) if gone else found

    def _stored(self, sequence: History, matched: int, coming: bool) -> tuple[bytes, ...]:
        """Keys of the blocks behind `matched` ones that lie in tiers, or are `coming` there."""
        if self.pool.tiers is None or not self.prefix_cache:
            return ()
        limit = sequence.inheritable // self.pool.block_tokens
        keys = sequence.keys.upto(sequence.tokens, limit)[matched:limit]
        return tuple(self.pool.tiers.found(keys, coming=coming))

    def _begun(self, sequence: History, matched: int, gone: frozenset[int]) -> tuple[int, int] | None:
        """The block to copy behind `matched` whole blocks, and how many of its positions agree, of those that
        are not `gone`."""
        size = self.pool.block_tokens
        left = min(size, sequence.inheritable - matched * size)
        if not self.prefix_cache or left <= 0:
            return None
        start = matched * size
        parent = sequence.keys.upto(sequence.tokens, matched)[matched - 1] if matched else sequence.keys.root
        nearest, agreeing = self.pool.index.nearest(parent, sequence.tokens[start : start + size], gone)
        block = self.pool.index.get(block_key(parent, nearest)) if agreeing else None
        return None if block is None else (block, min(agreeing, left))
