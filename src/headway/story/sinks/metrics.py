"""The Prometheus metrics, folded from the same events and records as everything else that Headway tells."""

from __future__ import annotations

from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from headway.core import events as ev
from headway.core.request import Stage
from headway.core.verdict import ONS, Wait
from headway.story.reduce.reducer import NO_LEVELS, Story

disable_created_metrics()  # type: ignore[no-untyped-call]  # only noise beside the counters themselves
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_SECOND, _MINUTE = 1_000_000_000, 60
FAILURES = (Stage.CANCELLED, Stage.FAILED, Stage.REFUSED)
KINDS = ("reused", "prefilled", "decoded", "recomputed", "rejected", "evaluated")
DRAFTS = ("accepted", "rejected")
FINISHES = ("stop", "length", "cancelled", "time", "failed")
DEADLINES = ("met", "missed")
TIERS = ("host", "disk")
REFUSALS = ("pool", "context", "seats", "deadline", "queue", "loading", "invalid")


F = TypeVar("F", Counter, Gauge, Histogram)


class _Families:
    """What is measured of models, declared once: the label `model` comes first."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def declared(kind: type[F], name: str, help: str, *labels: str, **options: Iterable[float]) -> F:
            return kind(f"headway_{name}", help, ["model", *labels], registry=registry, **options)  # type: ignore[arg-type]

        self.blocks = declared(Gauge, "blocks", "KV cache blocks by state", "state")
        self.reserved = declared(Gauge, "pool_reserved_bytes", "Memory reserved for state (KV cache)")
        self.stages = declared(Gauge, "requests", "Requests not yet delivered, by stage", "stage")
        self.waits = declared(Gauge, "waiting_requests", "Waiting requests by what they wait for", "on")
        self.seats = declared(Gauge, "seats", "Places among the active sequences", "state")
        self.evictions = declared(Counter, "prefix_evictions", "Reusable blocks that were evicted")
        self.preemptions = declared(Counter, "preemptions", "Preemptions of active requests")
        self.positions = declared(Counter, "positions", "Positions by how their state was obtained", "kind")
        self.recompute_share = declared(
            Gauge, "recompute_share", "Recomputed positions of all evaluated in the last minute"
        )
        self.loops = declared(Counter, "recovery_loops", "Recovery loops: lost work rose while goodput fell")
        self.cut = declared(Gauge, "admission_cut", "1 while a recovery loop has admission cut (--recovery auto)")
        self.drafts = declared(
            Counter,
            "draft_positions",
            "Drafted tokens that were verified (speculative decoding), by result",
            "result",
        )
        self.tokens = declared(Counter, "emitted_tokens", "Tokens emitted to callers")
        self.finished = declared(Counter, "requests_finished", "Requests that ended", "reason")
        self.refused = declared(Counter, "requests_refused", "Requests that were refused", "reason")
        self.deadlines = declared(
            Counter, "deadlines", "Complete answers of requests with a deadline, by whether it was met", "result"
        )
        self.slow_readers = declared(Counter, "slow_readers", "Requests dropped because their client stopped reading")
        self.regained = declared(Counter, "regained_blocks", "Blocks found again on resuming")
        self.offloaded = declared(Counter, "offloaded_blocks", "Blocks copied to another tier", "tier")
        self.reloaded = declared(Counter, "reloaded_blocks", "Blocks brought back from a tier", "tier")
        self.first_token = declared(
            Histogram, "time_to_first_token_seconds", "Time from headers read to the first token", buckets=_SECONDS
        )
        self.inter_token = declared(
            Histogram, "inter_token_seconds", "Time between tokens of one sequence", buckets=_SECONDS
        )
        self.queued = declared(
            Histogram, "queued_seconds", "Time waiting before the first admission", "on", buckets=_SECONDS
        )
        self.step_seconds = declared(Histogram, "step_seconds", "Duration of a step", buckets=_SECONDS)
        self.step_positions = declared(
            Histogram, "step_positions", "Positions evaluated by a step", buckets=_POSITIONS
        )


class _Share:
    """Recomputed positions of all that were evaluated in the last minute: the recompute tax."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # [second, recomputed, evaluated]

    def add(self, at: int, recomputed: int, evaluated: int) -> None:
        second = at // _SECOND
        while self._seconds and self._seconds[-1][0] > second:  # the clock went back
            self._seconds.pop()
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
            self._drop_before(second - _MINUTE)
        self._seconds[-1][1] += recomputed
        self._seconds[-1][2] += evaluated

    def at(self, now: int) -> float:
        self._drop_before(now // _SECOND - _MINUTE)
        evaluated = sum(row[2] for row in self._seconds)
        return sum(row[1] for row in self._seconds) / evaluated if evaluated else 0.0

    def _drop_before(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second:
            self._seconds.popleft()


class _Measured:
    """The metrics of one model. Every value of a closed list is there from the start, at 0."""

    def __init__(self, families: _Families, model: str) -> None:
        def bound(family: F, values: Iterable[str]) -> dict[str, F]:
            return {value: family.labels(model, value) for value in values}

        self.share = _Share()
        self.newest_at = 0
        self.recompute_share = families.recompute_share.labels(model)
        self.total_seats = 0
        self.reserved_bytes = 0
        self.block_tokens = 1
        self._evictions_told = 0
        self._families, self.name = families, model
        self.blocks = bound(families.blocks, ("live", "reusable", "free"))
        self.reserved = families.reserved.labels(model)
        self.stages = bound(families.stages, Stage)
        self.waits = bound(families.waits, ONS)
        self.seats = bound(families.seats, ("used", "free"))
        self.preemptions = families.preemptions.labels(model)
        self.positions = bound(families.positions, KINDS)
        self.loops = families.loops.labels(model)
        self.cut = families.cut.labels(model)
        self.drafts = bound(families.drafts, DRAFTS)
        self.deadlines = bound(families.deadlines, DEADLINES)
        self.tokens = families.tokens.labels(model)
        self.slow_readers = families.slow_readers.labels(model)
        self.regained = families.regained.labels(model)
        self.first_token = families.first_token.labels(model)
        self.inter_token = families.inter_token.labels(model)
        self.queued = bound(families.queued, ONS)
        self.step_seconds = families.step_seconds.labels(model)
        self.step_positions = families.step_positions.labels(model)
        self._evictions = families.evictions.labels(model)
        for closed, values in (
            (families.finished, FINISHES),
            (families.refused, REFUSALS),
            (families.offloaded, TIERS),
            (families.reloaded, TIERS),
        ):
            bound(closed, values)

    def finish(self, reason: str) -> None:
        self._families.finished.labels(self.name, reason).inc()

    def refuse(self, reason: str) -> None:
        self._families.refused.labels(self.name, reason).inc()

    def evicted(self, since_the_start: int) -> None:
        """Another replica counts from its own start."""
        told = self._evictions_told if since_the_start >= self._evictions_told else 0
        if since_the_start != told:
            self._evictions.inc(since_the_start - told)
        self._evictions_told = since_the_start


class Metrics:
    """Counters and histograms grow by `fold`; gauges are read from the story when asked. `models` are those that are
    to be served; further ones are added as the events name them."""

    def __init__(self, story: Story, models: Iterable[str] = ()) -> None:
        self._story = story
        self._turned_away: Counts[str] = Counts()
        self._step_began: int | None = None
        self._counts: dict[type, Callable[[Any], None]] = {
            ev.Admitted: self._admitted, ev.Stepped: self._stepped, ev.Committed: self._committed,
            ev.Preempted: self._preempted, ev.Recovery: self._recovery,
            ev.Offloaded: self._offloaded, ev.Reloaded: self._reloaded,
            ev.Finished: self._finished, ev.Cancelled: self._cancelled, ev.Failed: self._failed,
            ev.Refused: self._refused, ev.Delivered: self._delivered,
        }  # fmt: skip
        self.registry = CollectorRegistry()
        self._families = _Families(self.registry)
        self._log_lost = Counter(
            "headway_event_log_lost_events",
            "Events lost after --event-log failed",
            registry=self.registry,
        )
        self._models: dict[str, _Measured] = {}
        for model in models:
            self._of(model)

    def size(self, model: str, *, seats: int, reserved_bytes: int, block_tokens: int) -> None:
        """What the replica that serves now has to give a model."""
        measured = self._of(model)
        measured.total_seats, measured.reserved_bytes = seats, reserved_bytes
        measured.block_tokens = block_tokens

    def fold(self, event: ev.AnyEvent) -> None:
        """Count one event, just before the story folds it (so records still hold what was true until now)."""
        count = self._counts.get(type(event))
        if count is not None:
            count(event)

    def refuse(self, model: str, reason: str) -> None:
        """Count a request that was turned away before it had a record."""
        self._of(model).refuse(reason)
        self._turned_away[reason] += 1

    def turned_away(self) -> dict[str, int]:
        """What `refuse` counted since this was asked last."""
        if not self._turned_away:
            return {}
        counts, self._turned_away = dict(self._turned_away), Counts()
        return counts

    def lose_logged(self) -> None:
        """Count an event that the event log could not take."""
        self._log_lost.inc()

    def text(self, now: int | None = None) -> bytes:
        """The exposition in Prometheus' text format, as of `now`; without it, of the newest step."""
        stages: Counts[tuple[str, str]] = Counts()
        waits: Counts[tuple[str, str]] = Counts()
        for record in self._story.live.values():
            stages[record.model, record.stage] += 1
            if record.stage is Stage.WAITING:
                waits[record.model, record.verdict.on if isinstance(record.verdict, Wait) else "turn"] += 1
        for model in {model for model, _ in stages} - self._models.keys():
            self._of(model)
        for name, measured in self._models.items():
            levels = self._story.models.get(name, NO_LEVELS)
            counted = self._story.unit(name) == "blocks"
            for state, blocks in (("live", levels.live), ("reusable", levels.reusable), ("free", levels.free)):
                measured.blocks[state].set(blocks if counted else 0)
            measured.seats["used"].set(levels.seats_used)
            measured.seats["free"].set(max(0, measured.total_seats - levels.seats_used))
            measured.reserved.set(measured.reserved_bytes)
            measured.cut.set(name in self._story.loops and self._story.loops[name].cut)
            measured.recompute_share.set(measured.share.at(measured.newest_at if now is None else now))
            for stage, gauge in measured.stages.items():
                gauge.set(stages[name, stage])
            for on, gauge in measured.waits.items():
                gauge.set(waits[name, on])
        return generate_latest(self.registry)

    def _of(self, model: str) -> _Measured:
        if model not in self._models:
            self._models[model] = _Measured(self._families, model)
        return self._models[model]

    def _of_request(self, request_id: str) -> _Measured:
        record = self._story.live.get(request_id)
        return self._of(record.model if record else "")

    def _complete(self, request_id: str, at: int, dropped: str | None) -> None:
        """An answer is complete (a preview never is): what counts is when its last byte was handed over."""
        record = self._story.live.get(request_id)
        if record is None or record.deadline_at is None or dropped is not None or record.stage in FAILURES:
            return
        self._of(record.model).deadlines["met" if at <= record.deadline_at else "missed"].inc()

    # -- one method per event --------------------------------------------------------------------------------

    def _offloaded(self, event: ev.Offloaded) -> None:
        for tier, blocks in event.blocks.items():
            self._families.offloaded.labels(self._of(event.model).name, tier).inc(blocks)

    def _reloaded(self, event: ev.Reloaded) -> None:
        for tier, blocks in event.blocks.items():
            self._families.reloaded.labels(self._of_request(event.id).name, tier).inc(blocks)

    def _stepped(self, event: ev.Stepped) -> None:
        if event.members:  # else it only copies between pool and tiers
            self._step_began = event.at
            positions = sum(member.positions for member in event.members)
            self._of(event.model).step_positions.observe(positions)

    def _preempted(self, event: ev.Preempted) -> None:
        self._of_request(event.id).preemptions.inc()

    def _recovery(self, event: ev.Recovery) -> None:
        self._of(event.model).loops.inc(event.phase == "began")

    def _finished(self, event: ev.Finished) -> None:
        self._of_request(event.id).finish(event.reason)
        if not self._story.delivers:
            self._complete(event.id, event.at, None)

    def _cancelled(self, event: ev.Cancelled) -> None:
        measured = self._of_request(event.id)
        measured.finish("time" if event.by == ev.TIME else "cancelled")
        if event.by == ev.SLOW_READER:
            measured.slow_readers.inc()

    def _delivered(self, event: ev.Delivered) -> None:
        if event.dropped == ev.SLOW_READER:
            self._of_request(event.id).slow_readers.inc()
        self._complete(event.id, event.at, event.dropped)

    def _failed(self, event: ev.Failed) -> None:
        self._of_request(event.id).finish("failed")

    def _refused(self, event: ev.Refused) -> None:
        record = self._story.live.get(event.id)
        self._of(event.model or (record.model if record else "")).refuse(event.reason)

    def _admitted(self, event: ev.Admitted) -> None:
        measured = self._of_request(event.id)
        if event.resumed:
            tables = zip(event.tables, event.inherited, strict=True)
            size = measured.block_tokens
            measured.regained.inc(len({block for table, n in tables for block in table[: n // size]}))
            return
        measured.positions["reused"].inc(sum(event.inherited))
        record = self._story.live.get(event.id)
        if record is None:
            return
        waited: Counts[str] = Counts()
        for interval in record.life(event.at):
            if interval.name == "queued" and interval.on is not None:
                waited[interval.on] += interval.ns
        for on, ns in waited.items():
            if ns:
                measured.queued[on].observe(ns / 1e9)

    def _committed(self, event: ev.Committed) -> None:
        measured = self._of(event.model)
        if self._step_began is not None:
            measured.step_seconds.observe((event.at - self._step_began) / 1e9)
            self._step_began = None
        measured.newest_at = event.at
        if event.outcomes:
            self._evaluated(measured, event)
        if event.moves:
            measured.positions["evaluated"].inc(sum(move.positions for move in event.moves))
        if event.forks:  # their first tokens came with the leading sequence's
            measured.positions["reused"].inc(sum(fork.positions for fork in event.forks if not fork.resumed))
            measured.tokens.inc(sum(fork.emitted for fork in event.forks))
        measured.evicted(event.levels.evictions)

    def _evaluated(self, measured: _Measured, event: ev.Committed) -> None:
        """Positions of sequences, by how their state came to be, and what they emitted. What is none is not added:
        for most tokens most is."""
        prefilled = decoded = recomputed = rejected = accepted = emitted = 0
        for outcome in event.outcomes:
            prefilled += outcome.prefilled
            decoded += outcome.decoded
            recomputed += outcome.recomputed
            rejected += outcome.rejected
            accepted += outcome.accepted
            if outcome.emitted:
                emitted += self._emitted(measured, outcome, event.at)
        came = {"prefilled": prefilled, "decoded": decoded, "recomputed": recomputed, "rejected": rejected}
        for kind, positions in came.items():
            if positions:
                measured.positions[kind].inc(positions)
        measured.share.add(event.at, recomputed, prefilled + decoded + recomputed + rejected)
        if accepted:
            measured.drafts["accepted"].inc(accepted)
        if rejected:
            measured.drafts["rejected"].inc(rejected)
        if emitted:
            measured.tokens.inc(emitted)

    def _emitted(self, measured: _Measured, outcome: ev.Outcome, at: int) -> int:
        """One sequence's tokens of one step: its request's first ones, or so long after the ones before. Returns how
        many count."""
        record, tokens = self._story.live.get(outcome.id), outcome.emitted
        if record is None:
            return 0
        before = record.sequences[outcome.index].last_token_at
        if before is None:
            measured.first_token.observe((at - record.received_at) / 1e9)
            return tokens
        for _ in range(tokens):
            measured.inter_token.observe((at - before) / 1e9 / tokens)
        return tokens
