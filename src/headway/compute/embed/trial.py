"""An encoder tried at load on a few texts of random tokens, in plain fp32 arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from headway.compute.kernels.full_attention import FullAttention, Group
from headway.compute.kernels.rows import Product
from headway.compute.models.encoder import Encoder, Inputs, matrices
from headway.compute.models.encoder_spec import EncoderSpec

#: Lengths of the texts.
_LENGTHS = (3, 8, 16, 32, 64, 64)

Tensors = Mapping[str, torch.Tensor]


def plain_products(
    spec: EncoderSpec, tensors: Tensors, watch: Callable[[str, torch.Tensor], None] = lambda name, x: None
) -> dict[str, Product]:
    """The encoder's products by the library's own routine. `watch` is told each product's name and input."""

    def product(name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        def run(x: torch.Tensor) -> torch.Tensor:
            watch(name, x)
            return F.linear(x, weight, bias)

        return run

    return {name: product(name, *pair) for name, pair in matrices(spec, tensors).items()}


def trial_states(encoder: Encoder, rows: Callable[[int], int] = int) -> list[torch.Tensor]:
    """The hidden states of the texts: [positions, hidden] each. `rows`: what numbers of rows are padded to."""
    spec = encoder.spec
    lengths = [min(length, spec.max_context) for length in _LENGTHS]
    count = sum(lengths)
    groups = [Group(sum(lengths[:i]), 1, length) for i, length in enumerate(lengths)]
    padding = torch.zeros(rows(count) - count, dtype=torch.int64)
    tokens = torch.randint(spec.vocab, (count,), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(length) for length in lengths])
    states = encoder(
        Inputs(
            tokens=torch.cat((tokens, padding)),
            positions=torch.cat((positions, padding)),
            second=None,
            attention=FullAttention(groups, count + len(padding), spec.heads, encoder.bias),
        )
    )
    return [states[group.first : group.end] for group in groups]
