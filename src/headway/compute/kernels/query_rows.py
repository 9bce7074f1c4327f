"""How many query rows attention puts into one matrix, so that a row's bits depend on no other row.

The library's batched products evaluate some rows of a matrix by another kernel than the rest: with AVX-512 those of
matrices of very few rows, with AVX2 those left over when rows are taken six at a time, and some rows of large
matrices, or of a single one that several threads share, at some lengths. Which ones is found out by trying at load.
Where large matrices cannot be trusted, they are cut into pieces, and keys into tiles of `KEY_TILE`: then every shape
that comes up has been tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

#: Keys that are scored together where matrices are cut into pieces.
KEY_TILE = 128
#: Where no more than this many rows are needed for the usual bits, fewer are padded to that.
FEW = 16
#: Numbers of rows that are tried to find out whether that is so for all larger ones.
LARGER = (24, 33, 48, 63, 64, 96, 128, 192, 384)
#: Where it is not: the numbers of rows to choose from.
SMALLER = (*range(1, 25), 32, 36, 40, 48)
#: (length, positions of it that are visible): the same positions with more and with less padding.
_TRIED = ((64, 60), (128, 60), (192, 190), (320, 190), (512, 190))

#: The scores of queries [matrices, rows, dim] and keys [matrices, length, dim], and what their weights make of values
#: that are the keys, with `visible` positions seen; in tiles of keys, or all at once.
Attend = Callable[[torch.Tensor, torch.Tensor, int, bool], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class QueryRows:
    """counts   numbers of rows of a matrix with the usual bits, ascending; from the last on all, unless `pieces`
    pieces   no matrix has more rows than the last of `counts`: larger ones are cut
    words    the same for people"""

    counts: tuple[int, ...]
    pieces: bool
    words: str

    def cut(self, count: int) -> tuple[int, int]:
        """(matrices, rows of each) for `count` rows."""
        most = self.counts[-1]
        if count >= most:
            return (-(-count // most), most) if self.pieces else (1, count)
        return 1, self.counts[bisect_left(self.counts, count)]


def probe(attend: Attend, dim: int, kv_heads: int) -> QueryRows:
    """By equal rows: whatever their number, the number of matrices and the length, results must be equal."""
    trial = _Trial(attend, dim, sorted({kv_heads, max(kv_heads, min(3 * kv_heads, 8))}), tiled=False)
    least = max((count for count in range(1, FEW + 2) if not trial.usual(count)), default=0) + 1
    if least <= FEW and all(trial.usual(count) for count in LARGER):
        return QueryRows((least,), False, f"at least {least} rows; a row's bits do not depend on their number")
    trial = _Trial(attend, dim, [kv_heads * tiles for tiles in (1, 2, 3, 5)], tiled=True)
    counts = tuple(count for count in SMALLER if trial.usual(count))
    if not counts:
        return QueryRows((1,), False, "any number of rows; a row's bits may depend on it")
    told = ", ".join(map(str, counts[:4])) + (", …" if len(counts) > 4 else "")
    words = f"{told} rows, {counts[-1]} at most; a row's bits do not depend on which"
    return QueryRows(counts, True, words)


class _Trial:
    """One row of queries, repeated, against one set of keys; the usual results are the commonest of 48 rows."""

    _ROWS = 48

    def __init__(self, attend: Attend, dim: int, matrices: Sequence[int], *, tiled: bool) -> None:
        """`matrices`: how many to try at a time."""
        self._attend, self._matrices, self._tiled = attend, matrices, tiled
        length = max(length for length, _ in _TRIED)
        self._keys = torch.linspace(0, 997, length * dim).sin().view(1, length, dim)
        self._row = torch.linspace(0, 991, dim).cos().view(1, 1, dim) * dim**-0.5
        self._expected: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for visible in {visible for _, visible in _TRIED}:
            scores, out = self._run(1, self._ROWS, length, visible)
            self._expected[visible] = _commonest(scores), _commonest(out)

    def usual(self, rows: int) -> bool:
        """Whether each of `rows` rows has its usual bits."""
        return all(
            bool((scores == self._expected[visible][0][: scores.shape[-1]]).all())
            and bool((out == self._expected[visible][1]).all())
            for scores, out, visible in self._results(rows)
        )

    def _results(self, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        for count in self._matrices:
            for length, visible in _TRIED:
                yield *self._run(count, rows, length, visible), visible

    def _run(self, matrices: int, rows: int, length: int, visible: int) -> tuple[torch.Tensor, torch.Tensor]:
        queries = self._row.expand(matrices, rows, -1).contiguous()
        keys = self._keys[:, :length].expand(matrices, -1, -1).contiguous()
        return self._attend(queries, keys, visible, self._tiled)


def _commonest(results: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor
    rows, times = torch.unique(results.flatten(0, 1), dim=0, return_counts=True)
    return rows[times.argmax()]
