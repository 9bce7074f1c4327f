"""Attention over paged state, in plain torch.

State of one layer is [2 · kv_heads, blocks · block_tokens, head_dim]: keys of all heads, then values. Whole blocks
are gathered, so that a batch of sequences yields [kv_heads · batch, length, head_dim], ready for batched products;
the queries that share a key head lie in one matrix, so keys are never repeated.

A row's numbers do not depend on the rest of the step, nor on how a prompt was cut into chunks:

- queries come in matrices of at least `min_rows` rows, from where on (probed) the library sums in one order;
- values are summed in tiles of `VALUE_TILE` positions, in order, each tile a product of its own. Positions that are
  not visible add exact zeros;
- what pads a matrix is finite: state is zero before it is first written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headway.compute.models.spec import DecoderSpec
from headway.plan import Span

#: Within one product of this contraction length the library's order of summation does not depend on how much of
#: it is zero (probed up to 192 with MKL; beyond, it splits the sum in two at a place that depends on the length).
VALUE_TILE = 128
#: Lengths are padded to multiples of this many positions while short, then in steps of about a quarter.
LENGTH_STEP = 64
#: Query positions of one tile, and what bounds the scratch memory of one group of tiles (values).
QUERY_TILE = 128
_SCORES_LIMIT = 8 << 20
_STATE_LIMIT = 4 << 20


class PagedState:
    """The pool's bytes: keys and values of every layer, [layers, 2 · kv_heads, blocks · block_tokens, head_dim].

    Zero at first; memory is touched only as blocks are written.
    """

    def __init__(self, spec: DecoderSpec, blocks: int, block_tokens: int, dtype: torch.dtype) -> None:
        planes = 2 * spec.kv_heads
        self.blocks, self.block_tokens, self.dtype = blocks, block_tokens, dtype
        self._all = torch.zeros(spec.layers, planes, blocks * block_tokens, spec.head_dim, dtype=dtype)
        self.layers = list(self._all.unbind(0))
        self.layer_blocks = [layer.view(planes * blocks, -1) for layer in self.layers]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), all sources read before any target is written."""
        sources, targets = (torch.tensor(side) for side in zip(*pairs, strict=True))
        blocks = self._all.view(self._all.shape[0] * self._all.shape[1], self.blocks, -1)
        blocks.index_copy_(1, targets, blocks.index_select(1, sources))


@dataclass(frozen=True, slots=True)
class QueryTile:
    """`count` consecutive positions from `start` of one sequence; the first is row `row` of the step."""

    row: int
    start: int
    count: int
    blocks: Sequence[int]


@dataclass(slots=True)
class Group:
    """Tiles with equal shapes, evaluated as one batch. Index tensors serve all layers.

    queries   rows of the flattened [rows · (heads + kv_heads), head_dim] to gather: [kv_heads · batch · tile_rows]
    blocks    rows of a layer's [2 · kv_heads · blocks, …] to gather: [2 · kv_heads · batch · length / block_tokens]
    mask      0 or -inf for positions from `clear` on (those before are visible to all): [batch, tile_rows, …]
    gathered  scratch for the gathered state, in its format; `wide` the same in fp32 (one tensor if that is fp32)
    out       where this group's results begin among those of the step
    """

    batch: int
    tile_rows: int
    length: int
    clear: int
    queries: torch.Tensor
    blocks: torch.Tensor
    mask: torch.Tensor
    gathered: torch.Tensor
    wide: torch.Tensor
    out: int


class StepAttention:
    """Attention of one step: built once from its spans, then called once per layer."""

    def __init__(self, spec: DecoderSpec, state: PagedState, spans: Sequence[Span], rows: int, min_rows: int) -> None:
        """`rows` ≥ the spans' positions; rows past them are padding and come back as copies of the first."""
        self._spec, self._state, self._min_rows = spec, state, min_rows
        self.count = sum(len(span.tokens) for span in spans)
        self._slots = torch.from_numpy(_slots(spans, state.block_tokens))
        back = np.zeros((rows, spec.heads), dtype=np.int64)
        self._groups: list[Group] = []
        done = 0
        for shape, tiles in _grouped(_tiles(spans, spec.heads), spec, state.block_tokens):
            group = self._group(tiles, *shape, done, back)
            self._groups.append(group)
            done += group.queries.numel()
        self._back = torch.from_numpy(back.reshape(-1))
        self._results = torch.empty(done, spec.head_dim)

    def __call__(self, layer: int, queries_keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write the step's keys and values, then attend.

        queries_keys   [rows, heads + kv_heads, head_dim], contiguous; rotated, the queries scaled
        values         [rows, kv_heads, head_dim]
        Returns [rows, heads · head_dim]. Changes the state of the layer at the step's positions.
        """
        spec, state = self._spec, self._state
        new = torch.cat((queries_keys[: self.count, spec.heads :], values[: self.count]), 1)
        state.layers[layer].index_copy_(1, self._slots, new.transpose(0, 1).to(state.dtype))
        queries = queries_keys.view(-1, spec.head_dim)
        for group in self._groups:
            self._attend(group, state.layer_blocks[layer], queries)
        return self._results.index_select(0, self._back).view(-1, spec.heads * spec.head_dim)

    def _attend(self, group: Group, blocks: torch.Tensor, queries: torch.Tensor) -> None:
        matrices, dim = self._spec.kv_heads * group.batch, self._spec.head_dim
        torch.index_select(blocks, 0, group.blocks, out=group.gathered)
        if group.wide is not group.gathered:
            group.wide.copy_(group.gathered)
        keys, values = group.wide.view(2, matrices, group.length, dim).unbind(0)
        grouped = queries.index_select(0, group.queries).view(matrices, group.tile_rows, dim)
        scores = torch.bmm(grouped, keys.transpose(1, 2))
        scores.view(-1, *group.mask.shape[:2], group.length)[..., group.clear :].add_(group.mask)
        out = self._results[group.out : group.out + group.queries.numel()].view(matrices, -1, dim)
        _weigh(torch.softmax(scores, -1), values, out)

    def _group(self, tiles: Sequence[QueryTile], positions: int, length: int, out: int, back: np.ndarray) -> Group:
        """Index tensors of `tiles`, each padded to `positions` query positions; fills `back`, which says where
        among the step's results each (row, head) is."""
        spec, state = self._spec, self._state
        batch, share, kv_heads = len(tiles), spec.group, spec.kv_heads
        tile_rows = max(positions * share, self._min_rows)
        place = np.arange(tile_rows) // share
        first, count, start = (
            np.array([getattr(tile, name) for tile in tiles])[:, None] for name in ("row", "count", "start")
        )
        place = np.where(place < count, place, 0)  # padding repeats the first position: [batch, tile_rows]
        head = np.arange(kv_heads)[:, None] * share + np.arange(tile_rows) % share
        queries = (first + place) * (spec.heads + kv_heads) + head[:, None, :]
        for j, tile in enumerate(tiles):
            item = np.arange(kv_heads)[:, None] * batch + j
            found = out + item * tile_rows + np.arange(tile.count * share)
            found = found.reshape(kv_heads, tile.count, share).transpose(1, 0, 2)
            back[tile.row : tile.row + tile.count] = found.reshape(tile.count, -1)
        clear = int(start.min())
        mask = np.where(np.arange(clear, length) > (start + place)[..., None], np.float32(-np.inf), np.float32(0))
        tables = np.array([_padded_table(tile.blocks, length // state.block_tokens) for tile in tiles])
        planes = np.arange(2 * kv_heads)[:, None, None] * state.blocks
        blocks = torch.from_numpy((planes + tables).reshape(-1))
        gathered = torch.empty(blocks.numel(), state.layer_blocks[0].shape[1], dtype=state.dtype)
        wide = gathered if state.dtype == torch.float32 else torch.empty_like(gathered, dtype=torch.float32)
        return Group(
            batch=batch,
            tile_rows=tile_rows,
            length=length,
            clear=clear,
            queries=torch.from_numpy(queries.reshape(-1)),
            blocks=blocks,
            mask=torch.from_numpy(mask),
            gathered=gathered,
            wide=wide,
            out=out,
        )


def _slots(spans: Sequence[Span], block_tokens: int) -> np.ndarray:
    """Where in a layer's state each of the step's positions is written: [positions]."""
    slots = []
    for span in spans:
        position = np.arange(span.start, span.end)
        slots.append(np.asarray(span.blocks)[position // block_tokens] * block_tokens + position % block_tokens)
    return np.concatenate(slots)


def _tiles(spans: Sequence[Span], heads: int) -> list[QueryTile]:
    """Cut spans so that no tile's scores exceed the scratch limit."""
    tiles, row = [], 0
    for span in spans:
        tile = max(16, min(QUERY_TILE, _SCORES_LIMIT // (heads * span.end)))
        for offset in range(0, len(span.tokens), tile):
            count = min(tile, len(span.tokens) - offset)
            tiles.append(QueryTile(row + offset, span.start + offset, count, span.blocks))
        row += len(span.tokens)
    return tiles


def _grouped(
    tiles: Sequence[QueryTile], spec: DecoderSpec, block_tokens: int
) -> list[tuple[tuple[int, int], list[QueryTile]]]:
    """Tiles by (padded positions, padded length): a function of the tile alone, so company changes no shape."""
    groups: dict[tuple[int, int], list[QueryTile]] = {}
    for tile in tiles:
        shape = _padded_count(tile.count), _padded_length(tile.start + tile.count, block_tokens)
        groups.setdefault(shape, []).append(tile)
    batches = []
    for shape, members in groups.items():
        state = 2 * spec.kv_heads * spec.head_dim * shape[1]
        size = max(1, min(_STATE_LIMIT // state, _SCORES_LIMIT // (spec.heads * shape[0] * shape[1])))
        batches += [(shape, members[i : i + size]) for i in range(0, len(members), size)]
    return batches


def _padded_count(count: int) -> int:
    """Query positions of a tile: exact up to 8 (decoding and drafts), then multiples of 16."""
    return count if count <= 8 else -(-count // 16) * 16


def _padded_length(length: int, block_tokens: int) -> int:
    """Positions to gather for a visible length: a whole number of blocks, at most about a quarter too many."""
    step = LENGTH_STEP
    while step * 8 < length:
        step *= 2
    step = step * block_tokens // int(np.gcd(step, block_tokens))
    return -(-length // step) * step


def _padded_table(blocks: Sequence[int], count: int) -> list[int]:
    """The first `count` blocks of a table; where it ends early, its first block again (masked, but finite)."""
    head = list(blocks[:count])
    return head + [head[0]] * (count - len(head))


def probe_rows(head_dim: int) -> tuple[int, str]:
    """The fewest query rows from which a row's results have the same bits whatever the number of rows and the
    length of the padding, and that in words; 1 if there is no such number up to 16."""
    keys = torch.linspace(0, 997, 3 * 512 * head_dim).sin().view(3, 512, head_dim)
    queries = torch.linspace(0, 991, 3 * 96 * head_dim).cos().view(3, 96, head_dim)

    def attend(rows: int, length: int) -> torch.Tensor:
        scores = torch.bmm(queries[:, :rows].contiguous(), keys[:, :length].transpose(1, 2))
        scores[..., 60:] = -torch.inf
        return _weigh(torch.softmax(scores, -1), keys[:, :length], torch.empty(3, rows, head_dim))

    usual, min_rows = attend(96, 512), 1
    for rows in (*range(1, 17), 24, 32, 48, 64, 96):
        if not all(torch.equal(attend(rows, length), usual[:, :rows]) for length in (64, 128, 192, 320, 512)):
            min_rows = rows + 1
    words = "batched products over gathered blocks"
    if min_rows > 16:
        return 1, f"{words}; a row's bits may depend on the number of rows"
    return min_rows, f"{words}; at least {min_rows} rows, from where on a row's bits do not depend on their number"


def _weigh(weights: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`out` [batch, rows, dim] = weights [batch, rows, length] · values [batch, length, dim], tile by tile."""
    torch.bmm(weights[..., :VALUE_TILE], values[:, :VALUE_TILE], out=out)
    for start in range(VALUE_TILE, values.shape[1], VALUE_TILE):
        end = start + VALUE_TILE
        out.baddbmm_(weights[..., start:end], values[:, start:end])
    return out
