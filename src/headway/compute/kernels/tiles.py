"""How a step's spans are cut into tiles of equal shapes for batched attention.

A tile's shape is a function of the tile alone, never of the rest of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.compute.models.spec import DecoderSpec
from headway.core.plan import Span

#: Query positions of a tile, where the length allows it.
QUERY_TILE = 128
#: Lengths are padded to multiples of this many positions while short, then to multiples of at most a quarter.
LENGTH_STEP = 64
#: What bounds the scratch memory of one batch of tiles, in values: its scores, and the state it gathers (small, so
#: that what was gathered is still in a cache when it is multiplied: a sixth of a step at 32 sequences).
SCORES_LIMIT = 8 << 20
STATE_LIMIT = 512 << 10


@dataclass(frozen=True, slots=True)
class Tile:
    """`count` consecutive positions from `start` of one sequence; the first is row `row` of the step."""

    row: int
    start: int
    count: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tiles that are evaluated together, each padded to `positions` query positions and `length` visible ones."""

    positions: int
    length: int
    tiles: tuple[Tile, ...]


def batches(spans: Sequence[Span], spec: DecoderSpec, block_tokens: int) -> list[Batch]:
    """All positions of `spans`, in as few batches as shapes and scratch memory allow."""
    shapes: dict[tuple[int, int], list[Tile]] = {}
    for tile in _tiles(spans, spec.heads):
        shape = padded_count(tile.count), padded_length(tile.start + tile.count, block_tokens)
        shapes.setdefault(shape, []).append(tile)
    found = []
    for (positions, length), tiles in shapes.items():
        gathered = 2 * spec.kv_heads * spec.head_dim * length
        size = max(1, min(STATE_LIMIT // gathered, SCORES_LIMIT // (spec.heads * positions * length)))
        cuts = range(0, len(tiles), size)
        found += [Batch(positions, length, tuple(tiles[first : first + size])) for first in cuts]
    return found


def _tiles(spans: Sequence[Span], heads: int) -> list[Tile]:
    tiles, row = [], 0
    for span in spans:
        size = max(16, min(QUERY_TILE, SCORES_LIMIT // (heads * span.end)))
        for offset in range(0, len(span.tokens), size):
            count = min(size, len(span.tokens) - offset)
            tiles.append(Tile(row + offset, span.start + offset, count, span.blocks))
        row += len(span.tokens)
    return tiles


def padded_count(count: int) -> int:
    """Query positions of a tile: exact up to 8 (decode positions and drafts), then multiples of 16."""
    return count if count <= 8 else -(-count // 16) * 16


def padded_length(length: int, block_tokens: int) -> int:
    """Positions to gather so that `length` are visible: whole blocks, at most about a quarter too many."""
    step = LENGTH_STEP
    while step * 8 < length:
        step *= 2
    step = math.lcm(step, block_tokens)
    return -(-length // step) * step
