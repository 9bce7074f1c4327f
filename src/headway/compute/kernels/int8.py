"""Matrix products of int8 weights and int8 inputs: y = s_x · s_w · (x_q W_qᵀ) + b.

Weights are rounded once, with a scale for each output (its largest magnitude becomes 127); inputs as they come, with
a scale for each row (Dettmers et al. 2022, "vector-wise"), so that a row's numbers depend on no other row. Sums of
integers are exact, whatever their order.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from headway.compute.kernels.rows import Product

#: The library's kernel takes unsigned inputs: this is its zero.
_ZERO = 128
#: A row of nothing but zeros has some scale, too.
_LEAST = 1e-30


def packed_int8(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """On oneDNN's packed int8 kernel."""
    rounded, scales = quantised(weight.float())
    packed = torch.ops.onednn.qlinear_prepack.default(rounded, None)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    multiply = torch.ops.onednn.qlinear_pointwise.default
    offset = torch.zeros(()) if bias is None else bias.float()
    scales = scales.flatten()

    def product(x: torch.Tensor) -> torch.Tensor:
        whole, row_scales = quantised(x)
        unsigned = whole.view(torch.uint8).bitwise_xor_(_ZERO)  # adds 128 to a number in two's complement
        sums = multiply(unsigned, 1.0, _ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return torch.addcmul(offset, sums, row_scales, out=sums)

    return product


def plain_int8(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Where no kernel for integers is right: the rounded weights widened again, in fp32 arithmetic."""
    rounded, scales = quantised(weight.float())
    wide = rounded.float().mul_(scales)
    return lambda x: F.linear(x, wide, bias)


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers [rows, size] from -127 to 127, int8, and the scale of each row [rows, 1]. What is not finite
    makes its whole row so: the scale says it."""
    scales = x.abs().amax(1, keepdim=True).mul_(1 / 127).clamp_min_(_LEAST)
    return torch.div(x, scales).round_().to(torch.int8), scales
