"""Which format a text model's weights are in, where none is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from headway.compute.int8_trial import FASTER, Choice, KeptTrials, Numbers, Trial, faster
from headway.compute.kernels.linear import choose_weights as plain_format
from headway.core.plan import Span

#: The most that int8 may move a token's probabilities, in nats: the Kullback-Leibler divergence from those of the
#: format that would be taken otherwise, mean over the positions of a text. It stands for 1% of perplexity: of
#: smollm2-135m it is 0.008 where perplexity on 49,664 tokens of prose is 0.7% higher, and 0.033 where that on
#: 10,240 is 3.3% higher (one scale for all inputs of a row). Perplexity itself says less at this length: over texts
#: of 384 tokens its rise has a standard deviation of 0.8%, the divergence one of 0.04%.
MOST_DIVERGENCE = 0.015
#: Tokens of the text that are read, at most; of fewer nothing is concluded.
MOST_TOKENS, LEAST_TOKENS = 512, 64
#: A model whose loss is not this much below that of a guess among all tokens says nothing of the text, so rounding
#: cannot make it say less: weights that were never trained.
KNOWS_NATS = 1.0
_BLOCK_TOKENS, _CHUNK = 16, 64
#: Blocks of state that a trial needs.
TRIAL_BLOCKS = MOST_TOKENS // _BLOCK_TOKENS


class Reads(Protocol):
    """A model loaded in one format, with `TRIAL_BLOCKS` blocks of `_BLOCK_TOKENS` positions."""

    def logits(self, spans: tuple[Span, ...], rows: list[int]) -> torch.Tensor: ...


def choose_weights(
    weights: str,
    native: str,
    trial: Trial | None,
    kept: KeptTrials,
    load: Callable[[str], Reads],
    *,
    vocab: int,
    longest: int,
) -> Choice:
    """`auto` resolved: int8 where the native kernels make that faster and it costs this model little, else what
    `kernels/linear.py` says; another format as it is. `load` brings the model in a format to where it reads. Raises
    ConfigError for a format not implemented."""
    other = plain_format(weights)
    if weights != "auto":
        return Choice(other)
    kernels = faster(native)
    if kernels is None:
        return Choice(other, f"auto: int8 is faster only with native kernels for {' or '.join(FASTER.values())}")
    if trial is None:
        return Choice(other, "auto: there is no text to measure int8 on")

    def measure() -> Numbers:
        (tokens,) = trial.read()
        return _measure(tokens[: min(MOST_TOKENS, longest)], vocab, other, load)

    found = kept.measured(kernels, other, trial, measure)
    return _judged(found, vocab, kernels[1], other)


def _measure(tokens: Sequence[int], vocab: int, other: str, load: Callable[[str], Reads]) -> Numbers:
    """How many tokens were read, the loss in `other`, that in int8, and the divergence, mean nats; only the first
    ones, as far as the rest would say nothing."""
    if len(tokens) < LEAST_TOKENS or max(tokens) >= vocab:
        return (0.0,)
    count, following = float(len(tokens) - 1), torch.tensor(tokens[1:])
    expected = _log_probabilities(load(other), tokens)
    loss = F.nll_loss(expected, following).item()
    if not loss < math.log(vocab) - KNOWS_NATS:
        return (count, min(loss, 1e9))
    found = _log_probabilities(load("int8"), tokens)
    divergence = F.kl_div(found, expected, reduction="batchmean", log_target=True).item()
    numbers = (count, loss, F.nll_loss(found, following).item(), divergence)
    return numbers if all(map(math.isfinite, numbers)) else (count, loss)


def _log_probabilities(model: Reads, tokens: Sequence[int]) -> torch.Tensor:
    """Of the token after each but the last: [len(tokens) - 1, vocab]."""
    blocks = tuple(range(TRIAL_BLOCKS))
    parts = []
    for start in range(0, len(tokens) - 1, _CHUNK):
        part = tuple(tokens[start : min(start + _CHUNK, len(tokens) - 1)])
        parts.append(model.logits((Span(start, part, blocks),), list(range(len(part)))).log_softmax(-1))
    return torch.cat(parts)


def _judged(found: Numbers, vocab: int, dots: str, other: str) -> Choice:
    """What was measured, as a choice."""
    match found:
        case (count, loss, rounded, divergence):
            costs = (
                f"a divergence of {divergence:.3f} nats from {other} (at most {MOST_DIVERGENCE}) and perplexity "
                f"{math.exp(rounded - loss) - 1:+.1%} on {count:.0f} tokens"
            )
            if divergence <= MOST_DIVERGENCE:
                return Choice("int8", f"auto: {FASTER[dots]}; {costs}")
            return Choice(other, f"auto: int8 would cost too much: {costs}")
        case (count, loss):
            perplexity = math.exp(min(loss, 700))
            says = f"its perplexity on {count:.0f} tokens is {perplexity:.3g}, of a vocabulary of {vocab}"
            return Choice(other, f"auto: what int8 costs cannot be measured: {says}")
    return Choice(other, "auto: what int8 costs cannot be measured: its tokens are not those of a text")
