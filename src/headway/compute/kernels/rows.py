"""What a kernel for matrix products does to the bits of a row when the number of rows changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch

#: x [rows, in] fp32 → [rows, out], fp32 or bf16 as the kernel has it: the caller widens it where it computes with it
#: (adding it to an fp32 tensor in place needs no copy).
Product = Callable[[torch.Tensor], torch.Tensor]


class NamedProducts(Protocol):
    """A model's products by name: a mapping, or `Products`."""

    def __getitem__(self, name: str, /) -> Product: ...


#: (weight [out, in], bias [out] or None) → product. Kernels that pack keep no reference to the weight.
Pack = Callable[[torch.Tensor, torch.Tensor | None], Product]

#: Rows of a piece, where a kernel has stable bits only up to some number of rows. (oneDNN on AMX: up to 32.)
PIECE = 32
#: Larger numbers of rows that are tried to find out whether pieces are needed.
LARGER = (33, 36, 48, 64, 80, 81, 90, 96, 127, 128, 250, 256, 384, 511, 512)


class RowProbe:
    """For which numbers of rows a row has its usual bits, and so how many rows to evaluate, how many at a time.

    A probe's product has equal rows, so those of its result must be; and its terms cancel, so that the result is
    nothing but rounding error: kernels that round to bf16 at the end hide most differences of other data. The usual
    bits are the commonest of `PIECE` rows. Where the bits of larger numbers of rows differ, with no number near them
    for which they do not, rows are evaluated in pieces of `PIECE`; else numbers of rows are found out when they first
    come up.

    piece   rows of a product at most, or None where there is no such limit
    found   what was found out: whether a row has its usual bits among so many. It can be given to another probe of
            the same kernel and shapes on the same machine, which then need not find it out again
    """

    _NEAR, _MAX_OUTPUTS = 32, 1024
    _TOLD = (1, 2, 3, 4, 7, 8, 16, 31, 32, 64)

    def __init__(
        self, pack: Pack, shapes: Iterable[tuple[int, int]], found: Mapping[int, bool] | None = None
    ) -> None:
        """`shapes`: (out, in) of the products that will be asked for."""
        capped = sorted({(min(outputs, self._MAX_OUTPUTS), inputs) for outputs, inputs in shapes})
        self._cases = [_case(pack, outputs, inputs) for outputs, inputs in capped]
        self.found: dict[int, bool] = dict(found or {})
        self.piece: int | None = None
        if self._next_usual(PIECE) == PIECE and any(self._next_usual(count) is None for count in LARGER):
            self.piece = PIECE
        self.words = self._describe()

    def padded(self, count: int) -> int:
        """The next number of rows from `count` on with the usual bits; `count` itself if none is near."""
        whole, rest = divmod(count, self.piece) if self.piece else (0, count)
        if not rest:
            return count
        return whole * (self.piece or 0) + (self._next_usual(rest) or rest)

    def _next_usual(self, count: int) -> int | None:
        return next((rows for rows in range(count, count + self._NEAR) if self._usual_at(rows)), None)

    def _usual_at(self, rows: int) -> bool:
        if rows not in self.found:
            self.found[rows] = all(
                bool((product(row.expand(rows, -1).contiguous()) == usual).all())
                for product, row, usual in self._cases
            )
        return self.found[rows]

    def _describe(self) -> str:
        told = [count for count in self._TOLD if not self.piece or count <= self.piece]
        unusual = [count for count in told if not self._usual_at(count)]
        pieces = f"rows are evaluated {self.piece} at a time" if self.piece else ""
        if not unusual:
            return pieces or "a row's bits do not depend on the number of rows"
        if all(self._next_usual(count) for count in unusual):
            pads = "rows are padded to " + ", ".join(f"{self.padded(n)} for {n}" for n in unusual) + ", …"
            return "; ".join(filter(None, (pieces, pads)))
        return "a row's bits depend on the number of rows (" + ", ".join(map(str, unusual)) + ", …)"


def _case(pack: Pack, outputs: int, inputs: int) -> tuple[Product, torch.Tensor, torch.Tensor]:
    """A product of that shape, the row it is probed with, and the row's usual result."""
    half = (inputs + 1) // 2
    order = torch.randperm(2 * half, generator=torch.Generator().manual_seed(0))[:inputs]
    weight = torch.linspace(0, 999, outputs * half).sin().bfloat16().float().view(outputs, half)
    row = torch.linspace(0, 99, half).cos().bfloat16().float()
    product = pack(torch.cat((weight, -weight), 1)[:, order].contiguous(), None)
    row = torch.cat((row, row))[order].contiguous()
    results, times = torch.unique(product(_repeated(row, PIECE)), dim=0, return_counts=True)
    return product, row, results[times.argmax()]


def _repeated(row: torch.Tensor, rows: int) -> torch.Tensor:
    return row.expand(rows, -1).contiguous()


def in_pieces(product: Product, piece: int | None) -> Product:
    """`product`, of at most `piece` rows at a time."""
    if piece is None:
        return product
    return lambda x: product(x) if len(x) <= piece else torch.cat([product(part) for part in torch.split(x, piece)])
