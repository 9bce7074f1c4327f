"""Scales that spread an input's range over its products' weights before both are rounded to int8.

Some features of an encoder's normed states are many times larger than the others, and would take the whole range of a
row's 255 steps. Each feature is divided by a scale, and the weights that it meets are multiplied by it (Xiao et al.
2023, "SmoothQuant", with its exponent of 0.5). The division is part of the norm's own weights, so it costs nothing.
How large features become is seen on a few texts of random tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headway.compute.embed.trial import plain_products, trial_states
from headway.compute.models.encoder import Encoder
from headway.compute.models.encoder_spec import EncoderSpec

_LEAST = 1e-5


def smoothed(spec: EncoderSpec, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`tensors` with such scales worked in: the encoder's results are the same but for rounding."""
    found = dict(tensors)
    for (name, norm), largest in zip(_normed(spec), _largest(spec, tensors), strict=True):
        weight = tensors[f"{name}.weight"]
        scale = (largest.clamp(min=_LEAST) / weight.abs().amax(0).clamp(min=_LEAST)).sqrt_()
        found[f"{name}.weight"] = weight * scale
        found[f"{name}.scale"] = scale
        for part in ("weight", "bias"):
            if f"{norm}.{part}" in tensors:
                found[f"{norm}.{part}"] = tensors[f"{norm}.{part}"] / scale
    return found


def _normed(spec: EncoderSpec) -> list[tuple[str, str]]:
    """Products and the norms that their inputs come from, one norm to each. A norm that several things read as it is
    (ModernBERT's first layer, and its residual) is left alone."""
    found = []
    for i in range(spec.layers):
        before = (
            f"layers.{i}.attention_norm" if spec.pre_norm else f"layers.{i - 1}.mlp_norm" if i else "embedding_norm"
        )
        if i or not spec.pre_norm:
            found.append((f"layers.{i}.qkv", before))
        found.append((f"layers.{i}.up", f"layers.{i}.{'mlp_norm' if spec.pre_norm else 'attention_norm'}"))
    return found


def _largest(spec: EncoderSpec, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The largest magnitude of each feature of each normed product's input, in order: [hidden] each."""
    seen: dict[str, torch.Tensor] = {}

    def watch(name: str, x: torch.Tensor) -> None:
        seen[name] = x.abs().amax(0)

    trial_states(Encoder(spec, tensors, plain_products(spec, tensors, watch)))
    return [seen[name] for name, _ in _normed(spec)]
