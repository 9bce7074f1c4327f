"""What is reported about tokens: how likely the model itself holds them."""

from __future__ import annotations

import torch

from headway.core.plan import TokenLogprob


def report(logits: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """About `token`, and the `top` likeliest tokens, by one row of logits [vocab]. A row at a time, so that the
    numbers do not depend on how many are reported in a step."""
    logprobs = torch.log_softmax(logits, -1)
    values, tokens = logprobs.topk(min(top, len(logprobs)))
    likeliest = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    rank = int((logits > logits[token]).sum()) + 1
    return TokenLogprob(token, float(logprobs[token]), likeliest, rank)
