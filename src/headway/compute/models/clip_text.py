"""CLIP's text encoder (Radford et al. 2021): a transformer with norms before each block, whose positions see earlier
ones only. What it makes of a prompt is what most U-Nets of images attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from headway.artifacts.files import ModelFiles
from headway.compute.finite import rows_not_finite
from headway.core.errors import ArtifactError, UnsupportedModel

_PREFIX = "text_model."
#: Counted out, or of a head that features do not pass.
_NOTHING_NEW = ("position_ids", "text_projection.weight")
_ACTIVATIONS = ("quick_gelu", "gelu")


@dataclass(frozen=True, slots=True)
class ClipSpec:
    """Sizes count values; `positions` is the longest text."""

    vocab: int
    positions: int
    hidden: int
    inner: int
    layers: int
    heads: int
    norm_eps: float
    activation: str

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str) -> ClipSpec:
        """Raises UnsupportedModel for an activation that is not known, ArtifactError for sizes that are missing or do
        not fit."""
        activation = config.get("hidden_act", "quick_gelu")
        if activation not in _ACTIVATIONS:
            raise UnsupportedModel(name, f"hidden_act {activation!r} of its text encoder")
        keys = ("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers",
                "num_attention_heads")  # fmt: skip
        for key in keys:
            if not isinstance(size := config.get(key), int) or size < 1:
                raise ArtifactError(f"{name}: {key} of its text encoder is {size!r}")
        vocab, positions, hidden, inner, layers, heads = (config[key] for key in keys)
        norm_eps = float(config.get("layer_norm_eps", 1e-5))
        spec = cls(vocab, positions, hidden, inner, layers, heads, norm_eps, activation)
        if spec.hidden % spec.heads:
            raise ArtifactError(f"{name}: {spec.hidden} values of its text encoder in {spec.heads} heads")
        return spec

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its tensors, by the name that they have behind `text_model.`."""
        hidden, inner = self.hidden, self.inner
        found: dict[str, tuple[int, ...]] = {
            "embeddings.token_embedding.weight": (self.vocab, hidden),
            "embeddings.position_embedding.weight": (self.positions, hidden),
        }
        products = {"mlp.fc1": (inner, hidden), "mlp.fc2": (hidden, inner)}
        products |= {f"self_attn.{each}_proj": (hidden, hidden) for each in ("q", "k", "v", "out")}
        norms = [f"encoder.layers.{layer}.layer_norm{norm}" for layer in range(self.layers) for norm in (1, 2)]
        for name in (*norms, "final_layer_norm"):
            found |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
        for layer in range(self.layers):
            for product, shape in products.items():
                name = f"encoder.layers.{layer}.{product}"
                found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return found


class ClipText:
    """Raises UnsupportedModel or ArtifactError for files that are not such an encoder's."""

    def __init__(self, files: ModelFiles) -> None:
        self.spec = ClipSpec.from_config(files.config, files.name)
        self._tensors = _read(files, self.spec.shapes())
        self.weights_bytes = sum(tensor.nbytes for tensor in self._tensors.values())

    def __call__(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """The last hidden states, [texts, positions, hidden], of texts of one length."""
        tokens = torch.tensor([list(text) for text in texts])
        states = F.embedding(tokens, self._tensors["embeddings.token_embedding.weight"])
        states = states + self._tensors["embeddings.position_embedding.weight"][: tokens.shape[1]]
        for layer in range(self.spec.layers):
            states = self._layer(f"encoder.layers.{layer}.", states)
        return self._norm("final_layer_norm", states)

    def _layer(self, layer: str, states: torch.Tensor) -> torch.Tensor:
        normed = self._norm(f"{layer}layer_norm1", states)
        q, k, v = (self._heads(self._product(f"{layer}self_attn.{each}_proj", normed)) for each in "qkv")
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        states = states + self._product(f"{layer}self_attn.out_proj", seen)
        inner = self._product(f"{layer}mlp.fc1", self._norm(f"{layer}layer_norm2", states))
        inner = inner * torch.sigmoid(1.702 * inner) if self.spec.activation == "quick_gelu" else F.gelu(inner)
        return states + self._product(f"{layer}mlp.fc2", inner)

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.view(*states.shape[:2], self.spec.heads, -1).transpose(1, 2)

    def _product(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return F.linear(states, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])

    def _norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(states, weight.shape, weight, bias, self.spec.norm_eps)


def _read(files: ModelFiles, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for theirs, values in files.tensors.read():
        name = theirs.removeprefix(_PREFIX)
        if name.endswith(_NOTHING_NEW):
            continue
        if name not in shapes:
            raise UnsupportedModel(files.name, f"the tensor {theirs} of its text encoder")
        if values.shape != shapes[name]:
            raise ArtifactError(f"{files.name}: {theirs} is {list(values.shape)}, not {list(shapes[name])}")
        found[name] = torch.from_numpy(values)
        if rows_not_finite(found[name].reshape(1, -1)):
            raise ArtifactError(f"{files.name}: its text encoder has values in {theirs} that are not finite")
    for name in shapes:
        if name not in found:
            raise ArtifactError(f"{files.name}: its text encoder lacks the tensor {_PREFIX}{name}")
    return found
