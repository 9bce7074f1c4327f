"""Matrix products y = x Wᵀ + b on weights packed once at load, by the quickest kernel that this machine has.

A kernel is *probed*: it is tried on a small product, checked against plain arithmetic, and asked for which numbers
of rows a row's result is bitwise what it is in any other company. Some libraries switch to another order of
summation for some numbers of rows; the decoder pads its rows to the next number that does not (`Products.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.errors import ConfigError

#: x [rows, in] fp32 → [rows, out] fp32.
Product = Callable[[torch.Tensor], torch.Tensor]
#: (weight [out, in], bias [out] or None) → product. Kernels that pack keep no reference to the weight.
Pack = Callable[[torch.Tensor, torch.Tensor | None], Product]

HALF_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """`quick`: good enough for `--weights auto`. `serial`: packs on one thread, so several pack at once."""

    words: str
    pack: Pack
    quick: bool = True
    serial: bool = False


def _packed_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.float(), None)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _packed_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.bfloat16(), None)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    narrow = None if bias is None else bias.bfloat16()
    return lambda x: multiply(x.bfloat16(), packed, narrow, "none", [], "").float()


def _packed_half(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """bf16 values held as fp16: exact from 7.6e-6 to 65504 in magnitude, below that off by at most 3e-8."""
    low, high = torch.aminmax(weight)
    if max(-low.item(), high.item()) > HALF_MAX:
        raise ConfigError("--weights", f"bf16 is held as fp16 on this machine, and a weight exceeds {HALF_MAX:.0f}")
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: multiply(x, packed)


def _plain_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    wide = weight.float()
    return lambda x: F.linear(x, wide, bias)


def _plain_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    narrow, narrow_bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    return lambda x: F.linear(x.bfloat16(), narrow, narrow_bias).float()


#: By weights format, in order of preference.
KERNELS: dict[str, tuple[Kernel, ...]] = {
    "fp32": (
        Kernel("fp32 weights, oneDNN, packed", _packed_fp32),
        Kernel("fp32 weights, F.linear", _plain_fp32),
    ),
    "bf16": (
        Kernel("bf16 weights and inputs, oneDNN, packed", _packed_bf16),
        Kernel("bf16 weights held as fp16, fbgemm, packed, fp32 arithmetic", _packed_half, serial=True),
        Kernel("bf16 weights and inputs, F.linear", _plain_bf16, quick=False),
    ),
}


class Products:
    """A kernel that works here, and what it does to a row's bits."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._probe = RowProbe(kernel.pack)
        self.words = f"{kernel.words}; {self._probe.words}"

    def pack_all(self, weights: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]) -> dict[str, Product]:
        """Products by name. The weights may be views of a mapped file."""
        if not self._kernel.serial:
            return {name: self._kernel.pack(*pair) for name, pair in weights.items()}
        largest_first = sorted(weights, key=lambda name: -weights[name][0].numel())
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            packed = pool.map(lambda name: self._kernel.pack(*weights[name]), largest_first)
            return dict(zip(largest_first, packed, strict=True))

    def rows(self, count: int) -> int:
        """Rows to evaluate so that the bits of `count` of them depend on no one else's."""
        return self._probe.padded(count)


class RowProbe:
    """For which numbers of rows every row has its usual bits; found out when a number first comes up.

    All rows of a probe are equal, so those of its product must be. The usual bits are the commonest at 96 rows.
    """

    _INPUTS, _FURTHER = 640, 32
    _TRIED = (1, 2, 3, 4, 7, 8, 16, 31, 32, 64)

    def __init__(self, pack: Pack) -> None:
        self._product = pack(torch.linspace(0, 999, 32 * self._INPUTS).sin().view(32, -1), None)
        self._row = torch.linspace(0, 99, self._INPUTS).cos()
        results, times = self._evaluate(96).unique(dim=0, return_counts=True)
        self._usual = results[times.argmax()]
        self._padded = {0: 0}
        self.words = self._describe()

    def padded(self, count: int) -> int:
        """The next number of rows from `count` on with the usual bits; `count` itself if none is near."""
        if count not in self._padded:
            near = range(count, count + self._FURTHER)
            self._padded[count] = next((rows for rows in near if self._usual_at(rows)), count)
        return self._padded[count]

    def _evaluate(self, rows: int) -> torch.Tensor:
        return self._product(self._row.expand(rows, -1).contiguous())

    def _usual_at(self, rows: int) -> bool:
        return bool((self._evaluate(rows) == self._usual).all())

    def _describe(self) -> str:
        unusual = [rows for rows in self._TRIED if not self._usual_at(rows)]
        if not unusual:
            return "a row's bits do not depend on the number of rows"
        if all(self.padded(rows) != rows for rows in unusual):
            return "rows are padded to " + ", ".join(f"{self.padded(n)} for {n}" for n in unusual) + ", …"
        return "a row's bits depend on the number of rows (" + ", ".join(map(str, unusual)) + ", …)"


def choose_weights(weights: str) -> str:
    """`auto` resolved: bf16 where a quick bf16 kernel works, else fp32. Raises ConfigError for other formats."""
    if weights == "auto":
        return "bf16" if any(kernel.quick and _works(kernel) for kernel in KERNELS["bf16"]) else "fp32"
    if weights not in KERNELS:
        raise ConfigError("--weights", f"{weights} is not implemented for text models; use auto, fp32 or bf16")
    return weights


def probe_products(weights: str) -> Products:
    """The first kernel for `weights` (fp32 or bf16) that works here."""
    for kernel in KERNELS[weights]:
        if _works(kernel):
            return Products(kernel)
    raise ConfigError("--weights", f"no kernel for {weights} products works on this machine")


def _works(kernel: Kernel) -> bool:
    weight = torch.linspace(-1, 1, 48 * 96).sin().bfloat16().reshape(48, 96)
    x, bias = torch.linspace(-2, 2, 5 * 96).cos().reshape(5, 96), torch.linspace(0, 1, 48)
    expected = x @ weight.float().T + bias
    try:
        found = kernel.pack(weight, bias)(x)
    except (RuntimeError, AttributeError):
        return False  # the operator, or this CPU's support for it, is missing: the next kernel is tried
    return bool(((found - expected).abs() <= 0.02 * expected.abs() + 0.1).all())
