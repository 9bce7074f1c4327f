"""RMSNorm (Zhang and Sennrich 2019) in torch's operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

Norm = Callable[[torch.Tensor], torch.Tensor]


def rms_norm(weight: torch.Tensor, eps: float) -> Norm:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension.

    Composed from operators that are quicker together than F.rms_norm on few rows; √size is folded into the weight.
    """
    size = weight.shape[-1]
    scaled = weight.float() * size**0.5

    def norm(x: torch.Tensor) -> torch.Tensor:
        inverse: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(eps * size).rsqrt_()
        return (x * inverse).mul_(scaled)

    return norm
