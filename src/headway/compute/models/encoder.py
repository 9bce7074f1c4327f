"""One bidirectional encoder over the positions of a step, inputs one after another: BERT and its descendants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.compute.kernels.full_attention import FullAttention
from headway.compute.kernels.rows import NamedProducts, Product
from headway.compute.models.encoder_spec import EncoderSpec
from headway.compute.models.rope import Rope

Tensors = Mapping[str, torch.Tensor]
Step = Callable[[torch.Tensor], torch.Tensor]
#: Cosines and signed sines of the step's rows, as `Rope.table` has them.
Turn = tuple[torch.Tensor, torch.Tensor]

ACTIVATIONS: dict[str, Step] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer's products and norms; `qkv` and, if the MLP is gated, `up` (the gate first) are fused. Norms are
    before attention and MLP or after them, as the spec has it; `attention_norm` is None where the one after the
    embedding serves. `qkv_scale` and `up_scale`: what the inputs of these products were divided by (see
    `embed/smoothing.py`), if by anything."""

    attention_norm: Step | None
    qkv: Product
    o: Product
    mlp_norm: Step
    up: Product
    down: Product
    rope: Rope | None
    window: int
    qkv_scale: torch.Tensor | None
    up_scale: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one step evaluates, padded to a number of rows whose bits do not depend on it.

    tokens      [rows]
    positions   [rows], each input's from 0
    second      [rows], 1 in the second text of a pair and else 0; None where there is no pair
    attention   over the step's inputs
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    second: torch.Tensor | None
    attention: FullAttention


class Encoder:
    """Weights ready to run. Call it inside `torch.inference_mode`."""

    def __init__(self, spec: EncoderSpec, tensors: Tensors, products: NamedProducts) -> None:
        """`tensors` are canonical (see `embed/weights.py`); `products` are of their `matrices`. The embedding stays
        where `tensors` has it (a view of a mapped file): a lookup reads single rows."""
        self.spec = spec
        self._embedding = tensors["embedding"]
        self._places = _places(spec, tensors)
        self._types = tensors["types"] if spec.types else None
        self._embedding_norm = _norm(spec, tensors, "embedding_norm")
        self._layers = [_layer(spec, tensors, products, i) for i in range(spec.layers)]
        self._final_norm = _norm(spec, tensors, "final_norm") if spec.pre_norm else None
        self._activation = ACTIVATIONS[spec.activation]
        self._turns = {rope: rope.table(spec.max_context, spec.head_dim) for rope in spec.ropes if rope is not None}
        self.bias = _distance_bias(tensors["relative_bias"], spec.max_context) if spec.buckets else None

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """The last hidden states: [rows, hidden], fp32."""
        x, turns = self._embedded(inputs), self._turned(inputs)
        for layer in self._layers:
            x = self._step(layer, x, inputs.attention, turns.get(layer.rope))
        return x if self._final_norm is None else self._final_norm(x)

    def first(self, inputs: Inputs, rows: torch.Tensor, *, all_too: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The last hidden states of `rows`, which are the inputs' first positions in order (and any rows behind, up
        to a number whose bits do not depend on it): the last layer is not evaluated for others. With `all_too`, those
        of all rows as well."""
        x, turns = self._embedded(inputs), self._turned(inputs)
        for layer in self._layers[:-1]:
            x = self._step(layer, x, inputs.attention, turns.get(layer.rope))
        layer, attention, norm = self._layers[-1], inputs.attention, self._final_norm or (lambda x: x)
        normed = layer.attention_norm(x) if self.spec.pre_norm and layer.attention_norm is not None else x
        qkv = self._qkv(layer, normed, turns.get(layer.rope))
        firsts = self._joined(layer, x.index_select(0, rows), layer.o(attention.first(qkv, len(rows), layer.window)))
        everything = None
        if all_too:
            everything = norm(self._joined(layer, x, layer.o(attention(qkv, layer.window))))
        return norm(firsts), everything

    def _turned(self, inputs: Inputs) -> dict[Rope | None, Turn]:
        """Each kind of rotation's cosines and sines for the step's rows."""
        found: dict[Rope | None, Turn] = {}
        for rope, (cos, sin) in self._turns.items():
            at = inputs.positions
            found[rope] = cos.index_select(0, at).unsqueeze(1), sin.index_select(0, at).unsqueeze(1)
        return found

    def _embedded(self, inputs: Inputs) -> torch.Tensor:
        x = F.embedding(inputs.tokens, self._embedding)
        if self._places is not None:
            x += self._places.index_select(0, inputs.positions)
        if self._types is not None:
            # Of a single text every position has type 0, whose row is among the positions' already, if there are any.
            if inputs.second is not None and len(self._types) > 1:
                x += (self._types - self._types[0]).index_select(0, inputs.second)
            if self._places is None:
                x += self._types[0]
        return self._embedding_norm(x)

    def _step(
        self, layer: EncoderLayer, x: torch.Tensor, attention: FullAttention, turn: Turn | None
    ) -> torch.Tensor:
        """One layer, in place of `x`."""
        normed = layer.attention_norm(x) if self.spec.pre_norm and layer.attention_norm is not None else x
        return self._joined(layer, x, layer.o(attention(self._qkv(layer, normed, turn), layer.window)))

    def _joined(self, layer: EncoderLayer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What follows attention: with norms after each block, or before it. In place of `x`."""
        if self.spec.pre_norm:
            x += attended
            return x.add_(self._mlp(layer, layer.mlp_norm(x)))
        assert layer.attention_norm is not None
        x = layer.attention_norm(_plus(x, layer.qkv_scale, attended))
        return layer.mlp_norm(_plus(x, layer.up_scale, self._mlp(layer, x)))

    def _qkv(self, layer: EncoderLayer, x: torch.Tensor, turn: Turn | None) -> torch.Tensor:
        """Queries, keys and values, rotated if the layer does that: [rows, 3 · hidden], fp32."""
        qkv = layer.qkv(x).float()
        if turn is not None:
            heads = qkv.view(len(qkv), 3 * self.spec.heads, self.spec.head_dim)[:, : 2 * self.spec.heads]
            cos, sin = turn
            torch.addcmul(heads * cos, heads.roll(self.spec.head_dim // 2, -1), sin, out=heads)
        return qkv

    def _mlp(self, layer: EncoderLayer, x: torch.Tensor) -> torch.Tensor:
        up = layer.up(x).float()
        if self.spec.gated:
            gate, up = up.chunk(2, -1)
            return layer.down(self._activation(gate).mul_(up))
        return layer.down(self._activation(up))


def matrices(spec: EncoderSpec, tensors: Tensors) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """Every layer's products: weight and bias, by canonical name."""
    names = [f"layers.{i}.{part}" for i in range(spec.layers) for part in ("qkv", "o", "up", "down")]
    return {name: (tensors[f"{name}.weight"], tensors.get(f"{name}.bias")) for name in names}


def relative_buckets(longest: int, buckets: int, furthest: int = 128) -> torch.Tensor:
    """Which bucket each distance (key - query) from -(longest - 1) to longest - 1 has: half of them for each
    direction, the nearer distances one by one, the others on a logarithmic scale up to `furthest` (Raffel et al.
    2020, "T5"; MPNet uses the same)."""
    distance = torch.arange(1 - longest, longest)
    half = buckets // 2
    near = half // 2
    far = distance.abs()
    scaled = (far.clamp(min=1).float() / near).log() / math.log(furthest / near) * (half - near)
    bucket = torch.where(far < near, far, (near + scaled.long()).clamp(max=half - 1))
    return bucket + half * (distance > 0)


def _distance_bias(table: torch.Tensor, longest: int) -> torch.Tensor:
    """[heads, 2 · longest - 1] of `table` [buckets, heads]."""
    return table[relative_buckets(longest, len(table))].T.contiguous()


def _places(spec: EncoderSpec, tensors: Tensors) -> torch.Tensor | None:
    """What is added to a token's embedding by its position, counted from 0: [max_context, hidden]. RoBERTa's tables
    begin with rows for padding: an input's first position is the row after them, wherever the input lies."""
    if not spec.positions:
        return None
    places = tensors["positions"][spec.first_position : spec.first_position + spec.max_context]
    return places + tensors["types"][0] if spec.types else places


def _plus(x: torch.Tensor, scale: torch.Tensor | None, added: torch.Tensor) -> torch.Tensor:
    """`x` · `scale` + `added`, in place of `x`."""
    return x.add_(added) if scale is None else torch.addcmul(added, x, scale, out=x)


def _norm(spec: EncoderSpec, tensors: Tensors, name: str) -> Step:
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    return lambda x: F.layer_norm(x, (spec.hidden,), weight, bias, spec.norm_eps)


def _layer(spec: EncoderSpec, tensors: Tensors, products: NamedProducts, index: int) -> EncoderLayer:
    prefix = f"layers.{index}."
    return EncoderLayer(
        attention_norm=_norm(spec, tensors, f"{prefix}attention_norm")
        if f"{prefix}attention_norm.weight" in tensors
        else None,
        qkv=products[f"{prefix}qkv"],
        o=products[f"{prefix}o"],
        mlp_norm=_norm(spec, tensors, f"{prefix}mlp_norm"),
        up=products[f"{prefix}up"],
        down=products[f"{prefix}down"],
        rope=spec.ropes[index],
        window=spec.windows[index],
        qkv_scale=tensors.get(f"{prefix}qkv.scale"),
        up_scale=tensors.get(f"{prefix}up.scale"),
    )
