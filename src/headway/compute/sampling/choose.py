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
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numpy.random import Philox

from headway.compute.sampling.processors import adjusted, needs_adjusting
from headway.core.plan import Draw, Sampling

#: [vocab]
Row: TypeAlias = npt.NDArray[np.float32]
_WORD = (1 << 64) - 1
#: Tokens that are looked at before a full sort, for top-p.
_NUCLEUS = 512
#: Weights that are summed together before the place of a number among them is looked for.
_SUMMED = 256
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
    return _invert(_weights(logits.numpy(), draw.sampling), number)


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
    return torch.from_numpy(_weights(logits.numpy(), sampling))


def _weights(logits: Row, sampling: Sampling) -> Row:
    """The same by numpy: torch shares a row among threads, which then keep processors from whoever needs them, and
    that takes longer than the row by one thread."""
    with np.errstate(all="ignore"):  # where logits are no numbers, it ends one request, and no other
        scaled = logits - logits.max()
        scaled /= np.float32(max(sampling.temperature, _COLDEST))
        if sampling.min_p > 0:
            scaled[scaled < np.float32(math.log(sampling.min_p))] = -np.inf
        if 0 < sampling.top_k < scaled.size:
            scaled[scaled < _largest(scaled, sampling.top_k)[-1]] = -np.inf
        weights: Row = np.exp(scaled, out=scaled)
    if sampling.top_p >= 1:
        return weights
    likely = weights[weights != 0]
    wanted = sampling.top_p * float(likely.sum(dtype=np.float64))
    for count in (min(_NUCLEUS, likely.size), likely.size):
        best = _largest(likely, count).astype(np.float64)
        mass = best.cumsum()
        if count == likely.size or mass[-1] >= wanted:
            break
    last = int((mass - best < wanted).sum()) - 1
    weights[weights < float(best[max(last, 0)])] = 0
    return weights


def _largest(values: Row, count: int) -> Row:
    """The `count` largest of `values` [vocab], falling. Numpy's sort and selection are vectorised: a row of 49,152 is
    sorted in a tenth of a millisecond, and by torch in three."""
    chosen = np.partition(values, values.size - count)[values.size - count :] if count < values.size else values
    return np.sort(chosen)[::-1]


def _invert(weights: Row, number: float) -> int:
    """The first token whose cumulative weight exceeds `number` of the total; never one of weight 0. Where weights
    are no numbers it is some token, so that a request whose logits overflowed harms nobody else."""
    whole = weights.size // _SUMMED * _SUMMED
    sums = [
        np.add.reduce(weights[:whole].reshape(-1, _SUMMED), axis=1),
        np.add.reduce(weights[whole:], keepdims=True),
    ]
    cumulative = np.concatenate(sums).cumsum(dtype=np.float64)
    sought = cumulative[-1] * number
    place = min(int(cumulative.searchsorted(sought, side="right")), len(cumulative) - 1)
    before = cumulative[place - 1] if place else 0.0
    part = weights[place * _SUMMED : (place + 1) * _SUMMED]
    found = int(part.cumsum(dtype=np.float64).searchsorted(sought - before, side="right"))
    if found < part.size:
        return place * _SUMMED + found
    known = np.flatnonzero(weights[: (place + 1) * _SUMMED])  # rounding put the sum a little above that of its parts
    return int(known[-1]) if known.size else weights.size - 1
