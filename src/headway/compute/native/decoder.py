"""A decoder whose layers the native library runs: one call for all layers of a step, and one for its logits."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from headway.compute.finite import rows_not_finite
from headway.compute.models.decoder import StepInput, matrices
from headway.compute.models.spec import DecoderSpec
from headway.compute.native.attention import NativeAttention
from headway.compute.native.library import DOTS, Library
from headway.compute.native.memory import WeightMemory
from headway.compute.native.products import Bits, NativeProducts, PackedWeights


class Layer(ctypes.Structure):
    """`headway_layer` of native/headway.h."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "qkv", "o", "gate_up", "down")
    )


class NativeDecoder:
    """Weights in int8, or int4 but for the logits', ready to run. Does what `models.decoder.Decoder` does; a row's
    bits depend on no other row, so none is padded. Not safe for concurrent calls."""

    def __init__(
        self, spec: DecoderSpec, tensors: Mapping[str, torch.Tensor], attention: NativeAttention, bits: Bits = 8
    ) -> None:
        """`tensors` are canonical (see `text/weights.py`); the embedding stays where they have it. `attention` gives
        the threads. Raises MemoryError."""
        self.spec = spec
        library, pool, dots = attention.library, attention.pool, attention.library.dots_of(attention.level)
        self._library, self._attention = library, attention
        self._embedding = tensors["embedding"]
        self._products = NativeProducts(library, dots, pool)
        self._packed = _pack_all(library, spec, tensors, bits, pool.threads)
        self._norms = {name: tensor.float() for name, tensor in tensors.items() if name.endswith("norm")}
        layers = (Layer * spec.layers)(*(self._layer(f"layers.{i}.") for i in range(spec.layers)))
        self._handle = library.decoder_open(layers, spec.layers, spec.norm_eps, DOTS[dots], attention.handle)
        if not self._handle:
            raise MemoryError("no memory for the native library's decoder")
        weakref.finalize(self, library.decoder_close, self._handle)
        self.bytes = self._embedding.nbytes + sum(packed.bytes for packed in self._packed.values())
        held = "int8 weights, a scale for each output" if bits == 8 else "int4 weights in groups of 32, int8 logits"
        self.words = (
            f"{held}, int8 inputs, 16 bits for outliers, native ({dots}), {pool.threads} threads; "
            "a row's bits depend on it alone"
        )

    def __call__(self, step: StepInput) -> tuple[torch.Tensor, list[int]]:
        """The last hidden states [len(hidden_rows), hidden], fp32, for `logits`; and the rows whose hidden states are
        not finite. `step.attention` is of the attention that this was made with, and was asked for last. Writes the
        state of the step's positions. Raises ValueError for another number of rows than the step has positions."""
        x = F.embedding(step.tokens, self._embedding).float()
        failed = self._library.decoder_step(self._handle, x.data_ptr(), len(x))
        if failed == -1:
            raise MemoryError("no memory for the native library's step")
        if failed:
            raise ValueError(f"{len(x)} rows, and the step has another number of positions")
        return x.index_select(0, step.hidden_rows), rows_not_finite(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab], fp32, of [rows, hidden]."""
        return self._products.multiply(
            hidden, self._packed["head"], norm=self._norms["norm"], norm_eps=self.spec.norm_eps
        )

    def _layer(self, prefix: str) -> Layer:
        norms = (self._norms[f"{prefix}{name}"].data_ptr() for name in ("attention_norm", "mlp_norm"))
        weights = (self._packed[f"{prefix}{name}"].handle for name in ("qkv", "o", "gate_up", "down"))
        return Layer(*norms, *weights)


def _pack_all(
    library: Library, spec: DecoderSpec, tensors: Mapping[str, torch.Tensor], bits: Bits, threads: int
) -> dict[str, PackedWeights]:
    """Every product's weights by canonical name."""

    def packed(name: str) -> PackedWeights:
        held: Bits = 8 if name == "head" else bits
        return PackedWeights(library, *found[name], gated=name.endswith("gate_up"), bits=held, memory=memory)

    found, memory = matrices(spec, tensors), WeightMemory()
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(found, pool.map(packed, found), strict=True))
