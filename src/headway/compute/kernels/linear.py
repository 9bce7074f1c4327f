"""Matrix products y = x Wᵀ + b on weights packed once at load, by the fastest kernel that works on this machine.

A kernel is *probed*: it is tried on a small product, checked against plain arithmetic, and asked for which numbers
of rows a row's result is bitwise what it is in any other batch. Some libraries switch to another order of
summation for some numbers of rows; the decoder pads its rows to the next number that does not (`Products.rows`), and
where only few rows at a time have stable bits, products come in pieces (`rows.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.compute.kernels.int8 import packed_int8, plain_int8
from headway.compute.kernels.kept_probes import KeptProbes
from headway.compute.kernels.rows import Pack, Product, RowProbe, in_pieces
from headway.core.errors import ConfigError

HALF_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """`quick`: good enough for `--weights auto`. `serial`: packs on one thread, so several pack at once. `holds`: the
    largest magnitude that its format holds."""

    words: str
    pack: Pack
    quick: bool = True
    serial: bool = False
    holds: float = torch.finfo(torch.bfloat16).max


def _packed_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.float(), None)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _packed_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.bfloat16(), None)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    narrow = None if bias is None else bias.bfloat16()
    return lambda x: multiply(x.bfloat16(), packed, narrow, "none", [], "")


def _packed_half(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """bf16 values held as fp16: exact from 7.6e-6 to 65504 in magnitude, below that off by at most 3e-8."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: multiply(x, packed)


def _plain_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    wide = weight.float()
    return lambda x: F.linear(x, wide, bias)


def _plain_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    narrow, narrow_bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    return lambda x: F.linear(x.bfloat16(), narrow, narrow_bias)


#: By weights format, in order of preference.
KERNELS: dict[str, tuple[Kernel, ...]] = {
    "fp32": (
        Kernel("fp32 weights, oneDNN, packed", _packed_fp32, holds=math.inf),
        Kernel("fp32 weights, F.linear", _plain_fp32, holds=math.inf),
    ),
    "bf16": (
        Kernel("bf16 weights and inputs, oneDNN, packed", _packed_bf16),
        Kernel(
            "bf16 weights held as fp16, fbgemm, packed, fp32 arithmetic", _packed_half, serial=True, holds=HALF_MAX
        ),
        Kernel("bf16 weights and inputs, F.linear", _plain_bf16, quick=False),
    ),
    "int8": (
        Kernel("int8 weights and inputs, a scale for each row, oneDNN, packed", packed_int8, holds=math.inf),
        Kernel("int8 weights, fp32 arithmetic, F.linear", plain_int8, quick=False, holds=math.inf),
    ),
}
#: Formats of text models.
TEXT_FORMATS = ("fp32", "bf16", "int8", "int4")


class Products:
    """A model's products, packed for a kernel that works here; and what that kernel does to a row's bits."""

    def __init__(
        self,
        kernel: Kernel,
        weights: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]],
        probes: KeptProbes | None = None,
    ) -> None:
        """`weights`: (weight [out, in], bias [out] or None) by name. The weights may be views of a mapped file. What
        an earlier start found out of the kernel is in `probes`, and what this one does is added there."""
        shapes = {(int(pair[0].shape[0]), int(pair[0].shape[1])) for pair in weights.values()}
        probe = RowProbe(kernel.pack, shapes, probes.recall(kernel.words, shapes) if probes else None)
        if probes is not None:
            probes.keep(kernel.words, shapes, probe.found)
        self.words = f"{kernel.words}; {probe.words}"
        self._probe = probe
        self._packed = {name: in_pieces(product, probe.piece) for name, product in _pack_all(kernel, weights)}

    def __getitem__(self, name: str) -> Product:
        return self._packed[name]

    def rows(self, count: int) -> int:
        """Rows to evaluate so that the bits of `count` of them depend on no one else's."""
        return self._probe.padded(count)


def _refuse_overflow(kernel: Kernel, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Raises ConfigError for values that become infinite in the format that `kernel` holds. (A bf16 weight is one
    that bf16 holds.)"""
    for what, values in (("weight", weight if kernel.holds == HALF_MAX else None), ("bias", bias)):
        if values is None or values.numel() == 0 or kernel.holds == math.inf:
            continue
        low, high = (end.item() for end in torch.aminmax(values))
        if max(-low, high) > kernel.holds:
            many = int((values.abs() > kernel.holds).sum())
            raise ConfigError(
                "--weights",
                f"{name}.{what} has {many} values of magnitude above {kernel.holds:.6g}, up to "
                f"{max(-low, high):.6g}, which overflow here ({kernel.words}); use --weights fp32",
            )


def _pack_all(
    kernel: Kernel, weights: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]
) -> Iterator[tuple[str, Product]]:
    for name, pair in weights.items():
        _refuse_overflow(kernel, name, *pair)
    if not kernel.serial:
        yield from ((name, kernel.pack(*pair)) for name, pair in weights.items())
        return
    largest_first = sorted(weights, key=lambda name: -weights[name][0].numel())
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        packed = pool.map(lambda name: kernel.pack(*weights[name]), largest_first)
        yield from zip(largest_first, packed, strict=True)


def choose_weights(weights: str) -> str:
    """`auto` resolved: bf16 where a quick bf16 kernel works, else fp32. Raises ConfigError for other formats."""
    if weights == "auto":
        return "bf16" if any(kernel.quick and _works(kernel) for kernel in KERNELS["bf16"]) else "fp32"
    if weights not in TEXT_FORMATS:
        raise ConfigError(
            "--weights", f"{weights} is not implemented for text models; use auto, {', '.join(TEXT_FORMATS)}"
        )
    return weights


def probe_kernel(weights: str) -> Kernel:
    """The first kernel for `weights` (a key of `KERNELS`) that works here."""
    for kernel in KERNELS[weights]:
        if _works(kernel):
            return kernel
    raise ConfigError("--weights", f"no kernel for {weights} matrix products works on this machine")


def _works(kernel: Kernel) -> bool:
    weight = torch.linspace(-1, 1, 48 * 96).sin().bfloat16().reshape(48, 96)
    x, bias = torch.linspace(-2, 2, 5 * 96).cos().reshape(5, 96), torch.linspace(0, 1, 48)
    expected = x @ weight.float().T + bias
    try:
        found = kernel.pack(weight, bias)(x)
    except (RuntimeError, AttributeError):
        return False  # the operator, or this CPU's support for it, is missing: the next kernel is tried
    return bool(((found - expected).abs() <= 0.02 * expected.abs() + 0.1).all())
