"""From hidden states to what leaves: vectors and scores, as sentence-transformers defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F

from headway.artifacts.files import DenseStage, Modules, PoolingMode
from headway.compute.models.encoder import ACTIVATIONS
from headway.compute.models.encoder_spec import EncoderSpec

Tensors = Mapping[str, torch.Tensor]

#: [inputs, positions, hidden] → [inputs, hidden].
POOLING: dict[PoolingMode, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls": lambda states: states[:, 0],
    "last": lambda states: states[:, -1],
    "max": lambda states: states.amax(1),
    "mean": lambda states: states.mean(1),
    "mean_sqrt": lambda states: states.sum(1).div_(states.shape[1] ** 0.5),
    "weighted_mean": lambda states: _weighted(states),
}
_STAGE_ACTIVATIONS = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
}


#: Pooling that the native library does where it has computed the states.
NATIVE_POOLING: dict[PoolingMode, Literal["firsts", "means"]] = {"cls": "firsts", "mean": "means"}


def _weighted(states: torch.Tensor) -> torch.Tensor:
    """Later positions count more: by their place from 1 (Muennighoff 2022, "SGPT")."""
    weights = torch.arange(1, states.shape[1] + 1, dtype=torch.float32)
    return torch.einsum("nph,p->nh", states, weights / weights.sum())


class Vectors:
    """The stages after an encoder that makes vectors: pool, dense, normalize."""

    def __init__(self, modules: Modules, hidden: int, tensors: Tensors) -> None:
        self._modules = modules
        self._dense = [
            (tensors[f"dense.{i}.weight"], tensors.get(f"dense.{i}.bias"), stage)
            for i, stage in enumerate(modules.dense)
        ]
        self.values = modules.dense[-1].outputs if modules.dense else hidden * len(modules.pooling)
        #: An input's first hidden state is all that is looked at.
        self.first_only = set(modules.pooling) == {"cls"}

    @property
    def native(self) -> Literal["firsts", "means"] | None:
        """Which pooling the native library may do; `after` is to follow, unless it is `unit`."""
        return NATIVE_POOLING.get(self._modules.pooling[0]) if len(self._modules.pooling) == 1 else None

    @property
    def unit(self) -> bool:
        """Whether all that follows pooling is to divide vectors by their length."""
        return self._modules.normalize and not self._dense

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[inputs, values] of [inputs, positions, hidden]."""
        pooled = [POOLING[mode](states) for mode in self._modules.pooling]
        return self.after(pooled[0] if len(pooled) == 1 else torch.cat(pooled, 1))

    def after(self, vectors: torch.Tensor) -> torch.Tensor:
        """[inputs, values] of what was pooled, [inputs, hidden]."""
        for weight, bias, stage in self._dense:
            vectors = _STAGE_ACTIVATIONS[stage.activation](_product(vectors, weight, bias))
        return F.normalize(vectors, dim=1) if self._modules.normalize else vectors


class Scores:
    """The head of a cross-encoder: one value for an input, after the activation that its files ask for."""

    values = 1
    unit = False

    def __init__(self, spec: EncoderSpec, activation: str, tensors: Tensors) -> None:
        self._spec, self._activation, self._tensors = spec, activation, tensors
        self.first_only = spec.head_pooling == "cls"
        self._inner = ACTIVATIONS[spec.head_activation]

    @property
    def native(self) -> Literal["firsts", "means"]:
        """As of `Vectors`."""
        return NATIVE_POOLING[self._spec.head_pooling]

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[inputs, 1] of [inputs, positions, hidden]."""
        return self.after(POOLING[self._spec.head_pooling](states))

    def after(self, x: torch.Tensor) -> torch.Tensor:
        """[inputs, 1] of what was pooled, [inputs, hidden]."""
        of = self._tensors
        x = self._inner(_product(x, of["head.dense.weight"], of.get("head.dense.bias")))
        if self._spec.head == "dense_norm":
            norm = of["head.norm.weight"], of.get("head.norm.bias"), self._spec.norm_eps
            x = F.layer_norm(x, (self._spec.hidden,), *norm)
        logits = _product(x, of["head.out.weight"], of.get("head.out.bias"))
        return logits.sigmoid() if self._activation == "sigmoid" else logits


def check_stages(dense: tuple[DenseStage, ...], pooled: int) -> int | None:
    """The place of the first dense stage that takes another number of values than come to it."""
    for place, stage in enumerate(dense):
        if stage.inputs != pooled:
            return place
        pooled = stage.outputs
    return None


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """One input at a time: the library's order of summation depends on the number of rows."""
    return torch.cat([F.linear(row, weight, bias) for row in torch.split(x, 1)])
