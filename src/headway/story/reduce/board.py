"""The board: what goes on now, in numbers, folded from events alone. `headway top` draws it."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import Any

from headway.core import events as ev
from headway.core.request import Stage
from headway.core.verdict import ONS, Wait
from headway.story.reduce.record import Record
from headway.story.reduce.reducer import Story
from headway.story.reduce.steps import KINDS, StepRecord, Steps
from headway.story.tell.explain import request_views
from headway.story.tell.sentences import brief

#: Rates are means over so much of the recent past.
RATE_OVER_S = 5.0
_KEPT_STEPS = 4096
_RATED = tuple(kind for kind in KINDS if kind != "rejected")
COUNTERS = (
    "preemptions", "evicted_blocks", "recomputed_positions", "drafts_accepted", "drafts_rejected", "slow_readers",
    "finished", "cancelled", "failed", "refused",
)  # fmt: skip
_COUNTED = {
    ev.Preempted: "preemptions", ev.Finished: "finished", ev.Cancelled: "cancelled", ev.Failed: "failed",
    ev.Refused: "refused",
}  # fmt: skip
_ACTIVE = (Stage.RUNNING, Stage.WAITING, Stage.RECEIVED)


class Board:
    """Folds numbered events into a story and what stands around it. `delivers` as in `Story`.

    model, blocks, seats   what the replica has to give, as `Loaded` says; who knows better may set them (`seats` is
                           None while nobody does)
    first, last            numbers of the first and the newest event that were folded, 0 before
    """

    def __init__(self, *, delivers: bool = True) -> None:
        self.story = Story(delivers=delivers)
        self.steps = Steps(_KEPT_STEPS)
        self.counts = Counter[str]()
        self.model = ""
        self.blocks = 0
        self.seats: int | None = None
        self.first = self.last = 0
        self.newest_at = 0
        self._evictions: int | None = None

    def fold(self, number: int, event: ev.AnyEvent) -> None:
        """Take one event in."""
        self.first, self.last = self.first or number, number
        self.newest_at = max(self.newest_at, event.at)
        self._count(event)
        self.story.fold(event)
        self.steps.fold(event)
        if isinstance(event, ev.Loaded):
            self.model, self.blocks, self.seats = event.model, event.blocks, event.seats

    def view(self, now: int, *, steps: int, requests: int, ended: int) -> dict[str, Any]:
        """Plain data, ready for JSON (`headway top --once --json`), as of `now`; at most so many of each.

        model       its name
        events      {"first", "last"}: numbers of the events that this is folded from; it knows of nothing earlier
        pool        {"blocks": {"total", "live", "reusable", "free"}, "owners": [{"id", "blocks", "shared"}, …],
                    "unowned"}: `blocks` of an owner are held by it alone, `shared` with other requests; unowned are
                    live for requests that ended in a running step, or came before the first event
        seats       {"used", "total"}; total is null where no event tells it
        rates       {"over_s", "steps_per_s", "prefilled_per_s", "decoded_per_s", "recomputed_per_s",
                    "evaluated_per_s", "emitted_tokens_per_s"}: positions, but for the last
        steps       the newest last: {"step", "budget", "prefilled", "decoded", "recomputed", "rejected", "evaluated",
                    "left", "members", "ms", "failed"}; the six are positions (`evaluated` an encoder's) and sum to
                    the budget, `ms` is null while it runs
        stages      live requests by stage, `waiting` also by what is awaited: {"waiting": {"space": 1, …}, …}
        requests    the records of `/v1/requests`, each with `words`: one line that says how it is
        unknown     how many requests of the running step came before the first event
        counters    since the first event
        """
        return {
            "model": self.model,
            "events": {"first": self.first, "last": self.last},
            "pool": self._pool(),
            "seats": {"used": self.story.levels.seats_used, "total": self.seats},
            "rates": self._rates(now),
            "steps": [_step_view(step) for step in list(self.steps.records)[-steps:]] if steps else [],
            "stages": self._stages(),
            "requests": self._requests(self._chosen(requests, ended), now),
            "unknown": self._unknown(),
            "counters": {name: self.counts[name] for name in COUNTERS},
        }

    # -- parts of the view -----------------------------------------------------------------------------------

    def _pool(self) -> dict[str, Any]:
        levels = self.story.levels
        total = self.blocks or levels.live + levels.reusable + levels.free
        references = self.story.references()
        owners = [_owner(record, references) for record in self.story.live.values() if not record.ended]
        owners = sorted((owner for owner in owners if owner["blocks"] or owner["shared"]), key=_by_size)
        return {
            "blocks": {"total": total, "live": levels.live, "reusable": levels.reusable, "free": levels.free},
            "owners": owners,
            "unowned": max(0, levels.live - len(references)),
        }

    def _rates(self, now: int) -> dict[str, float]:
        records = self.steps.records
        since = max(now - round(RATE_OVER_S * 1e9), records[0].began_at) if records else now
        recent = [step for step in records if step.ended_at is not None and step.ended_at > since]
        totals = {kind: sum(step.positions()[kind] for step in recent if not step.failed) for kind in _RATED}
        totals |= {"steps": len(recent), "emitted_tokens": sum(step.emitted for step in recent)}
        over_s = max(0.0, (now - since) / 1e9)
        return {"over_s": round(over_s, 3)} | {
            f"{name}_per_s": round(total / over_s, 3) if over_s else 0.0 for name, total in totals.items()
        }

    def _stages(self) -> dict[str, Any]:
        """Every stage of a request that is alive, every reason to wait, also at 0."""
        waits, stages = dict.fromkeys(ONS, 0), Counter[str]()
        for record in self.story.live.values():
            stages[record.stage] += 1
            if record.stage is Stage.WAITING:
                waits[record.verdict.on if isinstance(record.verdict, Wait) else "turn"] += 1
        return {"running": stages["running"], "waiting": waits, "received": stages["received"]}

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

    def _requests(self, records: list[Record], now: int) -> list[dict[str, Any]]:
        return [{**view, "words": brief(view)} for view in request_views(self.story, records, now)]

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
            case ev.Committed():
                for outcome in event.outcomes:
                    self.counts["recomputed_positions"] += outcome.recomputed
                    self.counts["drafts_accepted"] += outcome.accepted
                    self.counts["drafts_rejected"] += outcome.rejected
        levels = getattr(event, "levels", None)
        if isinstance(levels, ev.Levels):
            before = levels.evictions if self._evictions is None else self._evictions
            self.counts["evicted_blocks"] += levels.evictions - (before if before <= levels.evictions else 0)
            self._evictions = levels.evictions


def _step_view(step: StepRecord) -> dict[str, Any]:
    return {
        "step": step.step,
        "budget": step.budget,
        **step.positions(),
        "left": step.budget - step.spent,
        "members": len({member.id for member in step.members}),
        "ms": None if step.ended_at is None else round((step.ended_at - step.began_at) / 1e6, 6),
        "failed": step.failed,
    }


def _owner(record: Record, references: Counter[int]) -> dict[str, Any]:
    held = Counter(block for sequence in record.sequences for block in sequence.blocks)
    alone = sum(references[block] == own for block, own in held.items())
    return {"id": record.id, "blocks": alone, "shared": len(held) - alone}


def _by_size(owner: dict[str, Any]) -> tuple[int, int]:
    return -owner["blocks"], -owner["shared"]
