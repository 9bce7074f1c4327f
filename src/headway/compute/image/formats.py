"""Which number format a diffusion model's updates and decodings are computed in.

Latents, noise schedulers and features of texts stay in fp32: an update adds little to a latent, and twenty of them
would lose that to rounding.
"""

from __future__ import annotations

import torch

from headway.compute.embed.formats import multiplies_bf16
from headway.core.errors import ConfigError

#: What is computed beside the products of linear layers, by the format of these.
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}


def choose_weights(weights: str) -> str:
    """`auto` is bf16 where the processor multiplies it, which makes updates and decodings up to twice as quick (see
    docs/speed.md), else fp32. With int8, which rounds the linear layers alone and more, updates are quicker still:
    that is for whoever asks for it, since what it does to other models' images was not measured. Raises ConfigError
    for a format that is not implemented."""
    if weights == "auto":
        weights = "bf16" if multiplies_bf16() else "fp32"
    if weights not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError("--weights", f"{weights} is not implemented for diffusion models; use auto, {known}")
    return weights
