"""From logits to tokens.

Random numbers come from a counter (Philox, Salmon et al. 2011), keyed by (seed, sequence index) and counted by
position: one uniform number per token, whatever else happens in the step.

Drafts are verified by the very draw that would have been made without them: the token of each verified position is
chosen from its logits and its own uniform, and a draft is accepted while it equals that token. A proposal that puts
all its weight on one token d is thus accepted with probability p(d), and otherwise replaced by a token from p
without d, renormalised: this is the rejection sampling of Leviathan et al. 2023, exactly, with the further property
that the answer does not depend on whether drafts were tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Philox

from headway.compute.sampling.processors import adjusted, needs_adjusting
from headway.core.plan import Draw, Sampling

_WORD = (1 << 64) - 1
#: Tokens that are looked at before a full sort, for top-p.
_NUCLEUS = 512
#: Logits divided by less could overflow. Long before that the likeliest token has all the probability.
_COLDEST = 1e-30


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    key = np.array([seed & _WORD, index & _WORD], dtype=np.uint64)
    raw = Philox(key=key, counter=np.array([0, position, 0, 0], dtype=np.uint64)).random_raw()
    return (int(raw) >> 12) * 2.0**-52


def choose(
    logits: torch.Tensor, picks: Sequence[tuple[int, Draw]], largest: Sequence[int] | None = None
) -> list[int]:
    """One token per pick: a row of `logits` [rows, vocab], and the draw that says how. `largest` is the first place
    of the largest of each row, where that is known."""
    if not picks:
        return []
    plain = [not needs_adjusting(draw) for _, draw in picks]
    greedy = [by and draw.sampling.temperature <= 0 for by, (_, draw) in zip(plain, picks, strict=True)]
    if largest is None:
        largest = logits.numpy().argmax(-1).tolist() if any(greedy) else ()  # torch's takes six times as long
    return [
        largest[row] if first else _sample(logits[row] if untouched else adjusted(logits[row], draw), draw)
        for first, untouched, (row, draw) in zip(greedy, plain, picks, strict=True)
    ]


def _sample(logits: torch.Tensor, draw: Draw) -> int:
    if draw.sampling.temperature <= 0:
        return int(logits.argmax())
    number = uniform(draw.sampling.seed, draw.index, draw.position)
    return _invert(distribution(logits, draw.sampling), number)


def verify(chosen: Sequence[int], drafts: Sequence[int]) -> tuple[int, ...]:
    """The accepted drafts and one more token, given the tokens chosen at each verified position and after."""
    accepted = 0
    while accepted < len(drafts) and chosen[accepted] == drafts[accepted]:
        accepted += 1
    return tuple(chosen[: accepted + 1])


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What a token is drawn from: [vocab], fp32, not normalised.

    Temperature first, then `min_p`, then `top_k`, then the smallest set of tokens with at least `top_p` of what is
    left (Holtzman et al. 2020). Tokens that tie with the last one kept are kept too. `temperature` must be above 0.
    """
    scaled = logits / max(sampling.temperature, _COLDEST)
    if sampling.min_p > 0:
        scaled = scaled.masked_fill(scaled < scaled.max() + math.log(sampling.min_p), -torch.inf)
    if 0 < sampling.top_k < scaled.numel():
        scaled = scaled.masked_fill(scaled < _largest(scaled, sampling.top_k)[-1], -torch.inf)
    weights = torch.softmax(scaled, -1)
    if sampling.top_p >= 1:
        return weights
    likely = weights[weights != 0]
    for count in (min(_NUCLEUS, likely.numel()), likely.numel()):
        best = _largest(likely, count).astype(np.float64)
        mass = best.cumsum()
        if count == likely.numel() or mass[-1] >= sampling.top_p:
            break
    last = int((mass - best < sampling.top_p).sum()) - 1
    return weights.masked_fill(weights < float(best[max(last, 0)]), 0)


def _largest(values: torch.Tensor, count: int) -> np.ndarray:
    """The `count` largest of `values` [vocab], falling. By numpy, whose sort and selection are vectorised: a row of
    49,152 is sorted in a tenth of a millisecond, and by torch in three."""
    row = values.numpy()
    chosen = np.partition(row, row.size - count)[row.size - count :] if count < row.size else row
    return np.sort(chosen)[::-1]


def _invert(weights: torch.Tensor, number: float) -> int:
    """The first token whose cumulative weight exceeds `number` of the total; never one of weight 0. Where weights
    are no numbers it is some token, so that a request whose logits overflowed harms nobody else."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    found = int(torch.searchsorted(cumulative, cumulative[-1] * number, right=True))
    return min(found, len(weights) - 1)
