"""Attention of whole inputs, each of whose positions sees all others, or those within a window; nothing is kept.

Inputs lie one after another, those of equal length together, so that each length is one call of the library and no
position is ever computed for padding. The library's kernel is the one of Dao et al. 2022: scores of a block of
queries at a time. It works on one input and head at a time, so a row's numbers do not depend on other inputs.

Where products are rounded to bf16 or int8 anyway, long inputs have scores and weights in bf16, with sums and softmax
in fp32: on processors that multiply bf16 that is up to twice as quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.compute.kernels.attention import Scratch

#: Queries that are scored together where each sees a window of keys only.
WINDOW_TILE = 256
#: Lengths at which bf16 is quicker, converted as it must be, and one head's scores are few. (A matter of the length
#: alone: what becomes of an input must not depend on how many others are as long.)
NARROW_FROM, NARROW_TO = 96, 724
#: Scores that exist at a time in bf16.
NARROW_SCORES = 1 << 19


@dataclass(frozen=True, slots=True)
class Group:
    """`inputs` inputs of `length` positions each, from row `first` of the step on."""

    first: int
    inputs: int
    length: int

    @property
    def end(self) -> int:
        return self.first + self.inputs * self.length


class FullAttention:
    """One step's attention, for every layer."""

    def __init__(
        self,
        groups: Sequence[Group],
        rows: int,
        heads: int,
        bias: torch.Tensor | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """`rows`: of the step, padding included. `bias` [heads, 2 · longest - 1]: what is added to the scores by
        distance (key - query), the middle one being distance 0. With `scratch`, bf16 where that is quicker."""
        self._scratch = scratch if bias is None else None
        self._groups, self._heads = groups, heads
        self._padding = rows - (groups[-1].end if groups else 0)
        self._bias = [None if bias is None else _by_distance(bias, group.length) for group in groups]

    def __call__(self, qkv: torch.Tensor, window: int = 0) -> torch.Tensor:
        """[rows, hidden] of `qkv` [rows, 3 · hidden]: queries, keys and values side by side, heads within them.
        With `window`, a position sees those at most so far away. Rows of padding come out as zeros."""
        hidden = qkv.shape[1] // 3
        found = []
        for group, bias in zip(self._groups, self._bias, strict=True):
            part = qkv[group.first : group.end].view(group.inputs, group.length, 3, self._heads, -1)
            query, key, value = part.permute(2, 0, 3, 1, 4).unbind(0)
            if window and group.length > window + 1:
                out = self._windowed(query, key, value, window)
            elif self._scratch is not None and NARROW_FROM <= group.length <= NARROW_TO:
                out = _narrow(part, self._scratch)
            else:
                out = F.scaled_dot_product_attention(query, key, value, bias)
            found.append(out.transpose(1, 2).reshape(-1, hidden))
        if self._padding:
            found.append(qkv.new_zeros(self._padding, hidden))
        return found[0] if len(found) == 1 else torch.cat(found)

    def first(self, qkv: torch.Tensor, rows: int, window: int = 0) -> torch.Tensor:
        """As calling it, for each input's first position only: [rows, hidden], in the inputs' order, zeros behind."""
        hidden = qkv.shape[1] // 3
        found = []
        for group, bias in zip(self._groups, self._bias, strict=True):
            part = qkv[group.first : group.end].view(group.inputs, group.length, 3, self._heads, -1)
            query, key, value = part[:, : window + 1 if window else None].permute(2, 0, 3, 1, 4).unbind(0)
            own = None if bias is None else bias[:, :, :1]
            found.append(F.scaled_dot_product_attention(query[:, :, :1], key, value, own).reshape(-1, hidden))
        found.append(qkv.new_zeros(rows - sum(group.inputs for group in self._groups), hidden))
        return torch.cat(found)

    def _windowed(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> torch.Tensor:
        """Tiles of queries against the keys that any of them sees: work grows with the length, not its square."""
        length = query.shape[2]
        out = []
        for start in range(0, length, WINDOW_TILE):
            end = min(start + WINDOW_TILE, length)
            first, last = max(start - window, 0), min(end + window, length)
            mask = _window(end - start, last - first, start - first, window)
            out.append(
                F.scaled_dot_product_attention(
                    query[:, :, start:end], key[:, :, first:last], value[:, :, first:last], mask
                )
            )
        return out[0] if len(out) == 1 else torch.cat(out, 2)


def _window(queries: int, keys: int, ahead: int, window: int) -> torch.Tensor:
    """Which of `keys` each of `queries` sees, the first query being at key `ahead`: [queries, keys]."""
    distance = torch.arange(keys) - (torch.arange(queries) + ahead).unsqueeze(1)
    return distance.abs() <= window


def _narrow(qkv: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """Of `qkv` [inputs, length, 3, heads, head_dim], in bf16, a few heads at a time, fp32 again and laid out as the
    library's kernel does it: [inputs, heads, length, head_dim]."""
    inputs, length, _, heads, size = qkv.shape
    matrices, many = inputs * heads, min(inputs * heads, NARROW_SCORES // length**2)
    shapes = (
        ((3, inputs, heads, length, size), torch.bfloat16),
        ((matrices, length, size), torch.bfloat16),
        ((many, length, length), torch.bfloat16),
        ((many, length, length), torch.float32),
    )
    packed, out, narrow, wide = scratch.carve(shapes)
    packed.copy_(qkv.permute(2, 0, 3, 1, 4))
    queries, keys, values = packed.view(3, matrices, length, size).unbind(0)
    queries *= size**-0.5
    for first in range(0, matrices, many):
        part = slice(first, min(first + many, matrices))
        scores, weights = narrow[: part.stop - first], wide[: part.stop - first]
        torch.bmm(queries[part], keys[part].transpose(1, 2), out=scores)
        weights.copy_(scores)
        torch.softmax(weights, -1, out=weights)
        torch.bmm(scores.copy_(weights), values[part], out=out[part])
    found = torch.empty(inputs, length, heads, size)
    return found.copy_(out.view(inputs, heads, length, size).transpose(1, 2)).transpose(1, 2)


def _by_distance(bias: torch.Tensor, length: int) -> torch.Tensor:
    """[1, heads, length, length]: the bias of each pair of positions."""
    middle = bias.shape[1] // 2
    index = torch.arange(length) - torch.arange(length).unsqueeze(1) + middle
    return bias[:, index].unsqueeze(0)
