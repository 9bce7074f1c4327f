"""Whether computed numbers are numbers: NaN and infinity end a request, they are never sampled from."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch


def rows_not_finite(values: torch.Tensor) -> list[int]:
    """Rows of `values` [rows, size] that hold NaN or infinity. Of fp32 by numpy, on one thread: what torch shares
    among threads leaves these spinning, and a step asks this of some thousands of numbers."""
    if values.dtype == torch.float32:
        sound = np.isfinite(values.detach().numpy()).all(-1)
        return [] if sound.all() else np.flatnonzero(~sound).tolist()
    suspects = values.sum(-1).isfinite().logical_not_().nonzero().flatten().tolist()
    return [row for row in suspects if count_not_finite(values[row])]  # a sum alone may overflow


def count_not_finite(values: torch.Tensor) -> int:
    """How many of `values` are NaN or infinite."""
    return values.numel() - int(values.isfinite().sum())


def all_finite(values: npt.NDArray[np.float32]) -> bool:
    """Whether none of `values` is NaN or infinite."""
    return math.isfinite(np.add.reduce(values, axis=None)) or bool(np.isfinite(values).all())
