"""A record as the public contract shows it, and as plain sentences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headway.core.verdict import Wait
from headway.story.reduce.record import PartRecord, Record, SequenceRecord
from headway.story.reduce.reducer import Story


def request_view(story: Story, record: Record, now: int) -> dict[str, Any]:
    """`GET /v1/requests/{id}`: plain data, ready for JSON. Times in milliseconds with six decimals."""
    return request_views(story, (record,), now)[0]


def request_views(story: Story, records: Iterable[Record], now: int) -> list[dict[str, Any]]:
    """A view of each record. What concerns all live requests (who holds which block, who is queued) is counted once
    for all of them: for each it would cost a server with many blocks seconds."""
    references, queued = story.references(), sorted(story.queued())
    return [_request_view(record, now, references, bisect_left(queued, record.order)) for record in records]


def _request_view(record: Record, now: int, references: Mapping[int, int], ahead: int) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": record.id,
        "pattern": record.pattern,
        "stage": str(record.stage),
        "verdict": _verdict_view(record, now, ahead),
        "sequences": [_sequence_view(sequence, references) for sequence in record.sequences],
        **({"parts": [_part_view(part) for part in record.parts]} if record.parts else {}),
        **({"stages": list(record.stages)} if record.stages else {}),
        "preemptions": record.preemptions,
        "preempted_for": list(record.preempted_for),
        "prefix": {"reused": record.first_reused, "miss": msgspec.to_builtins(record.miss)},
        "intervals": [_interval_view(i.name, i.on, i.rule, i.ns) for i in record.life(now)],
        "elapsed_ms": _ms(record.elapsed_ns(now)),
        "priority": record.priority,
        "max_tokens": record.max_tokens,
    }
    if record.prompt_text is not None:
        view["prompt"] = record.prompt_text
    if record.reason is not None:
        view["reason"] = record.reason
    if record.message is not None:
        view["message"] = record.message
    if record.dropped is not None:
        view["dropped"] = record.dropped
    return view


def verdict_view(story: Story, record: Record, now: int) -> dict[str, Any] | None:
    """The verdict with what is known only when asked: who is ahead, and since when it stands."""
    return _verdict_view(record, now, story.ahead(record))


def _verdict_view(record: Record, now: int, ahead: int) -> dict[str, Any] | None:
    if record.verdict is None:
        return None
    view: dict[str, Any] = msgspec.to_builtins(record.verdict)
    if isinstance(record.verdict, Wait):
        view |= {
            "ahead": ahead,
            "since_step": record.since_step,
            "since_ms": _ms(now - record.since_at),
        }
    return view


def timing(record: Record, now: int) -> str:
    """Where the time went so far, in Server-Timing syntax: `queued;dur=12.1, prefill;dur=40.2`."""
    totals: dict[str, int] = {}
    for interval in record.life(now):
        totals[interval.name] = totals.get(interval.name, 0) + interval.ns
    return ", ".join(f"{name};dur={ns / 1e6:.1f}" for name, ns in totals.items())


def _sequence_view(sequence: SequenceRecord, references: Mapping[int, int]) -> dict[str, Any]:
    counts = sequence.counts
    return {
        "positions": {
            "known": sequence.known,
            "computed": sequence.computed,
            "reused": counts.reused,
            "regained": counts.regained,
            "prefilled": counts.prefilled,
            "decoded": counts.decoded,
            "recomputed": counts.recomputed,
            "rejected": counts.rejected,
            "lost": counts.lost,
        },
        "blocks": {
            "held": len(sequence.blocks),
            "shared": sum(references[block] > 1 for block in sequence.blocks),
        },
        "tokens": {"prompt": sequence.prompt, "emitted": sequence.emitted},
        "drafts": {
            "accepted": counts.accepted,
            "rejected": counts.rejected,
            "pauses": msgspec.to_builtins(sequence.pauses),
        },
    }


def _part_view(part: PartRecord) -> dict[str, Any]:
    """Positions only where the model evaluates positions."""
    view = {"done": part.done, "of": part.of, "step": part.step}
    return view if part.positions is None else {**view, "positions": part.positions}


def _interval_view(name: str, on: str | None, rule: str | None, ns: int) -> dict[str, Any]:
    if on is None:
        return {"name": name, "ms": _ms(ns)}
    return {"name": name, "on": on, "rule": rule, "ms": _ms(ns)}


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)
