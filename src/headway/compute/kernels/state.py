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
    """State of one layer is [2 · kv_heads, blocks · block_tokens, items]: keys of all heads, then values, each a head
    as `format` holds it.

    Zero at first, and finite always, so that whatever a product pads with is finite; memory is touched only as
    blocks are written.
    """

    def __init__(self, spec: DecoderSpec, blocks: int, block_tokens: int, format: StateFormat) -> None:
        self.planes, self.blocks, self.block_tokens, self.format = 2 * spec.kv_heads, blocks, block_tokens, format
        shape = spec.layers, self.planes, blocks * block_tokens, format.items(spec.head_dim)
        self._all = _untouched_zeros(math.prod(shape) * format.dtype.itemsize).view(format.dtype).view(shape)
        self.layers = list(self._all.unbind(0))
        #: The same bytes as [2 · kv_heads · blocks, block_tokens · items]: what is gathered.
        self.layer_blocks = [layer.view(self.planes * blocks, -1) for layer in self.layers]

    def data_ptr(self) -> int:
        """The address of [layers, 2 · kv_heads, blocks · block_tokens, items]."""
        return self._all.data_ptr()

    def write(self, layer: int, slots: torch.Tensor, heads: torch.Tensor) -> None:
        """Put the keys and values of positions, [2 · kv_heads, positions, head_dim] in fp32, into their `slots`."""
        self.layers[layer].index_copy_(1, slots, self.format.pack(heads))

    def slots(self, spans: Sequence[Span]) -> torch.Tensor:
        """Where along a layer's second dimension each of the spans' positions lies: [positions], int64."""
        found = []
        for span in spans:
            block, offset = np.divmod(np.arange(span.start, span.end), self.block_tokens)
            found.append(np.asarray(span.blocks)[block] * self.block_tokens + offset)
        return torch.from_numpy(np.concatenate(found))

    def clear(self, spans: Sequence[Span]) -> None:
        """Make the state of the spans' positions zero again."""
        if spans:
            self._all.index_fill_(2, self.slots(spans), 0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), all sources read before any target is written."""
        sources, targets = (torch.tensor(side) for side in zip(*pairs, strict=True))
        blocks = self._all.view(len(self.layers) * self.planes, self.blocks, -1)
        blocks.index_copy_(1, targets, blocks.index_select(1, sources))

    def offload(self, pairs: Sequence[tuple[int, int]], host: HostSlots) -> None:
        """Copy blocks to host slots: (block, slot) each."""
        blocks = self._all.view(len(self.layers) * self.planes, self.blocks, -1)
        for block, slot in pairs:
            host.blocks[slot].copy_(blocks[:, block])

    def reload(self, pairs: Sequence[tuple[int, int]], host: HostSlots) -> None:
        """Copy host slots to blocks: (slot, block) each."""
        blocks = self._all.view(len(self.layers) * self.planes, self.blocks, -1)
        for slot, block in pairs:
            blocks[:, block].copy_(host.blocks[slot])


class HostSlots:
    """Host memory for `slots` blocks of a pool, outside of it, bit for bit what the pool holds: [slots, layers · 2 ·
    kv_heads, block_tokens · items]. Memory is touched only as slots are written."""

    def __init__(self, state: PagedState, slots: int) -> None:
        shape = slots, len(state.layers) * state.planes, state.layer_blocks[0].shape[1]
        self._bytes = _untouched_zeros(math.prod(shape) * state.format.dtype.itemsize)
        self.blocks = self._bytes.view(state.format.dtype).view(shape)

    def bytes(self, slot: int) -> memoryview:
        """The bytes of one slot, to be read or written by whoever moves it elsewhere."""
        size = len(self._bytes) // len(self.blocks)
        return memoryview(self._bytes.numpy().data)[slot * size : (slot + 1) * size]


def _untouched_zeros(size: int) -> torch.Tensor:
    """`size` bytes, all 0, that are resident only once they are written: numpy leaves fresh memory to the operating
    system, where torch would write zeros into it at once. Aligned as torch's own memory is."""
    raw = np.zeros(size + _ALIGNED, dtype=np.uint8)
    return torch.from_numpy(raw)[-raw.ctypes.data % _ALIGNED :][:size]
