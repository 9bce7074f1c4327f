"""Scales that spread an input's range over its products' weights before both are rounded to int8.

Some features of an encoder's normed states are many times larger than the others, and would take the whole range of a
row's 255 steps. Each feature is divided by a scale, and the weights that it meets are multiplied by it (Xiao et al.
2023, "SmoothQuant", with its exponent of 0.5). The division is part of the norm's own weights, so it costs nothing.
How large features become is seen on a few texts of random tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from headway.compute.kernels.full_attention import FullAttention, Group
from headway.compute.kernels.rows import Product
from headway.compute.models.encoder import Encoder, Inputs, matrices
from headway.compute.models.encoder_spec import EncoderSpec

#: Lengths of the texts of random tokens.
_LENGTHS = (3, 8, 16, 32, 64, 64)
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
    products = {name: _watched(name, *pair, seen) for name, pair in matrices(spec, tensors).items()}
    generator = torch.Generator().manual_seed(0)
    lengths = [min(length, spec.max_context) for length in _LENGTHS]
    groups, first = [], 0
    for length in lengths:
        groups.append(Group(first, 1, length))
        first += length
    encoder = Encoder(spec, tensors, products)
    encoder(
        Inputs(
            tokens=torch.randint(spec.vocab, (first,), generator=generator),
            positions=torch.cat([torch.arange(length) for length in lengths]),
            second=None,
            attention=FullAttention(groups, first, spec.heads, encoder.bias),
        )
    )
    return [seen[name] for name, _ in _normed(spec)]


def _watched(name: str, weight: torch.Tensor, bias: torch.Tensor | None, seen: dict[str, torch.Tensor]) -> Product:
    def product(x: torch.Tensor) -> torch.Tensor:
        seen[name] = x.abs().amax(0)
        return F.linear(x, weight, bias)

    return product
