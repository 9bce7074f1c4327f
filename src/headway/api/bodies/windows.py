"""From the tokens of an input to what is evaluated of it: one input, a truncated one, windows, or chunks.

All pure. An input has `limit` positions at most, special tokens included; windows get special tokens of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headway.core.plan import Evaluate
from headway.text.frame import Frame

What = Literal["whole", "truncated", "split", "late"]


@dataclass(frozen=True)
class Cut:
    """What is evaluated of one input.

    inputs    one, or a window each
    weights   tokens of each window, special tokens left out: its share of the mean
    given     tokens of the whole input as it came, special tokens included as if it had fitted
    chunks    for each vector of a late pass, which tokens of its document it is pooled from
    """

    what: What
    inputs: tuple[Evaluate, ...]
    weights: tuple[int, ...]
    given: int
    chunks: tuple[tuple[int, int], ...] = ()


def whole(tokens: Sequence[int]) -> Cut:
    """All of it, as it is."""
    return Cut("whole", (Evaluate(tuple(tokens)),), (1,), len(tokens))


def unpooled(cut: Cut) -> Cut:
    """The same with a vector of each position."""
    return replace(cut, inputs=tuple(replace(each, raw=True) for each in cut.inputs))


def truncate(tokens: Sequence[int], frame: Frame, limit: int) -> Cut:
    """Its beginning, if it is longer than fits."""
    most = limit - frame.around
    kept = whole(frame.single(tokens[:most]))
    return kept if len(tokens) <= most else Cut("truncated", kept.inputs, (1,), len(tokens) + frame.around)


def split(tokens: Sequence[int], frame: Frame, limit: int) -> Cut:
    """The fewest windows that hold it, as equal in length as they can be: equal ones are computed together, and none
    has so little context that its vector means nothing."""
    bounds = even_bounds(len(tokens), limit - frame.around)
    if len(bounds) == 1:
        return whole(frame.single(tokens))
    windows = [tokens[start:end] for start, end in bounds]
    inputs = tuple(Evaluate(frame.single(window)) for window in windows)
    return Cut("split", inputs, tuple(map(len, windows)), len(tokens) + frame.around)


def late(chunks: Sequence[Sequence[int]], frame: Frame) -> Cut:
    """One pass over all chunks of a document, and a vector pooled from each chunk's positions (late chunking, Günther
    et al. 2024). The special tokens belong to the first and the last chunk, so that a document of one chunk has the
    vector that it has as an input."""
    tokens = [token for chunk in chunks for token in chunk]
    bounds, start = [], 0
    for chunk in chunks:
        bounds.append((start, start + len(chunk)))
        start += len(chunk)
    first, last = len(frame.before), len(frame.after)
    pools = [(start + first, end + first) for start, end in bounds]
    pools[0] = (0, pools[0][1])
    pools[-1] = (pools[-1][0], len(tokens) + first + last)
    pass_of_all = Evaluate(frame.single(tokens), pools=tuple(pools))
    return Cut("late", (pass_of_all,), (1,), len(tokens) + frame.around, tuple(bounds))


def sized_chunks(tokens: Sequence[int], size: int) -> list[Sequence[int]]:
    """Chunks of `size` tokens; the last may be shorter."""
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def even_bounds(length: int, most: int) -> list[tuple[int, int]]:
    """The fewest ranges of at most `most` that cover 0 to `length`, their lengths at most 1 apart."""
    parts = max(1, -(-length // most))
    return [(length * part // parts, length * (part + 1) // parts) for part in range(parts)]
