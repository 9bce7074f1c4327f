"""Records and pools as the public contract shows them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from headway.core.request import Stage
from headway.core.tiers import TierLevel, TierName
from headway.core.verdict import Wait
from headway.story.reduce.record import Interval, PartRecord, Preemption, Record, SequenceRecord
from headway.story.reduce.reducer import Story
from headway.story.tell.views import (
    BlocksView,
    DeadlineView,
    DraftsView,
    HeldBlocks,
    IntervalView,
    LessSlack,
    ModelPool,
    PartView,
    PoolBlocks,
    PoolView,
    PositionsView,
    PreemptionView,
    PrefixView,
    ReloadView,
    RequestView,
    SequenceView,
    StandingWait,
    Tier,
    TokensView,
    VerdictView,
)

_WAIT_FIELDS = Wait.__struct_fields__
_MOST_LESS = 4


def request_view(story: Story, record: Record, now: int) -> RequestView:
    """`GET /v1/requests/{id}` as of `now`."""
    return request_views(story, (record,), now)[0]


def request_views(story: Story, records: Iterable[Record], now: int) -> list[RequestView]:
    """A view of each record. What concerns all live requests (who holds which block, who is queued) is counted once
    for all of them: for each it would cost a server with many blocks seconds."""
    shown, queued, slacks = list(records), story.queued(), story.slacks()
    references = {model: story.references(model) for model in {record.model for record in shown}}
    return [
        _request_view(
            record,
            now,
            references[record.model],
            bisect_left(queued.get(record.model, ()), record.order),
            slacks.get(record.model, ()),
        )
        for record in shown
    ]


def _request_view(
    record: Record, now: int, references: Counter[int], ahead: int, slacks: Sequence[tuple[int, str]]
) -> RequestView:
    return RequestView(
        id=record.id,
        pattern=record.pattern,
        model=record.model,
        stage=record.stage,
        verdict=_verdict_view(record, now, ahead),
        sequences=tuple(_sequence_view(sequence, references) for sequence in record.sequences),
        parts=tuple(map(_part_view, record.parts)),
        stages=record.stages,
        preemptions=record.preemptions,
        preempted_for=tuple(record.preempted_for),
        preempted=tuple(map(_preemption_view, record.preempted)),
        prefix=PrefixView(record.first_reused, record.miss),
        reload=_reload_view(record),
        intervals=tuple(map(_interval_view, record.life(now))),
        elapsed_ms=_ms(record.elapsed_ns(now)),
        deadline=deadline_view(record, now, slacks),
        priority=record.priority,
        max_tokens=record.max_tokens,
        prompt=record.prompt_text,
        reason=record.reason,
        message=record.message,
        dropped=record.dropped,
    )


def _reload_view(record: Record) -> ReloadView | None:
    choice = record.choice
    if choice is None:
        return None
    return ReloadView(
        reload=choice.reload,
        host=choice.host,
        disk=choice.disk,
        bandwidth=choice.bandwidth,
        break_even=choice.break_even,
        loaded=dict(record.reloaded),
    )


def _verdict_view(record: Record, now: int, ahead: int) -> VerdictView | None:
    """The verdict with what is known only when asked: who is ahead, and since when it stands."""
    verdict = record.verdict
    if not isinstance(verdict, Wait):
        return verdict
    return StandingWait(
        *(getattr(verdict, field) for field in _WAIT_FIELDS),
        ahead=ahead,
        since_step=record.since_step,
        since_ms=_ms(now - record.since_at),
    )


def pool_view(story: Story, *, blocks: bool = False) -> PoolView:
    """`GET /v1/pool`, as the newest events tell it; with `blocks` also which of them are what."""
    models = tuple(_model_pool(story, name) for name in story.models)
    if blocks:
        models = tuple(_with_blocks(story, model) if model.unit == "blocks" else model for model in models)
    if not models:
        return PoolView(0, 0, PoolBlocks(0, 0, 0, 0), (), ())
    first = next((model for model in models if model.unit == "blocks" and model.total), models[0])
    levels = PoolBlocks(first.total, first.live, first.reusable, first.free)
    reserved = sum(model.reserved_bytes for model in models)
    return PoolView(reserved, first.block_tokens, levels, _tiers(story), models)


def _tiers(story: Story) -> tuple[Tier, ...]:
    levels = [level for tiers in story.tiers.values() for level in tiers]
    names = dict.fromkeys(level.name for level in levels)
    return tuple(_tier(name, [level for level in levels if level.name == name]) for name in names)


def _tier(name: TierName, levels: list[TierLevel]) -> Tier:
    held = sum(level.blocks * level.bytes for level in levels)
    return Tier(name, sum(level.blocks for level in levels), held, sum(level.total for level in levels))


def _model_pool(story: Story, name: str) -> ModelPool:
    levels, facts = story.models[name], story.facts.get(name)
    return ModelPool(
        model=name,
        pattern=story.pattern(name),
        unit=story.unit(name),
        reserved_bytes=facts.blocks * facts.block_bytes if facts else 0,
        block_tokens=facts.block_tokens if facts else 0,
        total=facts.blocks if facts else levels.total,
        live=levels.live,
        reusable=levels.reusable,
        free=levels.free,
        seats=levels.seats_used,
    )


def _with_blocks(story: Story, pool: ModelPool) -> ModelPool:
    held = tuple(
        HeldBlocks(record.id, record.stage, tuple(tuple(sequence.blocks) for sequence in record.sequences))
        for record in story.holders(pool.model)
    )
    return msgspec.structs.replace(pool, reusable_blocks=tuple(sorted(story.reusable[pool.model])), held_blocks=held)


def deadline_view(record: Record, now: int, slacks: Sequence[tuple[int, str]] = ()) -> DeadlineView | None:
    """None without a deadline. `slacks` are as `Story.slacks` has them of its model."""
    if record.deadline_at is None:
        return None
    left = record.deadline_at - (now if record.ended_at is None else record.ended_at)
    met = (record.stage is Stage.FINISHED and left >= 0) if record.ended or left < 0 else None
    plain = DeadlineView(_ms(record.deadline_at - record.received_at), _ms(left), met, record.promised)
    forecast, slack = record.forecast, record.slack_ns
    if forecast is None or slack is None or record.ended:
        return plain
    less = slacks[: min(_MOST_LESS, bisect_left(slacks, (slack, "")))]
    return msgspec.structs.replace(
        plain,
        update_ms=_ms(forecast.step_ns),
        decode_ms=_ms(forecast.last_ns),
        slack_ms=_ms(slack),
        less=tuple(LessSlack(id, _ms(ns)) for ns, id in less),
    )


def timing(record: Record, now: int) -> str:
    """Where the time went so far, in Server-Timing syntax: `queued;dur=12.1, prefill;dur=40.2`."""
    totals: dict[str, int] = {}
    for interval in record.life(now):
        totals[interval.name] = totals.get(interval.name, 0) + interval.ns
    return ", ".join(f"{name};dur={ns / 1e6:.1f}" for name, ns in totals.items())


def _sequence_view(sequence: SequenceRecord, references: Counter[int]) -> SequenceView:
    counts = sequence.counts
    return SequenceView(
        positions=PositionsView(
            known=sequence.known,
            computed=sequence.computed,
            reused=counts.reused,
            regained=counts.regained,
            prefilled=counts.prefilled,
            decoded=counts.decoded,
            recomputed=counts.recomputed,
            rejected=counts.rejected,
            lost=counts.lost,
        ),
        blocks=BlocksView(len(sequence.blocks), sum(references[block] > 1 for block in sequence.blocks)),
        tokens=TokensView(sequence.prompt, sequence.emitted),
        drafts=DraftsView(counts.accepted, counts.rejected, tuple(sequence.pauses)),
    )


def _part_view(part: PartRecord) -> PartView:
    return PartView(part.done, part.of, part.step, part.positions)


def _preemption_view(preemption: Preemption) -> PreemptionView:
    return PreemptionView(preemption.step, preemption.by, preemption.price.recompute, preemption.price.reload)


def _interval_view(interval: Interval) -> IntervalView:
    return IntervalView(interval.name, interval.on, interval.rule, _ms(interval.ns))


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)
