"""An int8 encoder by the native library: all layers of a step in one call, which lets go of the interpreter.

Inputs are shared among threads; a single one is shared by all of them, stage by stage. A row's numbers depend on its
own input alone: products are exact sums of whole numbers, and everything else is done row by row or, in attention,
input by input, in one order.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from headway.compute.models.encoder_spec import EncoderSpec
from headway.compute.native.library import DOTS, LEVELS, Library
from headway.compute.native.memory import WeightMemory
from headway.compute.native.products import PackedWeights

#: After a step's end the next one is about a millisecond away: too long to stay awake for.
SPIN_US = 0
_pointer, _int, _long, _float = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_Ints = npt.NDArray[np.int32]
_Floats = npt.NDArray[np.float32]
#: What is asked for of inputs. As in native/headway.h.
Result = Literal["states", "firsts", "means"]
_RESULTS: dict[Result, int] = {"states": 0, "firsts": 1, "means": 2}
_PRODUCTS = ("qkv", "o", "up", "down")
_HEAD_DIM = 16


class _Layer(ctypes.Structure):
    """`headway_encoder_layer` of native/headway.h."""

    _fields_ = tuple(
        (name, _pointer)
        for name in (
            *_PRODUCTS, "attention_norm", "attention_norm_bias", "attention_scale", "mlp_norm", "mlp_norm_bias",
            "mlp_scale",
        )
    )  # fmt: skip


class _Shape(ctypes.Structure):
    """`headway_encoder_shape` of native/headway.h."""

    _fields_ = (
        ("layer", _pointer),
        ("layers", _int),
        ("hidden", _int),
        ("heads", _int),
        ("eps", _float),
        ("scale", _float),
        ("vocab", _long),
        ("positions", _long),
        ("embedding", _pointer),
        ("places", _pointer),
        ("second", _pointer),
        ("embedding_norm", _pointer),
        ("embedding_norm_bias", _pointer),
        ("embedding_scale", _pointer),
    )


def not_covered(spec: EncoderSpec) -> str | None:
    """Why the native kernels cannot run an encoder of this shape; None if they can."""
    for what, has in (
        ("norms before each block", spec.pre_norm),
        ("a gated MLP", spec.gated),
        ("relative positions", bool(spec.buckets)),
        ("rotary positions", any(rope is not None for rope in spec.ropes)),
        ("windows", any(spec.windows)),
        (f"the activation {spec.activation}", spec.activation != "gelu"),
        (f"heads of {spec.head_dim} values", spec.head_dim % _HEAD_DIM != 0),
    ):
        if has:
            return what
    return None


class NativeEncoder:
    """Weights rounded and packed, ready to run by kernels of `level`, shared among `threads`. Not safe for concurrent
    calls."""

    def __init__(
        self,
        spec: EncoderSpec,
        tensors: Mapping[str, torch.Tensor],
        library: Library,
        level: str,
        threads: int,
        dots: str | None = None,
    ) -> None:
        """`tensors` are canonical (see `embed/weights.py`), with their scales (`embed/smoothing.py`), of a shape that
        is covered; `dots` is how numbers of 8 bits are multiplied, by default the level's quickest way. Raises
        MemoryError, and ValueError for what the library does not take."""
        if (why := not_covered(spec)) is not None:
            raise ValueError(f"the native encoder has no kernels for {why}")
        dots = dots or library.dots_of(level)
        self._spec, self._library = spec, library
        self._kept: list[object] = []  # what the library points to
        self._memory = WeightMemory()
        layers = (_Layer * spec.layers)(*(self._layer(tensors, i) for i in range(spec.layers)))
        places, types = _places(spec, tensors), tensors.get("types") if spec.types else None
        shape = _Shape(
            layer=ctypes.addressof(layers),
            layers=spec.layers,
            hidden=spec.hidden,
            heads=spec.heads,
            eps=spec.norm_eps,
            scale=spec.head_dim**-0.5,
            vocab=spec.vocab,
            positions=spec.max_context,
            embedding=self._address(tensors["embedding"]),
            places=self._address(places),
            second=self._address(types[1] - types[0] if types is not None and len(types) > 1 else None),
            embedding_norm=self._address(tensors["embedding_norm.weight"]),
            embedding_norm_bias=self._address(tensors.get("embedding_norm.bias")),
            embedding_scale=self._address(tensors.get("layers.0.qkv.scale")),
        )
        pool = library.pool_open(threads, SPIN_US)
        if not pool:
            raise MemoryError("no memory for the native library's threads")
        self._handle = library.encoder_open(ctypes.byref(shape), LEVELS[level], DOTS[dots], pool)
        weakref.finalize(self, _close, library, self._handle, pool, self._kept)
        if not self._handle:
            raise MemoryError("no memory for the native library's encoder")
        self.words = f"native kernels ({level}), whole inputs, no padding, shared among {threads} threads"
        self.product_words = (
            f"int8 weights and inputs, a scale for each row, native ({dots}); a row's bits depend on it alone"
        )

    def __call__(
        self, tokens: _Ints, lengths: _Ints, seconds: _Ints | None = None, *, result: Result = "states",
        unit: bool = False,
    ) -> _Floats:  # fmt: skip
        """What comes of inputs whose `tokens` lie one after another, fp32.

        seconds   where the second text of each input begins, or 0
        result    "states": the last hidden states, [tokens, hidden]; "firsts": those of the inputs' first positions,
                  [inputs, hidden]; "means": of each input, their mean, [inputs, hidden]
        unit      firsts and means are divided by their length

        Raises ValueError for an input that is empty or too long, or a token that the vocabulary does not have.
        """
        if int(lengths.sum()) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, of inputs with {int(lengths.sum())} in all")
        out = np.empty((len(tokens) if result == "states" else len(lengths), self._spec.hidden), np.float32)
        failed = self._library.encoder_run(
            self._handle,
            tokens.ctypes.data,
            lengths.ctypes.data,
            None if seconds is None else seconds.ctypes.data,
            len(lengths),
            _RESULTS[result],
            unit,
            out.ctypes.data,
        )
        if failed == -1:
            raise MemoryError("no memory for the native library's step")
        if failed:
            raise ValueError("an input is empty or too long, or a token is not in the vocabulary")
        return out

    def _layer(self, tensors: Mapping[str, torch.Tensor], index: int) -> _Layer:
        prefix, after = f"layers.{index}.", f"layers.{index + 1}."
        found = _Layer()
        for part in _PRODUCTS:
            weight, bias = tensors[f"{prefix}{part}.weight"], tensors.get(f"{prefix}{part}.bias")
            packed = PackedWeights(self._library, weight, bias, memory=self._memory)
            self._kept.append(packed)
            setattr(found, part, packed.handle)
        for norm, scale in (("attention", f"{prefix}up.scale"), ("mlp", f"{after}qkv.scale")):
            setattr(found, f"{norm}_norm", self._address(tensors[f"{prefix}{norm}_norm.weight"]))
            setattr(found, f"{norm}_norm_bias", self._address(tensors.get(f"{prefix}{norm}_norm.bias")))
            setattr(found, f"{norm}_scale", self._address(tensors.get(scale)))
        return found

    def _address(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        whole = tensor.float().contiguous()
        self._kept.append(whole)
        return whole.data_ptr()


def _places(spec: EncoderSpec, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """What is added to a token's embedding by its position: [max_context, hidden], token type 0 included."""
    first = tensors["types"][0] if spec.types else None
    if not spec.positions:
        return None if first is None else first.expand(spec.max_context, -1)
    places = tensors["positions"][spec.first_position : spec.first_position + spec.max_context]
    return places if first is None else places + first


def _close(library: Library, encoder: int | None, pool: int, kept: list[object]) -> None:
    if encoder:
        library.encoder_close(encoder)
    library.pool_close(pool)
    kept.clear()
