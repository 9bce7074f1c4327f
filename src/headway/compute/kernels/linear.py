"""Matrix products y = x Wᵀ + b on weights packed once at load, by the quickest kernel that this machine has.

A kernel is *probed*: it is tried on a small product, checked against plain arithmetic, and asked for which numbers
of rows a row's result is bitwise what it is in any other company (`Products.rows`). Some libraries switch to
another order of summation for some numbers of rows; the decoder pads its rows to the next number that does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.errors import ConfigError

#: x [rows, in] fp32 → [rows, out] fp32.
Product = Callable[[torch.Tensor], torch.Tensor]
#: (weight [out, in], bias [out] or None) → product; the weight may be a view of a file and is not kept
#: (except by the two kernels that do not pack).
Pack = Callable[[torch.Tensor, torch.Tensor | None], Product]

HALF_MAX = 65504.0
_ROWS_PAST_LIMIT = 128


def _packed_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.float(), None)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    bias = None if bias is None else bias.float()
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _packed_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.bfloat16(), None)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    bias = None if bias is None else bias.bfloat16()
    return lambda x: multiply(x.bfloat16(), packed, bias, "none", [], "").float()


def _packed_half(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """bf16 values held as fp16: exact from 7.6e-6 to 65504 in magnitude, below that off by at most 3e-8."""
    low, high = torch.aminmax(weight)
    if max(-low.item(), high.item()) > HALF_MAX:
        raise ConfigError("--weights", f"a weight exceeds {HALF_MAX:.0f}, too large for this machine's bf16 kernel")
    with _quiet():
        packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
    return lambda x, multiply=torch.ops.quantized.linear_dynamic_fp16.default: multiply(x, packed)


def _plain_fp32(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    weight, bias = weight.float(), None if bias is None else bias.float()
    return lambda x: F.linear(x, weight, bias)


def _plain_bf16(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    return lambda x: F.linear(x.bfloat16(), weight, bias).float()


#: By weights format, in order of preference: (name in words, pack, quick enough for `--weights auto`).
_KERNELS: dict[str, tuple[tuple[str, Pack, bool], ...]] = {
    "fp32": (
        ("fp32, oneDNN on packed weights", _packed_fp32, True),
        ("fp32, F.linear", _plain_fp32, True),
    ),
    "bf16": (
        ("bf16, oneDNN on packed weights", _packed_bf16, True),
        ("bf16 weights held as fp16, fbgemm, fp32 arithmetic", _packed_half, True),
        ("bf16, F.linear", _plain_bf16, False),
    ),
}


@dataclass(frozen=True)
class Products:
    """The chosen kernel. `row_counts[n]` is the number of rows that n rows are padded to."""

    words: str
    pack: Pack
    row_counts: tuple[int, ...]

    def rows(self, count: int) -> int:
        """Rows to evaluate so that `count` of them have the same bits in any company."""
        return self.row_counts[count] if count < len(self.row_counts) else count


def choose_weights(weights: str) -> str:
    """`auto` resolved: bf16 where a quick bf16 kernel exists, else fp32."""
    if weights != "auto":
        if weights not in _KERNELS:
            raise ConfigError("--weights", f"{weights} is not implemented for text models; use auto, fp32 or bf16")
        return weights
    return "bf16" if any(quick and _works(pack) for _, pack, quick in _KERNELS["bf16"]) else "fp32"


def probe_products(weights: str, max_rows: int) -> Products:
    """The first kernel for `weights` (fp32 or bf16) that works here, with its row counts up to `max_rows`."""
    for words, pack, _ in _KERNELS[weights]:
        if _works(pack):
            unstable, row_counts = _probe_rows(pack, max_rows)
            return Products(f"{words}; {_describe(unstable, row_counts)}", pack, row_counts)
    raise ConfigError("--weights", f"no kernel for {weights} products works on this machine")


def _works(pack: Pack) -> bool:
    weight = torch.linspace(-1, 1, 48 * 96).sin().bfloat16().reshape(48, 96)
    x, bias = torch.linspace(-2, 2, 5 * 96).cos().reshape(5, 96), torch.linspace(0, 1, 48)
    expected = x @ weight.float().T + bias
    try:
        found = pack(weight, bias)(x)
    except (RuntimeError, NotImplementedError, AttributeError):
        return False  # the operator, or this CPU's support for it, is missing: the next kernel is tried
    return bool(((found - expected).abs() <= 0.02 * expected.abs() + 0.1).all())


def _probe_rows(pack: Pack, max_rows: int) -> tuple[list[int], tuple[int, ...]]:
    """Which numbers of rows give some row other bits than its usual ones, and what to pad each number to.

    All rows of the probe are equal, so every row of every product must be; the usual bits are the commonest.
    """
    limit = max_rows + _ROWS_PAST_LIMIT
    product = pack(torch.linspace(0, 999, 32 * 640).sin().reshape(32, 640), None)
    x = torch.linspace(0, 99, 640).cos().expand(limit, 640).contiguous()
    found, times = product(x).unique(dim=0, return_counts=True)
    usual = found[times.argmax()]
    stable = [bool((product(x[:rows]) == usual).all()) for rows in range(1, limit + 1)]
    unstable = [rows for rows, same in enumerate(stable[:max_rows], 1) if not same]
    padded, following = [0] * (limit + 1), 0
    for rows in range(limit, 0, -1):
        following = rows if stable[rows - 1] else following
        padded[rows] = following or rows
    return unstable, tuple(padded[: max_rows + 1])


def _describe(unstable: list[int], row_counts: tuple[int, ...]) -> str:
    if not unstable:
        return "a row's bits do not depend on the number of rows"
    few = ", ".join(str(rows) for rows in unstable[:6]) + (", …" if len(unstable) > 6 else "")
    if all(row_counts[rows] != rows for rows in unstable):
        return f"{few} rows are padded to the next number that keeps a row's bits"
    return f"a row's bits may change at {few} rows"


@contextmanager
def _quiet() -> Iterator[None]:
    """torch announces once that its quantised operators will move; it is pinned, and they are probed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized.*", category=UserWarning)
        yield
