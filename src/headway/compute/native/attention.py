"""Attention over paged state by the native library: one call for each layer of a step.

A row's numbers do not depend on the rest of the step, nor on how a prompt was cut into chunks: each of its positions
is scored by one chain of sums, and positions are summed in partitions of fixed places, these in order (see
native/level.h).
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from array import array
from collections.abc import Sequence

import torch

from headway.compute.kernels.rotary import Rotary
from headway.compute.kernels.state import PagedState
from headway.compute.native.library import LEVELS, Library
from headway.compute.native.pool import Pool
from headway.core.plan import Span

_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
#: After a layer's attention the next call is a fraction of a millisecond away; a thread that sleeps takes some 50 µs
#: to wake, and one that spins keeps a processor from the products between.
SPIN_US = 20


class _Shape(ctypes.Structure):
    """`headway_attention_shape` of native/headway.h."""

    _fields_ = (
        ("layers", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("block_tokens", ctypes.c_int32),
        ("state_format", ctypes.c_int32),
        ("slots", ctypes.c_int64),
        ("state", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("rope_positions", ctypes.c_int64),
        ("head_norms", ctypes.c_void_p),
        ("norm_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


#: `headway_span` of native/headway.h.
_SPAN = struct.Struct("@iiq")


class NativeAttention:
    """A model's attention over its paged state, by kernels of `level`, shared among `threads`. Implements
    `kernels.paged.Attention`. Not safe for concurrent calls."""

    def __init__(
        self, rotary: Rotary, state: PagedState, library: Library, level: str, threads: int, spin_us: int = SPIN_US
    ) -> None:
        spec = rotary.spec
        self._spec, self._block_tokens = spec, state.block_tokens
        self.library, self.level, self.pool = library, level, Pool(library, threads, spin_us)
        norms = (ctypes.c_void_p * spec.layers)(*(norm.data_ptr() for norm in rotary.head_norms))
        shape = _Shape(
            layers=spec.layers,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            block_tokens=state.block_tokens,
            state_format=_FORMATS[state.format.dtype],
            slots=state.blocks * state.block_tokens,
            state=state.data_ptr(),
            cosines=rotary.cosines.data_ptr(),
            sines=rotary.sines.data_ptr(),
            rope_positions=len(rotary.cosines),
            head_norms=ctypes.addressof(norms) if rotary.head_norms else None,
            norm_eps=spec.norm_eps,
            scale=spec.head_dim**-0.5,
        )
        #: What the library points to.
        self._borrowed = rotary, state, norms
        self.handle = library.attention_open(ctypes.byref(shape), LEVELS[level], self.pool.handle)
        if not self.handle:
            raise MemoryError("no memory for the native library's attention")
        weakref.finalize(self, library.attention_close, self.handle)
        self.words = f"native kernels ({level}), paged, split over {threads} threads; a row's bits depend on it alone"

    def step(self, spans: Sequence[Span], rows: int) -> NativeStepAttention:
        """See `kernels.paged.Attention`. Raises ValueError for spans whose blocks or positions are not there."""
        described, tables = [], array("i")
        for span in spans:
            count = -(-span.end // self._block_tokens)
            if len(span.blocks) < count:
                raise ValueError(f"a span up to position {span.end} has {len(span.blocks)} blocks, and needs {count}")
            described.append(_SPAN.pack(span.start, len(span.tokens), len(tables)))
            tables.extend(span.blocks[:count])
        failed = self.library.attention_step(
            self.handle, b"".join(described), len(spans), tables.buffer_info()[0], len(tables)
        )
        if failed == -1:
            raise MemoryError("no memory for the native library's step")
        if failed:
            raise ValueError("a span names a block or a position that does not exist")
        return NativeStepAttention(self, rows, sum(len(span.tokens) for span in spans))

    def layer(self, layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
        """One layer of the step that was described last, into `out` [≥ positions, heads · head_dim]."""
        self.library.attention_layer(self.handle, layer, qkv.data_ptr(), _FORMATS[qkv.dtype], out.data_ptr())

    def results(self, rows: int) -> torch.Tensor:
        """Room for a layer's results: [rows, heads · head_dim], fp32, zero."""
        return torch.zeros(rows, self._spec.heads * self._spec.head_dim)


class NativeStepAttention:
    """Attention of one step. Implements `kernels.paged.StepAttention`."""

    def __init__(self, attention: NativeAttention, rows: int, positions: int) -> None:
        self._attention, self._rows, self._positions = attention, rows, positions
        self._out: torch.Tensor | None = None

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        if self._out is None:  # a decoder that runs its layers natively never asks
            self._out = self._attention.results(self._rows)
        self._attention.layer(layer, qkv, self._out)
        return self._out
