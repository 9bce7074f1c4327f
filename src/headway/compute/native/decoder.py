"""A decoder whose layers the native library runs: one call for a step, from tokens to logits."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from headway.compute.models.decoder import Evaluated, StepInput, matrices
from headway.compute.models.spec import DecoderSpec
from headway.compute.native.attention import NativeAttention
from headway.compute.native.library import DOTS, Library
from headway.compute.native.memory import WeightMemory
from headway.compute.native.products import FORMATS, Bits, NativeProducts, PackedWeights


class Layer(ctypes.Structure):
    """`headway_layer` of native/headway.h."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "qkv", "o", "gate_up", "down")
    )


class DecoderShape(ctypes.Structure):
    """`headway_decoder_shape` of native/headway.h."""

    _fields_ = (
        ("layer", ctypes.c_void_p),
        ("layers", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("vocab", ctypes.c_int64),
        ("embedding", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("head", ctypes.c_void_p),
        ("norm_eps", ctypes.c_float),
    )


#: Room for the results of so many rows is kept from step to step: for new logits the system clears pages.
_KEPT_ROWS = 8


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
        self._embedding = tensors["embedding"].contiguous()
        self._products = NativeProducts(library, dots, pool)
        self._packed = _pack_all(library, spec, tensors, bits, pool.threads)
        self._norms = {name: tensor.float() for name, tensor in tensors.items() if name.endswith("norm")}
        layers = (Layer * spec.layers)(*(self._layer(f"layers.{i}.") for i in range(spec.layers)))
        shape = DecoderShape(
            layer=ctypes.addressof(layers),
            layers=spec.layers,
            format=FORMATS[self._embedding.dtype],
            vocab=spec.vocab,
            embedding=self._embedding.data_ptr(),
            norm=self._norms["norm"].data_ptr(),
            head=self._packed["head"].handle,
            norm_eps=spec.norm_eps,
        )
        self._handle = library.decoder_open(ctypes.byref(shape), DOTS[dots], attention.handle)
        if not self._handle:
            raise MemoryError("no memory for the native library's decoder")
        weakref.finalize(self, library.decoder_close, self._handle)
        self._hidden, self._logits = torch.empty(_KEPT_ROWS, spec.hidden), torch.empty(_KEPT_ROWS, spec.vocab)
        self.bytes = self._embedding.nbytes + sum(packed.bytes for packed in self._packed.values())
        held = "int8 weights, a scale for each output" if bits == 8 else "int4 weights in groups of 32, int8 logits"
        self.words = (
            f"{held}, int8 inputs, 16 bits for outliers, native ({dots}), {pool.threads} threads; "
            "a row's bits depend on it alone"
        )

    def __call__(self, step: StepInput) -> Evaluated:
        """`step.attention` is of the attention that this was made with, and was asked for last. Writes the state of
        the step's positions. Raises ValueError for another number of rows than the step has positions, and for tokens
        and rows that do not exist."""
        tokens, asked, wanted = array("i", step.tokens), array("i", step.hidden_rows), step.logit_rows
        if len(asked) <= _KEPT_ROWS:
            hidden, logits = self._hidden[: len(asked)], self._logits[:wanted]
        else:
            hidden, logits = torch.empty(len(asked), self.spec.hidden), torch.empty(wanted, self.spec.vocab)
        largest, flags = array("i", bytes(4 * wanted)), array("B", bytes(len(tokens) + wanted))
        spoiled = self._library.decoder_step(
            self._handle, tokens.buffer_info()[0], len(tokens), asked.buffer_info()[0], len(asked), wanted,
            hidden.data_ptr(), logits.data_ptr(), largest.buffer_info()[0], flags.buffer_info()[0],
        )  # fmt: skip
        if spoiled == -1:
            raise MemoryError("no memory for the native library's step")
        if spoiled < 0:
            raise ValueError(f"{len(tokens)} rows, and the step has another number of positions, or no such token")
        return Evaluated(hidden, _rows(flags, step) if spoiled else [], logits, largest)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab], fp32, of [rows, hidden]."""
        return self._products.multiply(
            hidden, self._packed["head"], norm=self._norms["norm"], norm_eps=self.spec.norm_eps
        )

    def _layer(self, prefix: str) -> Layer:
        norms = (self._norms[f"{prefix}{name}"].data_ptr() for name in ("attention_norm", "mlp_norm"))
        weights = (self._packed[f"{prefix}{name}"].handle for name in ("qkv", "o", "gate_up", "down"))
        return Layer(*norms, *weights)


def _rows(flags: array[int], step: StepInput) -> list[int]:
    """The step's rows that are flagged themselves, or whose logits are."""
    rows = len(step.tokens)
    return [place if place < rows else step.hidden_rows[place - rows] for place, flag in enumerate(flags) if flag]


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
