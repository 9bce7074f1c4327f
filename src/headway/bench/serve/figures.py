"""The arithmetic: what one answer's times say, and what many answers say together."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One finished request. Times are in seconds of one clock: `due_s` when it should be sent, `sent_s` when it was,
    `chunks_s` when each chunk with text arrived, `ended_s` the last chunk of the answer, text or not.

    `tokens` is what the server's usage counts, or where it gives none (`counted` is False) the number of chunks.
    """

    due_s: float
    sent_s: float
    chunks_s: tuple[float, ...]
    ended_s: float
    tokens: int
    prompt_tokens: int | None = None
    counted: bool = True

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token; None for an answer without text."""
        return 1e3 * (self.chunks_s[0] - self.due_s) if self.chunks_s else None

    @property
    def e2el_ms(self) -> float:
        """End-to-end latency."""
        return 1e3 * (self.ended_s - self.due_s)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first: (E2EL − TTFT)/(n − 1); None for fewer than two tokens."""
        if self.ttft_ms is None or self.tokens < 2:
            return None
        return (self.e2el_ms - self.ttft_ms) / (self.tokens - 1)

    @property
    def gaps_ms(self) -> list[float]:
        """Inter-token latencies: between a chunk with text and the next one."""
        return [1e3 * (after - before) for before, after in itertools.pairwise(self.chunks_s)]


@dataclass(frozen=True)
class Failure:
    """One request that got no whole answer, and why."""

    due_s: float
    sent_s: float
    ended_s: float
    why: str


@dataclass(frozen=True)
class Limits:
    """What a caller would call good, in ms; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    gap_ms: float | None = None
    e2el_ms: float | None = None

    def met_by(self, answer: Answer) -> bool:
        """A time that an answer does not have (one token has no TPOT, none has no TTFT) exceeds no limit."""
        gap = max(answer.gaps_ms, default=None)
        found = ((self.ttft_ms, answer.ttft_ms), (self.tpot_ms, answer.tpot_ms), (self.gap_ms, gap),
                 (self.e2el_ms, answer.e2el_ms))  # fmt: skip
        return all(limit is None or value is None or value <= limit for limit, value in found)

    @property
    def given(self) -> bool:
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.gap_ms, self.e2el_ms))


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest ranks. `values` is not empty."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summary(ends: Sequence[Answer | Failure], limits: Limits) -> dict[str, Any]:
    """One load's figures. Rates are over the time from the first request sent to the last end.

    Answers of one token, and those without text, have no TPOT: they are counted in `one_token` and `empty`. `goodput`
    counts answers that meet every limit; a failed request meets none. `late_ms` is how far behind its schedule this
    client sent a request: where that is large, the client was too slow, not the server.
    """
    answers = [end for end in ends if isinstance(end, Answer)]
    failures = [end for end in ends if isinstance(end, Failure)]
    seconds = max(end.ended_s for end in ends) - min(end.sent_s for end in ends)
    tokens = sum(answer.tokens for answer in answers)
    prompts = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    good = [answer for answer in answers if limits.met_by(answer)]
    return {
        "requests": len(ends),
        "finished": len(answers),
        "failed": len(failures),
        "errors": dict(Counter(failure.why for failure in failures).most_common(5)),
        "one_token": sum(answer.tokens == 1 for answer in answers),
        "empty": sum(not answer.chunks_s for answer in answers),
        "seconds": seconds,
        "requests_per_s": _per(len(answers), seconds),
        "output_tokens": tokens,
        "output_tok_s": _per(tokens, seconds),
        "prompt_tokens": sum(prompts) if prompts else None,
        "tokens_from": "usage" if all(answer.counted for answer in answers) else "chunks",
        "ttft_ms": spread([answer.ttft_ms for answer in answers]),
        "tpot_ms": spread([answer.tpot_ms for answer in answers]),
        "itl_ms": spread([gap for answer in answers for gap in answer.gaps_ms]),
        "e2el_ms": spread([answer.e2el_ms for answer in answers]),
        "late_ms": spread([1e3 * (end.sent_s - end.due_s) for end in ends]),
        "goodput": None
        if not limits.given
        else {
            "requests_per_s": _per(len(good), seconds),
            "output_tok_s": _per(sum(answer.tokens for answer in good), seconds),
            "share": len(good) / len(ends),
        },
    }


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, p50, p90, p99 and the largest of those that exist; None if there are none."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    return {
        "mean": sum(found) / len(found),
        "p50": percentile(found, 50),
        "p90": percentile(found, 90),
        "p99": percentile(found, 99),
        "max": max(found),
    }


def _per(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
