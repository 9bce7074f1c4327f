"""Formats of an encoder's weights, and which one is right where none is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from headway.compute.embed.pooling import Scores, Vectors
from headway.compute.embed.trial import plain_products, trial_states
from headway.compute.kernels.linear import Products, probe_kernel
from headway.compute.models.encoder import Encoder, matrices
from headway.compute.models.encoder_spec import EncoderSpec

FORMATS = ("fp32", "bf16", "int8")
#: The least cosine of a vector with that in fp32.
BOUND = 0.9999


def choose_weights(spec: EncoderSpec, tensors: Mapping[str, torch.Tensor], stages: Vectors | Scores) -> str:
    """fp32, unless bf16 is both quicker and as good.

    Vectors are stored and compared with others that were made elsewhere, so a format must not show in them: bf16 is
    taken only where its vectors point where those of fp32 do, on texts of random tokens, which are harder than real
    ones. It is quicker only where the processor multiplies bf16: elsewhere it is converted first. A cross-encoder
    keeps fp32: its score is one number, whose size no cosine bounds. int8 is never taken unasked: it moves vectors
    by more than any of this.
    """
    if isinstance(stages, Scores) or not multiplies_bf16():
        return "fp32"
    plain = Encoder(spec, tensors, plain_products(spec, tensors))
    products = Products(probe_kernel("bf16"), matrices(spec, tensors))
    narrow = Encoder(spec, tensors, products)
    expected, found = trial_states(plain), trial_states(narrow, products.rows)
    alike = (
        F.cosine_similarity(_vector(stages, one), _vector(stages, other), dim=0)
        for one, other in zip(expected, found, strict=True)
    )
    return "bf16" if all(float(cosine) >= BOUND for cosine in alike) else "fp32"


def _vector(stages: Vectors, states: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(stages(states.numpy()))


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for it."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
