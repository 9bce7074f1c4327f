"""What a step's spans ask of its logits, and the answers put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from headway.compute.sampling.choose import verify
from headway.core.plan import Draw, Span, SpanResult, TokenLogprob

#: Logprobs of some tokens, in order.
Logprobs = tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Rows are positions of a step, counted through all its spans.

    rows     those whose logits tokens are chosen from
    picks    every token to choose, as (index among `rows`, draw). A span with drafts has one pick per verified
             position and one after the last, each for its own position
    scored   every known token whose logprob is wanted, as (row, token, top)
    """

    rows: list[int]
    picks: list[tuple[int, Draw]]
    scored: list[tuple[int, int, int]]


def logit_rows(spans: tuple[Span, ...]) -> LogitRows:
    """All that `spans` ask, in their order."""
    rows: list[int] = []
    picks: list[tuple[int, Draw]] = []
    scored: list[tuple[int, int, int]] = []
    end = 0
    for span in spans:
        if span.score is not None:
            first, top = end + span.score.first, span.score.top
            scored += [(first + i, token, top) for i, token in enumerate(span.score.tokens)]
        end += len(span.tokens)
        if span.drafts:
            for back, draw in _verifying(span):
                picks.append((len(rows), draw))
                rows.append(end - 1 - back)
        elif span.draws:
            picks += [(len(rows), draw) for draw in span.draws]
            rows.append(end - 1)
    return LogitRows(rows, picks, scored)


def spans_of(spans: tuple[Span, ...], rows: Iterable[int]) -> tuple[int, ...]:
    """Places of the spans that `rows` belong to, each once; rows past the last span (padding) are nobody's."""
    wanted, found, end = set(rows), [], 0
    if not wanted:
        return ()
    for place, span in enumerate(spans):
        first, end = end, end + len(span.tokens)
        if any(first <= row < end for row in wanted):
            found.append(place)
    return tuple(found)


def _verifying(span: Span) -> Iterator[tuple[int, Draw]]:
    """How far back from the span's last position, and the draw there."""
    (draw,) = span.draws
    for back in range(span.drafts, -1, -1):
        known = len(span.tokens) - span.drafts
        said = span.tokens[known : len(span.tokens) - back]
        history = draw.history + said if draw.history else ()
        masks = draw.masks[len(said) : len(said) + 1]
        yield back, replace(draw, position=span.end - back, history=history, masks=masks)


def answers(
    spans: tuple[Span, ...], chosen: list[int], said: list[TokenLogprob | None], scores: Logprobs
) -> Iterator[SpanResult]:
    """The result of each span."""
    pick = scored = 0
    for span in spans:
        count = span.drafts + 1 if span.drafts else len(span.draws)
        tokens = tuple(chosen[pick : pick + count])
        if span.drafts:
            tokens = verify(tokens, span.tokens[-span.drafts :])
        logprobs = tuple(one for one in said[pick : pick + len(tokens)] if one is not None)
        asked = len(span.score.tokens) if span.score else 0
        yield SpanResult(tokens, logprobs, scores[scored : scored + asked])
        pick, scored = pick + count, scored + asked
