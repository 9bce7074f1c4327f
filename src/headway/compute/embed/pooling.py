"""From hidden states to what leaves: vectors and scores, as sentence-transformers defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from headway.artifacts.files import DenseStage, Modules, PoolingMode
from headway.compute.models.encoder import ACTIVATIONS
from headway.compute.models.encoder_spec import EncoderSpec

Tensors = Mapping[str, torch.Tensor]
#: fp32; hidden states are [positions, hidden].
Rows = npt.NDArray[np.float32]

#: [positions, hidden] → [hidden], by numpy: torch shares the sum of a long input among threads, and waking them takes
#: longer than the sum itself.
POOLING: dict[PoolingMode, Callable[[Rows], Rows]] = {
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
    "max": lambda states: np.maximum.reduce(states),
    "mean": lambda states: np.add.reduce(states) / np.float32(len(states)),
    "mean_sqrt": lambda states: np.add.reduce(states) / np.sqrt(np.float32(len(states))),
    "weighted_mean": lambda states: _weighted(states),
}
#: Pooling that the native library does as it leaves the last layer.
_NATIVE: dict[PoolingMode, Literal["firsts", "means"]] = {"cls": "firsts", "mean": "means"}
_LEAST_LENGTH = np.float32(1e-12)
_STAGE_ACTIVATIONS = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
}


def _weighted(states: Rows) -> Rows:
    """Later positions count more: by their place from 1 (Muennighoff 2022, "SGPT")."""
    weights = np.arange(1, len(states) + 1, dtype=np.float32)
    pooled: Rows = np.einsum("ph,p->h", states, weights / weights.sum())
    return pooled


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
        #: What the native library can do of all stages; `unit`: and divide each vector by its length.
        plain = len(modules.pooling) == 1 and not modules.dense
        self.native = _NATIVE.get(modules.pooling[0]) if plain else None
        self.unit = modules.normalize

    def __call__(self, states: Rows) -> Rows:
        """[values] of one input's [positions, hidden]."""
        pooled = [POOLING[mode](states) for mode in self._modules.pooling]
        vector = pooled[0] if len(pooled) == 1 else np.concatenate(pooled)
        if self._dense:
            rows = torch.from_numpy(vector).unsqueeze(0)
            for weight, bias, stage in self._dense:
                rows = _STAGE_ACTIVATIONS[stage.activation](F.linear(rows, weight, bias))
            vector = rows[0].numpy()
        return _normalized(vector) if self._modules.normalize else vector


def _normalized(vector: Rows) -> Rows:
    """Of length 1; one of zeros stays one."""
    unit: Rows = vector / max(np.sqrt(vector.dot(vector)), _LEAST_LENGTH)
    return unit


class Scores:
    """The head of a cross-encoder: one value for an input, after the activation that its files ask for."""

    values = 1

    def __init__(self, spec: EncoderSpec, activation: str, tensors: Tensors) -> None:
        self._spec, self._activation, self._tensors = spec, activation, tensors
        self.first_only = spec.head_pooling == "cls"
        self._inner = ACTIVATIONS[spec.head_activation]

    def __call__(self, states: Rows) -> Rows:
        """[1] of one input's [positions, hidden]."""
        of = self._tensors
        x = torch.from_numpy(POOLING[self._spec.head_pooling](states)).unsqueeze(0)
        x = self._inner(F.linear(x, of["head.dense.weight"], of.get("head.dense.bias")))
        if self._spec.head == "dense_norm":
            norm = of["head.norm.weight"], of.get("head.norm.bias"), self._spec.norm_eps
            x = F.layer_norm(x, (self._spec.hidden,), *norm)
        logits = F.linear(x, of["head.out.weight"], of.get("head.out.bias"))[0]
        score: Rows = (logits.sigmoid() if self._activation == "sigmoid" else logits).numpy()
        return score


def check_stages(dense: tuple[DenseStage, ...], pooled: int) -> int | None:
    """The place of the first dense stage that takes another number of values than come to it."""
    for place, stage in enumerate(dense):
        if stage.inputs != pooled:
            return place
        pooled = stage.outputs
    return None
