"""Formats of an encoder's weights, and which one is right where none is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from headway.compute.embed.pooling import Scores, Vectors
from headway.compute.embed.trial import plain_products, trial_states
from headway.compute.int8_trial import FASTER, Choice, KeptTrials, Numbers, Trial, faster
from headway.compute.kernels.linear import Products, probe_kernel
from headway.compute.models.encoder import Encoder, matrices
from headway.compute.models.encoder_spec import EncoderSpec
from headway.compute.native.encoder import not_covered

FORMATS = ("fp32", "bf16", "int8")
#: The least cosine of a vector with that in fp32: vectors are stored, and compared with others that were made
#: elsewhere, so a format that was not asked for must not show in them. (int8 that is asked for keeps 0.995.)
BOUND = 0.9999

#: The vectors of whole inputs in a format, fp32.
Embed = Callable[[str, Sequence[Sequence[int]]], Sequence[np.ndarray]]


def choose_weights(
    spec: EncoderSpec,
    tensors: Mapping[str, torch.Tensor],
    stages: Vectors | Scores,
    native: str,
    trial: Trial | None,
    kept: KeptTrials,
    embed: Embed,
) -> Choice:
    """`auto` resolved: int8 where the native kernels make that faster and this model's vectors keep their direction,
    measured on the texts of `trial`; else fp32, unless bf16 is both quicker and as good.

    bf16 is tried on texts of random tokens, which are harder than real ones. It is quicker only where the
    processor multiplies bf16: elsewhere it is converted first. A cross-encoder keeps fp32: its score is one
    number, whose size no cosine bounds.
    """
    if isinstance(stages, Scores):
        return Choice("fp32", "auto: no cosine bounds what rounding does to a cross-encoder's scores")
    kernels = faster(native)
    if kernels is None:
        why = f"auto: int8 is faster only with native kernels for {' or '.join(FASTER.values())}"
    elif (missing := not_covered(spec)) is not None:
        why = f"auto: int8 is faster only with the native kernels, which do not cover {missing}"
    elif trial is None:
        why = "auto: there are no texts to measure int8 on"
    else:
        least, texts = kept.measured(kernels, "fp32", trial, lambda: _least_cosine(trial, spec, embed))
        says = f"least cosine with fp32 {least:.4f} (at least {BOUND}) on {texts:.0f} texts"
        if least >= BOUND:
            return Choice("int8", f"auto: {FASTER[kernels[1]]}; {says}")
        why = f"auto: int8 is faster, but moves vectors: {says}; --weights int8 takes it all the same"
    return Choice("bf16" if _narrow_is_as_good(spec, tensors, stages) else "fp32", why)


def _least_cosine(trial: Trial, spec: EncoderSpec, embed: Embed) -> Numbers:
    """The least cosine of a text's vectors in fp32 and int8, and how many texts there are; 0 of 0 where the texts'
    tokens are not the model's."""
    texts = [tokens[: spec.max_context] for tokens in trial.read() if tokens]
    if not texts or max(map(max, texts)) >= spec.vocab:
        return (0.0, 0.0)
    pairs = zip(embed("fp32", texts), embed("int8", texts), strict=True)
    cosines = [one @ other / (np.linalg.norm(one) * np.linalg.norm(other) or 1.0) for one, other in pairs]
    least = float(np.min(cosines))
    return (least if np.isfinite(least) else 0.0, float(len(texts)))


def _narrow_is_as_good(spec: EncoderSpec, tensors: Mapping[str, torch.Tensor], stages: Vectors) -> bool:
    """Whether bf16 is quicker here, and moves no vector by more than `BOUND`."""
    if not multiplies_bf16():
        return False
    plain = Encoder(spec, tensors, plain_products(spec, tensors))
    products = Products(probe_kernel("bf16"), matrices(spec, tensors))
    narrow = Encoder(spec, tensors, products)
    expected, found = trial_states(plain), trial_states(narrow, products.rows)
    alike = (
        F.cosine_similarity(_vector(stages, one), _vector(stages, other), dim=0)
        for one, other in zip(expected, found, strict=True)
    )
    return all(float(cosine) >= BOUND for cosine in alike)


def _vector(stages: Vectors, states: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(stages(states.numpy()))


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for it."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
