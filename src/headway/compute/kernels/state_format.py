"""How one head's key or value of one position is held: as numbers, or as small whole numbers with a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: The largest whole number; -128 is not used, so that a number and its negative are held alike.
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class StateFormat:
    """`name` as `--state` has it; `dtype` of the numbers; with `scaled`, a bf16 scale follows the head's numbers.

    A scale is the head's largest magnitude over 127, rounded up to a bf16, so that every number is at most 127
    scales; each is held as the nearest whole number of them, ties to even. (One scale for each token and head, as
    in KIVI, Liu et al. 2024, for values; here for keys too.) A head with a number that is not finite has NaN as its
    scale.
    """

    name: str
    dtype: torch.dtype
    scaled: bool = False

    def items(self, head_dim: int) -> int:
        """Items of `dtype` that a head takes."""
        return head_dim + (torch.bfloat16.itemsize // self.dtype.itemsize if self.scaled else 0)

    def head_bytes(self, head_dim: int) -> int:
        """What a head takes."""
        return self.items(head_dim) * self.dtype.itemsize

    def pack(self, heads: torch.Tensor) -> torch.Tensor:
        """[…, head_dim], fp32 → […, items], `dtype`."""
        if not self.scaled:
            return heads.to(self.dtype)
        scale = _rounded_up(heads.abs().amax(-1, keepdim=True) / _LARGEST)
        whole = (heads / scale.float()).round()
        whole = torch.where(scale > 0, whole, 0)  # a scale of zero, or of NaN
        return torch.cat((whole.to(self.dtype), scale.view(self.dtype)), -1)

    def unpack(self, held: torch.Tensor, heads: torch.Tensor) -> None:
        """Write […, items] to `heads` […, head_dim], fp32: exactly; a whole number has 7 bits, and a scale 8."""
        dim = heads.shape[-1]
        heads.copy_(held[..., :dim])
        if self.scaled:
            heads.mul_(held[..., dim:].view(torch.bfloat16))


STATE_FORMATS = {
    format.name: format
    for format in (
        StateFormat("fp32", torch.float32),
        StateFormat("bf16", torch.bfloat16),
        StateFormat("int8", torch.int8, scaled=True),
    )
}


def _rounded_up(x: torch.Tensor) -> torch.Tensor:
    """The least bf16 that is not below x ≥ 0, fp32; NaN for what is not finite."""
    bits = (x.contiguous().view(torch.int32) + 0xFFFF) >> 16
    return torch.where(x.isfinite(), bits.to(torch.int16).view(torch.bfloat16), torch.nan)
