"""One Llama-family decoder over the flattened positions of a step, with paged state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.compute.finite import rows_not_finite
from headway.compute.kernels.linear import Products
from headway.compute.kernels.norm import Norm, rms_norm
from headway.compute.kernels.paged import StepAttention
from headway.compute.kernels.rows import Product
from headway.compute.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's products and norms; `qkv` and `gate_up` are fused."""

    attention_norm: Norm
    qkv: Product
    o: Product
    mlp_norm: Norm
    gate_up: Product
    down: Product


@dataclass(slots=True)
class StepInput:
    """What one step evaluates, padded to a number of rows whose bits do not depend on it.

    tokens        [rows]
    attention     the step's spans over the state
    hidden_rows   rows whose last hidden state is asked for; may be empty
    logit_rows    of so many of these, the first ones, logits are to follow
    """

    tokens: Sequence[int]
    attention: StepAttention
    hidden_rows: Sequence[int]
    logit_rows: int = 0


@dataclass(slots=True)
class Evaluated:
    """What came of a step.

    hidden    [len(hidden_rows), hidden], fp32, for `logits`, until the next step
    spoiled   rows of the step whose hidden states are not finite, as they are where any number on the way to them was
              NaN; and those whose logits are not, where these are there
    logits    [logit_rows, vocab], fp32, likewise; None: they are to be asked for
    largest   the first place of the largest of each row of these
    """

    hidden: torch.Tensor
    spoiled: list[int]
    logits: torch.Tensor | None = None
    largest: Sequence[int] | None = None


class Decoder:
    """Weights ready to run. Call it inside `torch.inference_mode`."""

    def __init__(self, spec: DecoderSpec, tensors: Mapping[str, torch.Tensor], products: Products) -> None:
        """`tensors` are canonical (see `text/weights.py`); `products` are of their `matrices`.

        The embedding stays where `tensors` has it (a view of a mapped file): a lookup reads single rows.
        """
        self.spec = spec
        self._embedding = tensors["embedding"]
        self._layers = [_layer(spec, tensors, products, f"layers.{i}.") for i in range(spec.layers)]
        self._norm = rms_norm(tensors["norm"], spec.norm_eps)
        self._head = products["head"]

    def __call__(self, step: StepInput) -> Evaluated:
        """Writes the state of the step's positions."""
        x = F.embedding(torch.tensor(step.tokens), self._embedding).float()
        for index, layer in enumerate(self._layers):
            x += layer.o(step.attention(index, layer.qkv(layer.attention_norm(x))))
            x += layer.down(_swiglu(layer.gate_up(layer.mlp_norm(x)).float()))
        asked = torch.tensor(step.hidden_rows, dtype=torch.int64)
        return Evaluated(self._norm(x.index_select(0, asked)), rows_not_finite(x))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab], fp32, of [rows, hidden]."""
        return self._head(hidden).float() if len(hidden) else hidden.new_empty(0, self.spec.vocab)


def _swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up (Shazeer 2020). Not F.silu: its vectorised and scalar paths differ in the last bit, and which
    one an element takes depends on the number of rows and threads. The operators here agree on both paths."""
    gate, up = gate_up.chunk(2, -1)
    denominator = gate.neg().exp_().add_(1)
    return torch.div(gate, denominator, out=denominator).mul_(up)


def matrices(
    spec: DecoderSpec, tensors: Mapping[str, torch.Tensor]
) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """Every product's weight and bias, by canonical name."""
    found: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {
        "head": (tensors["embedding" if spec.tied else "head"], None)
    }
    for i in range(spec.layers):
        for name in (f"layers.{i}.{part}" for part in ("qkv", "o", "gate_up", "down")):
            found[name] = (tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
    return found


def _layer(spec: DecoderSpec, tensors: Mapping[str, torch.Tensor], products: Products, prefix: str) -> Layer:
    return Layer(
        attention_norm=rms_norm(tensors[f"{prefix}attention_norm"], spec.norm_eps),
        qkv=products[f"{prefix}qkv"],
        o=products[f"{prefix}o"],
        mlp_norm=rms_norm(tensors[f"{prefix}mlp_norm"], spec.norm_eps),
        gate_up=products[f"{prefix}gate_up"],
        down=products[f"{prefix}down"],
    )
