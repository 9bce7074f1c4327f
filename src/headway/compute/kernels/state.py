"""The KV cache itself, the bytes of the pool: keys and values of every layer, in blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from headway.compute.kernels.state_format import StateFormat
from headway.compute.models.spec import DecoderSpec
from headway.core.plan import Span

_ALIGNED = 64


class PagedState:
    """[blocks, layers, 2 · kv_heads, block_tokens, items]: of each layer keys of all heads, then values, each a head
    as `format` holds it. All of a block lies together: what is resident grows with the blocks in use, where a plane
    for each head and layer would have the system clear a huge page in every one of them at a request's first step.

    Zero at first, and finite always, so that whatever a product pads with is finite; memory is touched only as
    blocks are written.
    """

    def __init__(self, spec: DecoderSpec, blocks: int, block_tokens: int, format: StateFormat) -> None:
        self.planes, self.blocks, self.block_tokens, self.format = 2 * spec.kv_heads, blocks, block_tokens, format
        #: Planes of all layers: so many lie between a block's and the next one's.
        self.block_planes = spec.layers * self.planes
        shape = blocks, spec.layers, self.planes, block_tokens, format.items(spec.head_dim)
        self._all = _untouched_zeros(math.prod(shape) * format.dtype.itemsize).view(format.dtype).view(shape)
        #: The same memory as [blocks, bytes of a block]. Whole blocks go to host slots and back by it: numpy copies
        #: on the thread that asks. Torch would divide a copy among its threads and wait for all of them, and where
        #: other work has their cores, for a time slice of the system's, once for each block.
        self.bytes = self._all.view(blocks, -1).view(torch.uint8).numpy()
        flat = self._all.view(blocks * self.block_planes, -1)
        #: Of each layer what is gathered, rows of [block_tokens · items]: plane p of block b is b · block_planes + p.
        self.layer_blocks = [flat[layer * self.planes :] for layer in range(spec.layers)]

    def data_ptr(self) -> int:
        """The address of the whole."""
        return self._all.data_ptr()

    def whole_blocks(self) -> torch.Tensor:
        """The same bytes as [blocks, all of a block]."""
        return self._all.view(self.blocks, -1)

    def write(self, layer: int, places: torch.Tensor, heads: torch.Tensor) -> None:
        """Put the keys and values of positions, [2 · kv_heads, positions, head_dim] in fp32, into their `places`."""
        rows = self.layer_blocks[layer].view(-1, self._all.shape[-1])
        rows.index_copy_(0, places, self.format.pack(heads).flatten(0, 1))

    def places(self, spans: Sequence[Span]) -> torch.Tensor:
        """Where the spans' positions lie among a layer's rows: [2 · kv_heads · positions], int64."""
        block, offset = self._slots(spans)
        planes = block * self.block_planes + np.arange(self.planes)[:, None]
        return torch.from_numpy((planes * self.block_tokens + offset).reshape(-1))

    def read(self, layer: int, spans: Sequence[Span]) -> torch.Tensor:
        """The state of the spans' positions in a layer: [2 · kv_heads, positions, items]."""
        rows = self.layer_blocks[layer].view(-1, self._all.shape[-1])
        return rows.index_select(0, self.places(spans)).view(self.planes, -1, rows.shape[1])

    def _slots(self, spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray]:
        """The block of each of the spans' positions, and its offset within: [positions] each."""
        blocks, offsets = [], []
        for span in spans:
            block, offset = np.divmod(np.arange(span.start, span.end), self.block_tokens)
            blocks.append(np.asarray(span.blocks)[block])
            offsets.append(offset)
        return np.concatenate(blocks), np.concatenate(offsets)

    def clear(self, spans: Sequence[Span]) -> None:
        """Make the state of the spans' positions zero again."""
        if spans:
            block, offset = (torch.from_numpy(side) for side in self._slots(spans))
            self._all[block, :, :, offset] = 0

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), all sources read before any target is written."""
        sources, targets = (torch.tensor(side) for side in zip(*pairs, strict=True))
        blocks = self.whole_blocks()
        blocks.index_copy_(0, targets, blocks.index_select(0, sources))

    def offload(self, pairs: Sequence[tuple[int, int]], host: HostSlots) -> None:
        """Copy blocks to host slots: (block, slot) each."""
        for block, slot in pairs:
            host.blocks[slot] = self.bytes[block]

    def reload(self, pairs: Sequence[tuple[int, int]], host: HostSlots) -> None:
        """Copy host slots to blocks: (slot, block) each."""
        for slot, block in pairs:
            self.bytes[block] = host.blocks[slot]


class HostSlots:
    """Host memory for `slots` blocks of a pool, outside of it, bit for bit what the pool holds: `blocks` is [slots,
    bytes of a block]. Memory is touched only as slots are written."""

    def __init__(self, state: PagedState, slots: int) -> None:
        size = state.bytes.shape[1]
        self.blocks = _untouched_zeros(slots * size).numpy().reshape(slots, size)

    def bytes(self, slot: int) -> memoryview:
        """The bytes of one slot, to be read or written by whoever moves it elsewhere."""
        return memoryview(self.blocks[slot].data)


def _untouched_zeros(size: int) -> torch.Tensor:
    """`size` bytes, all 0, that are resident only once they are written: numpy leaves fresh memory to the operating
    system, where torch would write zeros into it at once. Aligned as torch's own memory is."""
    raw = np.zeros(size + _ALIGNED, dtype=np.uint8)
    return torch.from_numpy(raw)[-raw.ctypes.data % _ALIGNED :][:size]
