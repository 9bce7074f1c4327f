"""Attention over paged state (a paged KV cache), in plain torch.

Whole blocks are gathered, so that a batch of tiles yields [kv_heads · batch, length, head_dim], ready for batched
products; the queries that share a key head lie in one matrix, so keys are never repeated.

A row's numbers do not depend on the rest of the step, nor on how a prompt was cut into chunks:

- queries come in matrices of so many rows (`query_rows.py`, probed) that the library sums them all in one order;
- values are summed in tiles of `VALUE_TILE` positions, in order, each tile a product of its own; positions that are
  not visible add exact zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headway.compute.kernels.query_rows import KEY_TILE, QueryRows, probe
from headway.compute.kernels.rotary import Rotary
from headway.compute.kernels.state import PagedState
from headway.compute.kernels.state_format import StateFormat
from headway.compute.kernels.tiles import Batch, batches
from headway.core.plan import Span

#: Within one product of this contraction length the library's order of summation does not depend on how much of
#: it is zero. (MKL: true up to 192; beyond, it splits the sum in two at a place that depends on the length.)
VALUE_TILE = 128


class Scratch:
    """Memory that batches use one after another; kept from step to step, grown when a step needs more."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def carve(self, shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
        """Uninitialised tensors that overlap each other in nothing, and earlier ones in everything."""
        sizes = [-(-int(np.prod(shape)) * dtype.itemsize // 64) * 64 for shape, dtype in shapes]
        if sum(sizes) > self._bytes.numel():
            self._bytes = torch.empty(sum(sizes), dtype=torch.uint8)
        parts = torch.split(self._bytes[: sum(sizes)], sizes)
        return [
            part[: int(np.prod(shape)) * dtype.itemsize].view(dtype).view(shape)
            for part, (shape, dtype) in zip(parts, shapes, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Scoring:
    """One product of queries [matrices, rows, head_dim] and keys [matrices, head_dim, length] into `out`, which is
    contiguous, and then copied to its place among the scores where that is a `part` of them."""

    queries: torch.Tensor
    keys: torch.Tensor
    out: torch.Tensor
    part: torch.Tensor | None = None

    def run(self) -> None:
        torch.bmm(self.queries, self.keys, out=self.out)
        if self.part is not None:
            self.part.copy_(self.out)


def _scorings(queries: torch.Tensor, keys: torch.Tensor, scores: torch.Tensor, tiled: bool) -> list[Scoring]:
    """The products that make `scores` [matrices, rows, length]: one, or one for each tile of `KEY_TILE` keys."""
    if not tiled or scores.shape[2] <= KEY_TILE:
        return [Scoring(queries, keys, scores)]
    spare = torch.empty(scores.shape[0] * scores.shape[1] * KEY_TILE)
    parts = zip(torch.split(keys, KEY_TILE, 2), torch.split(scores, KEY_TILE, 2), strict=True)
    return [Scoring(queries, tile, spare[: part.numel()].view(part.shape), part) for tile, part in parts]


@dataclass(frozen=True, slots=True)
class Work:
    """One batch of tiles, ready to run in every layer: what to gather, and views of scratch memory. A tile's query
    rows come in `pieces` of `rows`, each piece a matrix; there is one, unless matrices must not be large.

    block_index   rows of a layer's blocks: [2 · kv_heads · batch · length / block_tokens]
    format        the state's
    gathered      their content in that; `wide` the same in fp32, [… · block_tokens, head_dim]; None where it is fp32
    query_index   rows of the step's [… · (heads + 2 · kv_heads), head_dim]: [pieces · kv_heads · batch · rows]
    queries       their content
    tail          the scores of positions that not every query may see; `mask`, 0 or -inf, is added to them
    products      what is multiplied in each piece, see `Scoring`
    sums          (pairs, out) of each piece: the (weights, values) of each tile of `VALUE_TILE` positions, and a part
                  of the step's results [kv_heads · batch, rows, head_dim]
    """

    block_index: torch.Tensor
    format: StateFormat
    gathered: torch.Tensor
    wide: torch.Tensor | None
    query_index: torch.Tensor
    queries: torch.Tensor
    products: list[Scoring]
    scores: torch.Tensor
    tail: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor
    sums: list[tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]]

    def run(self, blocks: torch.Tensor, heads: torch.Tensor) -> None:
        torch.index_select(blocks, 0, self.block_index, out=self.gathered)
        if self.wide is not None:
            self.format.unpack(self.gathered.view(len(self.wide), -1), self.wide)
        torch.index_select(heads, 0, self.query_index, out=self.queries)
        for product in self.products:
            product.run()
        self.tail.add_(self.mask)
        torch.softmax(self.scores, -1, out=self.weights)
        for pairs, out in self.sums:
            _weigh(pairs, out)


class TorchAttention:
    """A model's attention over its paged state; `words` say what it does."""

    def __init__(self, rotary: Rotary, state: PagedState) -> None:
        spec = rotary.spec
        self._rotary, self._state, self._scratch = rotary, state, Scratch()
        self._query_rows = probe_rows(spec.head_dim, spec.kv_heads)
        self.words = f"batched products over gathered blocks, {self._query_rows.words}"

    def step(self, spans: Sequence[Span], rows: int) -> TorchStepAttention:
        """See `kernels.paged.Attention`."""
        return TorchStepAttention(self._rotary, self._state, self._scratch, spans, rows, self._query_rows)


class TorchStepAttention:
    """Attention of one step: built once from its spans, then called once per layer."""

    def __init__(
        self,
        rotary: Rotary,
        state: PagedState,
        scratch: Scratch,
        spans: Sequence[Span],
        rows: int,
        query_rows: QueryRows,
    ) -> None:
        """`rows` ≥ the spans' positions; results of rows past them (padding) are those of some other row."""
        self._rotary, self._spec, self._state, self._query_rows = rotary, rotary.spec, state, query_rows
        spec = rotary.spec
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        padded = np.concatenate((positions, np.zeros(rows - len(positions), np.int64)))
        self._turns = rotary.at(torch.from_numpy(padded))
        self._positions = len(positions)
        self._places = state.places(spans)
        cut = batches(spans, spec, state.block_tokens)
        sizes = [spec.kv_heads * len(batch.tiles) * math.prod(self._cut(batch)) for batch in cut]
        self._results = torch.empty(sum(sizes), spec.head_dim)
        #: Which of the results belongs to each (row, head).
        back = np.zeros((rows, spec.heads), dtype=np.int64)
        firsts = np.cumsum([0, *sizes[:-1]])
        for first, batch in zip(firsts, cut, strict=True):
            self._send_back(batch, int(first), back)
        self._back = torch.from_numpy(back.reshape(-1))
        scratch.carve(max((self._shapes(batch) for batch in cut), key=_bytes))
        self._works = [
            self._work(batch, scratch.carve(self._shapes(batch)), part)
            for batch, part in zip(cut, torch.split(self._results, sizes), strict=True)
        ]

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """See `kernels.paged.StepAttention`."""
        heads, dim, state = self._spec.heads, self._spec.head_dim, self._state
        turned = self._rotary.turn(layer, qkv, self._turns)
        new = turned[: self._positions, heads:].transpose(0, 1)
        state.write(layer, self._places, new)
        flat = turned.view(-1, dim)
        for work in self._works:
            work.run(state.layer_blocks[layer], flat)
        return self._results.index_select(0, self._back).view(-1, heads * dim)

    def _cut(self, batch: Batch) -> tuple[int, int]:
        """(pieces, rows of each) of a tile's queries."""
        return self._query_rows.cut(batch.positions * self._spec.group)

    def _shapes(self, batch: Batch) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Scratch of a batch: queries, scores, weights, gathered state, and its fp32 form if that is another."""
        dim, matrices = self._spec.head_dim, self._spec.kv_heads * len(batch.tiles)
        (pieces, rows), length, state = self._cut(batch), batch.length, self._state
        scores = (pieces * matrices, rows, length), torch.float32
        held = 2 * matrices * length // state.block_tokens, state.block_tokens * state.format.items(dim)
        shapes = [((pieces * matrices * rows, dim), torch.float32), scores, scores, (held, state.format.dtype)]
        wide = (2 * matrices * length, dim), torch.float32
        return shapes if state.format.dtype == torch.float32 else [*shapes, wide]

    def _send_back(self, batch: Batch, first: int, back: np.ndarray) -> None:
        spec, (_, rows) = self._spec, self._cut(batch)
        for j, tile in enumerate(batch.tiles):
            piece, row = np.divmod(np.arange(tile.count * spec.group), rows)
            matrix = (piece * spec.kv_heads + np.arange(spec.kv_heads)[:, None]) * len(batch.tiles) + j
            found = first + matrix * rows + row
            found = found.reshape(spec.kv_heads, tile.count, spec.group).transpose(1, 0, 2)
            back[tile.row : tile.row + tile.count] = found.reshape(tile.count, -1)

    def _work(self, batch: Batch, scratch: list[torch.Tensor], part: torch.Tensor) -> Work:
        spec, tiles, length, (pieces, rows) = self._spec, batch.tiles, batch.length, self._cut(batch)
        matrices = spec.kv_heads * len(tiles)
        queries, scores, weights, gathered, *rest = scratch
        wide = rest[0] if rest else None
        keys, values = (gathered if wide is None else wide).view(2, -1, length, spec.head_dim).unbind(0)
        first, start, count = np.array([(t.row, t.start, t.count) for t in tiles]).T[:, :, None]
        # Rows of a tile are (position, query head of the group); padding repeats the first position.
        row = np.arange(pieces * rows).reshape(pieces, 1, rows)
        place = np.where(row // spec.group < count, row // spec.group, 0)  # [pieces, tiles, rows]
        head = np.arange(spec.kv_heads)[:, None, None] * spec.group + row[:, None] % spec.group
        query_index = (first + place)[:, None] * (spec.heads + 2 * spec.kv_heads) + head
        seen = int(start.min())  # positions before it are visible to every query of the batch
        hidden = np.arange(seen, length) > (start + place)[:, None, :, :, None]
        tables = np.array([_table(tile.blocks, length // self._state.block_tokens) for tile in tiles])
        block_index = np.arange(self._state.planes)[:, None, None] + tables * self._state.block_planes
        return Work(
            block_index=torch.from_numpy(block_index.reshape(-1)),
            format=self._state.format,
            gathered=gathered,
            wide=wide,
            query_index=torch.from_numpy(query_index.reshape(-1)),
            queries=queries,
            products=[
                product
                for piece in zip(
                    torch.split(queries.view(-1, rows, spec.head_dim), matrices),
                    torch.split(scores, matrices),
                    strict=True,
                )
                for product in _scorings(piece[0], keys.transpose(1, 2), piece[1], self._query_rows.pieces)
            ],
            scores=scores,
            tail=scores.view(pieces, spec.kv_heads, len(tiles), rows, length)[..., seen:],
            mask=torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))),
            weights=weights,
            sums=[
                (_pairs(piece, values), out)
                for piece, out in zip(
                    torch.split(weights, matrices),
                    torch.split(part.view(-1, rows, spec.head_dim), matrices),
                    strict=True,
                )
            ],
        )


def _bytes(shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> int:
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes)


def _table(blocks: Sequence[int], count: int) -> list[int]:
    """The first `count` blocks of a table; where it ends early, its first block again (masked, but finite)."""
    head = list(blocks[:count])
    return head + [head[0]] * (count - len(head))


def _pairs(weights: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(torch.split(weights, VALUE_TILE, 2), torch.split(values, VALUE_TILE, 1), strict=True))


def _weigh(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], out: torch.Tensor) -> None:
    """`out` [batch, rows, dim] = the sum of weights [batch, rows, tile] · values [batch, tile, dim], in order."""
    torch.bmm(*pairs[0], out=out)
    for weights, values in pairs[1:]:
        out.baddbmm_(weights, values)


def probe_rows(head_dim: int, kv_heads: int) -> QueryRows:
    """How many query rows to put into one matrix on this machine."""
    return probe(_attend, head_dim, kv_heads)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, visible: int, tiled: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `Work.run` does it. The scores are returned as they are before those that are not visible are hidden."""
    scores = torch.empty(*queries.shape[:2], keys.shape[1])
    for product in _scorings(queries, keys.transpose(1, 2), scores, tiled):
        product.run()
    weights, out = scores.clone(), torch.empty_like(queries)
    weights[..., visible:] = -torch.inf
    _weigh(_pairs(torch.softmax(weights, -1), keys), out)
    return scores, out
