"""Rotary position embedding (Su et al. 2021, "RoFormer"): which kinds are known, and their cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from headway.core.errors import ArtifactError, UnsupportedModel

KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """One kind of rotary embedding and its constants.

    `factor` stretches positions (linear: all of them; llama3: only the slow frequencies, with a blend between
    the two wavelengths `original_context / low_freq_factor` and `original_context / high_freq_factor`).
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str) -> Rope:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before).

        Raises UnsupportedModel for an unknown kind or a partial rotation, ArtifactError for a missing constant.
        """
        given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in KINDS:
            raise UnsupportedModel(name, f"RoPE scaling of type {kind!r}")
        partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise UnsupportedModel(name, f"partial rotary embedding (partial_rotary_factor {partial})")
        theta = float(given.get("rope_theta") or config.get("rope_theta") or 10000.0)
        for key, value in {"rope_theta": theta, **given}.items():
            if isinstance(value, float) and (not math.isfinite(value) or value <= 0):
                raise ArtifactError(f"{name}: the RoPE parameter {key} is {value!r}; it must be a number above 0")
        if kind == "default":
            return cls(theta=theta)
        try:
            if kind == "linear":
                return cls(kind, theta, float(given["factor"]))
            return cls(
                kind,
                theta,
                float(given["factor"]),
                float(given["low_freq_factor"]),
                float(given["high_freq_factor"]),
                int(given["original_max_position_embeddings"]),
            )
        except KeyError as missing:
            raise ArtifactError(f"{name}: RoPE scaling of type {kind!r} requires {missing}") from None

    def frequencies(self, head_dim: int) -> torch.Tensor:
        """Radians per position of each rotated pair: [head_dim / 2], fp32."""
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        plain = 1.0 / self.theta**exponent
        if self.kind == "default":
            return plain
        if self.kind == "linear":
            return plain / self.factor
        # Llama 3.1: slow frequencies are stretched, fast ones kept, those between blended.
        turns = self.original_context * plain / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return plain / self.factor * (1 - keep) + plain * keep

    def table(self, positions: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, each [positions, head_dim], fp32.

        A head x turns into `x * cos + roll(x, head_dim / 2) * sin`: the two halves of a head form the pairs, and
        the sign of the first half's sine is folded into the table.
        """
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), self.frequencies(head_dim))
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)
