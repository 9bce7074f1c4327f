"""Logits before they are sampled: what a caller favours, what was said before, what must not come yet."""

from __future__ import annotations

import torch

from headway.plan import Draw


def needs_adjusting(draw: Draw) -> bool:
    """Whether `adjusted` would change anything."""
    return bool(draw.sampling.bias) or draw.sampling.remembers or _bans(draw)


def adjusted(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """One row of logits [vocab], copied and adjusted as `Sampling` says; banned tokens get -inf."""
    logits, sampling = logits.clone(), draw.sampling
    if sampling.bias:
        tokens, values = zip(*sampling.bias, strict=True)
        logits.index_add_(0, torch.tensor(tokens), torch.tensor(values, dtype=logits.dtype))
    if sampling.remembers:
        _remember(logits, draw)
    if _bans(draw):
        logits[list(draw.banned)] = -torch.inf
    return logits


def _bans(draw: Draw) -> bool:
    return bool(draw.banned) and draw.position < draw.banned_before


def _remember(logits: torch.Tensor, draw: Draw) -> None:
    """Make tokens that were seen less likely (or likelier, with penalties below their neutral values)."""
    sampling = draw.sampling
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(draw.history).unique()
        found = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(found > 0, found / penalty, found * penalty)
    said, times = torch.tensor(draw.history[draw.prompt :], dtype=torch.int64).unique(return_counts=True)
    logits[said] -= sampling.presence_penalty + sampling.frequency_penalty * times
