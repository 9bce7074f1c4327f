"""Logits before they are sampled: what a caller favours, what was said before, what must not come yet."""

from __future__ import annotations

import numpy as np
import torch

from headway.core.plan import Draw


def needs_adjusting(draw: Draw) -> bool:
    """Whether `adjusted` would change anything."""
    return bool(draw.sampling.bias or draw.masks) or draw.sampling.remembers or _bans(draw)


def adjusted(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """One row of logits [vocab], copied and adjusted as `Sampling` says; banned tokens, and those that the mask
    leaves out, get -inf. Where the mask allows banned tokens only, they may come: a grammar's end is its end."""
    logits, sampling = logits.clone(), draw.sampling
    if sampling.bias:
        tokens, values = zip(*sampling.bias, strict=True)
        logits.index_add_(0, torch.tensor(tokens), torch.tensor(values, dtype=logits.dtype))
    if sampling.remembers:
        _remember(logits, draw)
    allowed = _allowed(draw, len(logits))
    if allowed is not None:
        logits.masked_fill_(allowed.logical_not_(), -torch.inf)
    return logits


def _allowed(draw: Draw, vocab: int) -> torch.Tensor | None:
    """Which tokens may be chosen: [vocab], bool. None: all."""
    if not draw.masks and not _bans(draw):
        return None
    if draw.masks:
        bits = np.unpackbits(np.frombuffer(draw.masks[0], dtype=np.uint8), count=vocab, bitorder="little")
        within = torch.from_numpy(bits.view(np.bool_))
    else:
        within = torch.ones(vocab, dtype=torch.bool)
    if not _bans(draw):
        return within
    unbanned = within.clone()
    unbanned[list(draw.banned)] = False
    return unbanned if unbanned.any() else within


def _bans(draw: Draw) -> bool:
    return bool(draw.banned) and draw.position < draw.banned_before


def _remember(logits: torch.Tensor, draw: Draw) -> None:
    """Make tokens that were seen less likely (or likelier, with penalties below their neutral values)."""
    sampling = draw.sampling
    if sampling.repetition_penalty != 1:
        seen = torch.unique(torch.tensor(draw.history))
        found = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(found > 0, found / penalty, found * penalty)
    said, times = torch.unique(torch.tensor(draw.history[draw.prompt :], dtype=torch.int64), return_counts=True)
    logits[said] -= sampling.presence_penalty + sampling.frequency_penalty * times
