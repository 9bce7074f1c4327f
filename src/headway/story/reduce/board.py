"""The board: what goes on now, in numbers, folded from events alone. `headway top` draws it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice

import msgspec

from headway.core import events as ev
from headway.core.request import Stage
from headway.core.verdict import ONS, On, Wait
from headway.story.reduce.record import Record
from headway.story.reduce.reducer import NO_LEVELS, Story
from headway.story.reduce.steps import StepRecord, Steps
from headway.story.tell.alarms import brief as loop_words
from headway.story.tell.alarms import no_progress
from headway.story.tell.boardview import (
    BoardView,
    EventNumbers,
    LoopShown,
    ModelShown,
    Owner,
    PoolShown,
    Rates,
    RequestShown,
    SeatsShown,
    Stages,
    StepShown,
)
from headway.story.tell.explain import request_views
from headway.story.tell.sentences import brief
from headway.story.tell.views import PoolBlocks

#: Rates are means over so much of the recent past.
RATE_OVER_S = 5.0
_KEPT_STEPS = 4096
COUNTERS = (
    "preemptions", "evicted_blocks", "recomputed_positions", "drafts_accepted", "drafts_rejected", "slow_readers",
    "finished", "cancelled", "failed", "refused", "offloaded_blocks", "reloaded_blocks",
)  # fmt: skip
_COUNTED = {
    ev.Preempted: "preemptions", ev.Finished: "finished", ev.Cancelled: "cancelled", ev.Failed: "failed",
    ev.Refused: "refused",
}  # fmt: skip
_ACTIVE = (Stage.RUNNING, Stage.WAITING, Stage.RECEIVED)


class Board:
    """Folds numbered events into a story and what stands around it. `delivers` as in `Story`.

    model         the first model's name, where no event names one
    first, last   numbers of the first and the newest event that were folded, 0 before
    """

    def __init__(self, *, delivers: bool = True, model: str = "", loaded: Iterable[ev.Loaded] = ()) -> None:
        self.story = Story(delivers=delivers)
        for each in loaded:
            self.story.know(each)
        self.steps = Steps(_KEPT_STEPS)
        self.counts = Counter[str]()
        self.model = model
        self.first = self.last = 0
        self.newest_at = 0
        self._evictions: dict[str, int] = {}

    def fold(self, number: int, event: ev.AnyEvent) -> None:
        """Take one event in."""
        self.first, self.last = self.first or number, number
        self.newest_at = max(self.newest_at, event.at)
        self._count(event)
        self.story.fold(event)
        self.steps.fold(event)

    def view(self, now: int, *, source: str = "", steps: int, requests: int, ended: int) -> BoardView:
        """All of it as of `now`, with at most so many steps, requests, and ended ones among them."""
        models = tuple(self._model(name, now) for name in self.story.models)
        first = models[0] if models else None
        return BoardView(
            source=source,
            model=(first.model if first else "") or self.model,
            models=models,
            events=EventNumbers(self.first, self.last),
            pool=first.pool if first else PoolShown(PoolBlocks(0, 0, 0, 0), (), 0),
            seats=first.seats if first else SeatsShown(0, None),
            rates=self._rates(now, self.steps.records),
            steps=tuple(map(_step_shown, list(self.steps.records)[-steps:])) if steps else (),
            stages=_stages(self.story.live.values()),
            requests=self._requests(self._chosen(requests, ended), now),
            unknown=self._unknown(),
            counters={name: self.counts[name] for name in COUNTERS},
            loops=tuple(map(_loop_shown, self.story.loops.values())),
            stuck=tuple(map(no_progress, self.story.still)),
        )

    # -- parts of the view -----------------------------------------------------------------------------------

    def _model(self, name: str, now: int) -> ModelShown:
        steps = [step for step in self.steps.records if step.model in (name, "")]
        live = [record for record in self.story.live.values() if record.model == name]
        levels, facts = self.story.models.get(name, NO_LEVELS), self.story.facts.get(name)
        return ModelShown(
            model=name,
            pattern=self.story.pattern(name),
            unit=self.story.unit(name),
            pool=self._pool(name, live, (facts.blocks if facts else 0) or levels.total),
            seats=SeatsShown(levels.seats_used, facts.seats if facts else None),
            rates=self._rates(now, steps),
            stages=_stages(live),
            batch=len(steps[-1].members) if steps else 0,
            tiers=self.story.tiers.get(name, ()),
            passed=sum(isinstance(r.verdict, Wait) and r.verdict.rule == "model" for r in live if not r.ended),
        )

    def _pool(self, name: str, live: list[Record], total: int) -> PoolShown:
        levels, references = self.story.models.get(name, NO_LEVELS), self.story.references(name)
        blocks = PoolBlocks(total, levels.live, levels.reusable, levels.free)
        if self.story.pattern(name) != "text":  # who holds bytes, no event tells
            return PoolShown(blocks, (), 0)
        owners = (_owner(record, references) for record in live if not record.ended)
        shown = sorted((o for o in owners if o.blocks or o.shared), key=lambda o: (-o.blocks, -o.shared))
        return PoolShown(blocks, tuple(shown), max(0, levels.live - len(references)))

    def _rates(self, now: int, steps: Iterable[StepRecord]) -> Rates:
        records = self.steps.records
        since = max(now - round(RATE_OVER_S * 1e9), records[0].began_at) if records else now
        recent = [step for step in steps if step.ended_at is not None and step.ended_at > since]
        over_s = max(0.0, (now - since) / 1e9)
        spent = Counter[str]()
        for step in recent:
            spent.update(step.positions() if not step.failed else {})

        def per_s(total: int) -> float:
            return round(total / over_s, 3) if over_s else 0.0

        return Rates(
            over_s=round(over_s, 3),
            steps_per_s=per_s(len(recent)),
            prefilled_per_s=per_s(spent["prefilled"]),
            decoded_per_s=per_s(spent["decoded"]),
            recomputed_per_s=per_s(spent["recomputed"]),
            evaluated_per_s=per_s(spent["evaluated"]),
            emitted_tokens_per_s=per_s(sum(step.emitted for step in recent)),
        )

    def _chosen(self, most: int, ended: int) -> list[Record]:
        """Who is shown: the running, then the waiting, each in order, neither crowding out the other; then those who
        ended last, if there is room."""
        live = {stage: [r for r in self.story.live.values() if r.stage is stage] for stage in _ACTIVE}
        running, waiting = (sorted(live[stage], key=lambda r: r.order) for stage in _ACTIVE[:2])
        waiting += live[Stage.RECEIVED]
        seen = max(most - most // 2, most - len(waiting))
        shown = running[:seen] + waiting[: most - min(seen, len(running))]
        over = chain((r for r in self.story.live.values() if r.ended), reversed(self.story.ended.values()))
        return shown + list(islice(over, max(0, min(ended, most - len(shown)))))

    def _requests(self, records: list[Record], now: int) -> tuple[RequestShown, ...]:
        views = request_views(self.story, records, now)
        return tuple(RequestShown(**msgspec.structs.asdict(view), words=brief(view)) for view in views)

    def _unknown(self) -> int:
        records = self.steps.records
        running = records[-1] if records and records[-1].ended_at is None else None
        return len({m.id for m in running.members} - self.story.live.keys()) if running else 0

    # -- counters --------------------------------------------------------------------------------------------

    def _count(self, event: ev.AnyEvent) -> None:
        if name := _COUNTED.get(type(event)):
            self.counts[name] += 1
        match event:
            case ev.Cancelled(by=ev.SLOW_READER) | ev.Delivered(dropped=ev.SLOW_READER):
                self.counts["slow_readers"] += 1
            case ev.Offloaded(blocks=blocks):
                self.counts["offloaded_blocks"] += sum(blocks.values())
            case ev.Reloaded(blocks=blocks):
                self.counts["reloaded_blocks"] += sum(blocks.values())
            case ev.Committed():
                for outcome in event.outcomes:
                    self.counts["recomputed_positions"] += outcome.recomputed
                    self.counts["drafts_accepted"] += outcome.accepted
                    self.counts["drafts_rejected"] += outcome.rejected
        if isinstance(event, ev.Stepped | ev.Committed):
            told = event.levels.evictions
            before = self._evictions.get(event.model, told)
            self.counts["evicted_blocks"] += told - (before if before <= told else 0)
            self._evictions[event.model] = told


def _stages(records: Iterable[Record]) -> Stages:
    """Every stage of a request that is alive, every reason to wait, also at 0."""
    waits: dict[On, int] = dict.fromkeys(ONS, 0)
    stages = Counter[str]()
    for record in records:
        stages[record.stage] += 1
        if record.stage is Stage.WAITING:
            waits[record.verdict.on if isinstance(record.verdict, Wait) else "turn"] += 1
    return Stages(stages["running"], waits, stages["received"])


def _step_shown(step: StepRecord) -> StepShown:
    return StepShown(
        step=step.step,
        model=step.model,
        budget=step.budget,
        **step.positions(),
        left=max(0, step.budget - step.spent),
        members=len({member.id for member in step.members}),
        ms=None if step.ended_at is None else round((step.ended_at - step.began_at) / 1e6, 6),
        failed=step.failed,
    )


def _loop_shown(event: ev.Recovery) -> LoopShown:
    demand = event.offered, event.rejected
    return LoopShown(event.model, event.cut, event.now, event.best, *demand, loop_words(event))


def _owner(record: Record, references: Counter[int]) -> Owner:
    held = Counter(block for sequence in record.sequences for block in sequence.blocks)
    alone = sum(references[block] == own for block, own in held.items())
    return Owner(record.id, alone, len(held) - alone)
