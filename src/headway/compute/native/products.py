"""Matrix products of rounded weights and inputs by the native library.

Weights are rounded once: to 8 bits with a scale for each output, or to 4 with a scale and a least value for each 32
inputs of an output (GGUF's Q4_1). Inputs are rounded as they come, with one scale a row: to 8 bits nearly all of
them, and to 16, as two digits, the few that are far from zero. A scale by the largest of a row would round the
others away; so outliers are multiplied apart, as in LLM.int8() (Dettmers et al. 2022), but in whole numbers and
found in each row by itself. Sums of 8-bit weights are exact over the whole row, those of 4-bit ones within their
groups, which are added up in order: a row of a product depends on its own inputs alone, and neither threads nor the
number of rows change a bit of it.
"""

from __future__ import annotations

import weakref
from typing import Literal

import torch

from headway.compute.native.library import DOTS, Library
from headway.compute.native.memory import WeightMemory
from headway.compute.native.pool import Pool

FORMATS = {torch.float32: 0, torch.bfloat16: 1}
Bits = Literal[8, 4]
#: What becomes of a product: it is the result, or GELU (with erf) of it is, or it is added to what is there.
Ending = Literal["plain", "gelu", "added"]
_ENDINGS: dict[Ending, int] = {"plain": 0, "gelu": 1, "added": 2}


class PackedWeights:
    """A weight [outputs, inputs] with its bias, rounded and packed. May be shared by threads.

    gated     its first half are gates: silu(gate) · up is what leaves
    columns   of a product: the outputs, or half as many if they are gated
    """

    def __init__(
        self,
        library: Library,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        bits: Bits = 8,
        memory: WeightMemory | None = None,
    ) -> None:
        """`weight` is fp32 or bf16; of 4 `bits`, each 32 inputs of an output have a scale and a least value in half
        precision (GGUF's Q4_1). What is packed lies in `memory`, or in some of its own. Raises MemoryError, and
        ValueError for one with more inputs than sums of 32 bits have room for."""
        weight = weight.contiguous()
        wide = None if bias is None else bias.float().contiguous()
        self.outputs, self.inputs = (int(size) for size in weight.shape)
        self.gated, self.columns = gated, self.outputs // 2 if gated else self.outputs
        if self.inputs > 131072:
            raise ValueError(f"a product of {self.inputs} inputs; sums of 32 bits have room for 131072")
        handle = library.weights_open(self.outputs, self.inputs, gated, bits)
        if not handle:
            raise MemoryError("no memory for packed weights")
        weakref.finalize(self, library.weights_free, handle)
        self.handle: int = handle
        self.bytes: int = library.weights_bytes(handle)
        address, self._held = (memory or WeightMemory()).take(self.bytes)
        library.weights_pack(
            handle, address, weight.data_ptr(), FORMATS[weight.dtype], None if wide is None else wide.data_ptr()
        )


class NativeProducts:
    """Multiplies by `dots` (see `library.DOTS`), shared among the pool's threads. Not safe for concurrent calls."""

    def __init__(self, library: Library, dots: str, pool: Pool) -> None:
        """Raises ValueError for `dots` that cannot run here, MemoryError."""
        if dots not in library.dots:
            raise ValueError(f"{dots} cannot run on this machine; it runs {', '.join(library.dots)}")
        self._library, self.dots, self.pool = library, dots, pool
        self._handle = library.products_open(DOTS[dots], pool.handle)
        if not self._handle:
            raise MemoryError("no memory for the native library's products")
        weakref.finalize(self, library.products_close, self._handle)

    def multiply(
        self,
        x: torch.Tensor,
        weights: PackedWeights,
        ending: Ending = "plain",
        out: torch.Tensor | None = None,
        *,
        norm: torch.Tensor | None = None,
        norm_eps: float = 0.0,
    ) -> torch.Tensor:
        """x [rows, inputs], fp32 or bf16, contiguous → [rows, columns], fp32, into `out` if it is given.

        ending   "added" adds to `out`
        norm     [inputs], fp32: rows of x are normalised (RMS) with it first

        A row with a number that is not finite becomes NaN.
        """
        rows = len(x)
        if out is None:
            out = torch.empty(rows, weights.columns)
        self._check(x, weights, out)
        failed = self._library.products_multiply(
            self._handle, weights.handle, x.data_ptr(), FORMATS[x.dtype], None if norm is None else norm.data_ptr(),
            norm_eps, rows, _ENDINGS[ending], out.data_ptr(),
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory for a product's inputs")
        return out

    @staticmethod
    def _check(x: torch.Tensor, weights: PackedWeights, out: torch.Tensor) -> None:
        """Addresses leave from here: nothing may be smaller than the library takes it to be."""
        if x.shape != (len(x), weights.inputs) or not x.is_contiguous():
            raise ValueError(f"inputs of shape {list(x.shape)}, for a weight of {weights.inputs}")
        if out.shape != (len(x), weights.columns) or not out.is_contiguous() or out.dtype != torch.float32:
            raise ValueError(f"results of shape {list(out.shape)}, of a weight of {weights.columns} columns")
