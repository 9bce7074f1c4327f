"""What becomes of queries and keys before attention: normalised per head where the model does so, and rotated."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headway.compute.kernels.norm import Norm, rms_norm
from headway.compute.models.spec import DecoderSpec


class Rotary:
    """Rotary position embedding of `positions` positions, and the norms before it.

    cosines, sines   [positions, head_dim], fp32, the sign of the first half's sine folded in (`Rope.table`)
    head_norms       per layer, [heads + kv_heads, head_dim], fp32: weights of the queries' and keys' norms; empty
                     where the model has none
    """

    def __init__(self, spec: DecoderSpec, tensors: Mapping[str, torch.Tensor], positions: int) -> None:
        """`tensors` are canonical; `positions` bounds the positions ever evaluated."""
        self.spec = spec
        self.cosines, self.sines = spec.rope.table(positions, spec.head_dim)
        self.head_norms = [
            _head_norms(spec, tensors, f"layers.{i}.") for i in range(spec.layers if spec.qk_norm else 0)
        ]
        self._norms: list[Norm] = [rms_norm(weight, spec.norm_eps) for weight in self.head_norms]
        # Scores are scaled on the queries' side, and that within the rotation: one product less per layer.
        scale = torch.ones(1, spec.heads + spec.kv_heads, 1)
        scale[:, : spec.heads] = spec.head_dim**-0.5
        self._scale = scale

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosines, sines) of a step's rows, scaled: [rows, heads + kv_heads, head_dim] each."""
        cos = self.cosines.index_select(0, positions).unsqueeze(1) * self._scale
        return cos, self.sines.index_select(0, positions).unsqueeze(1) * self._scale

    def turn(self, layer: int, qkv: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """qkv [rows, (heads + 2 · kv_heads) · head_dim], fp32 or bf16 → [rows, heads + 2 · kv_heads, head_dim], fp32,
        queries and keys normalised and rotated, queries scaled. An fp32 `qkv` is changed in place."""
        spec, (cos, sin) = self.spec, at
        heads = qkv.float().view(-1, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        qk = heads[:, : spec.heads + spec.kv_heads]
        normal = self._norms[layer](qk) if self._norms else qk
        torch.addcmul(normal * cos, normal.roll(spec.head_dim // 2, -1), sin, out=qk)
        return heads


def _head_norms(spec: DecoderSpec, tensors: Mapping[str, torch.Tensor], prefix: str) -> torch.Tensor:
    query, key = (tensors[f"{prefix}{name}_norm"].float() for name in ("q", "k"))
    return torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1)))
