"""The Prometheus metrics, folded from the same events and records as everything else that Headway tells."""

from __future__ import annotations

from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from headway.request import Stage
from headway.story import events as ev
from headway.story.reducer import Story
from headway.verdict import ONS, Wait

disable_created_metrics()  # type: ignore[no-untyped-call]  # only noise beside the counters themselves
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
KINDS = ("reused", "prefilled", "decoded", "recomputed", "rejected")
DRAFTS = ("accepted", "rejected")
FINISHES = ("stop", "length", "cancelled", "time", "failed")
TIERS = ("host", "disk")
REFUSALS = ("pool", "context", "seats", "queue", "loading", "invalid")


class Metrics:
    """Counters and histograms grow by `fold`; gauges are read from the story when asked."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._seats = 0
        self._reserved_bytes = 0
        self._block_tokens = 1
        self._evictions_told = 0
        self._turned_away: Counts[str] = Counts()
        self._step_began: int | None = None
        self.registry = CollectorRegistry()
        self._declare_gauges()
        self._declare_totals()
        self._declare_histograms()

    def size(self, *, seats: int, reserved_bytes: int, block_tokens: int) -> None:
        """What the replica that serves now has to give."""
        self._seats, self._reserved_bytes, self._block_tokens = seats, reserved_bytes, block_tokens

    def fold(self, event: ev.AnyEvent) -> None:
        """Count one event, just before the story folds it (so records still hold what was true until now)."""
        match event:
            case ev.Stepped():
                self._step_began = event.at
                positions = sum(member.positions for member in event.members)
                self._step_positions.observe(positions)
            case ev.Committed():
                self._committed(event)
            case ev.Admitted():
                self._admitted(event)
            case ev.Preempted():
                self._preemptions.inc()
            case ev.Finished():
                self._finished.labels(event.reason).inc()
            case ev.Cancelled(by=by):
                self._finished.labels("time" if by == ev.TIME else "cancelled").inc()
                self._slow_readers.inc(by == ev.SLOW_READER)
            case ev.Delivered(dropped=by):
                self._slow_readers.inc(by == ev.SLOW_READER)
            case ev.Failed():
                self._finished.labels("failed").inc()
            case ev.Refused():
                self._refused.labels(event.reason).inc()

    def refuse(self, reason: str) -> None:
        """Count a request that was turned away before it had a record."""
        self._refused.labels(reason).inc()
        self._turned_away[reason] += 1

    def turned_away(self) -> dict[str, int]:
        """What `refuse` counted since this was asked last."""
        counts, self._turned_away = dict(self._turned_away), Counts()
        return counts

    def lose_logged(self) -> None:
        """Count an event that the event log could not take."""
        self._log_lost.inc()

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        levels = self._story.levels
        self._blocks.labels("live").set(levels.live)
        self._blocks.labels("reusable").set(levels.reusable)
        self._blocks.labels("free").set(levels.free)
        self._seat_gauge.labels("used").set(levels.seats_used)
        self._seat_gauge.labels("free").set(max(0, self._seats - levels.seats_used))
        self._reserved.set(self._reserved_bytes)
        stages = dict.fromkeys(Stage, 0)
        waits = dict.fromkeys(ONS, 0)
        for record in self._story.live.values():
            stages[record.stage] += 1
            if record.stage is Stage.WAITING:
                waits[record.verdict.on if isinstance(record.verdict, Wait) else "turn"] += 1
        for stage, count in stages.items():
            self._stages.labels(stage).set(count)
        for on, count in waits.items():
            self._waits.labels(on).set(count)
        return generate_latest(self.registry)

    def _admitted(self, event: ev.Admitted) -> None:
        if event.resumed:
            tables = zip(event.tables, event.inherited, strict=True)
            self._regained.inc(len({block for table, n in tables for block in table[: n // self._block_tokens]}))
            return
        self._positions.labels("reused").inc(sum(event.inherited))
        record = self._story.live.get(event.id)
        if record is None:
            return
        for on in ONS:
            waited = sum(i.ns for i in record.life(event.at) if i.name == "queued" and i.on == on)
            if waited:
                self._queued.labels(on).observe(waited / 1e9)

    def _committed(self, event: ev.Committed) -> None:
        if self._step_began is not None:
            self._step_seconds.observe((event.at - self._step_began) / 1e9)
            self._step_began = None
        for kind in ("prefilled", "decoded", "recomputed", "rejected"):
            self._positions.labels(kind).inc(sum(getattr(outcome, kind) for outcome in event.outcomes))
        for result in DRAFTS:
            self._drafts.labels(result).inc(sum(getattr(outcome, result) for outcome in event.outcomes))
        self._positions.labels("reused").inc(sum(f.positions for f in event.forks if not f.resumed))
        for outcome in event.outcomes:
            self._emitted(outcome, event.at)
        self._tokens.inc(sum(fork.emitted for fork in event.forks))  # first tokens, as the leading sequence's was
        if event.levels.evictions < self._evictions_told:  # another replica counts from its own start
            self._evictions_told = 0
        self._evictions.inc(event.levels.evictions - self._evictions_told)
        self._evictions_told = event.levels.evictions

    def _emitted(self, outcome: ev.Outcome, at: int) -> None:
        """One sequence's tokens of one step: its request's first ones, or so long after the ones before."""
        record, tokens = self._story.live.get(outcome.id), outcome.emitted
        if record is None or not tokens:
            return
        self._tokens.inc(tokens)
        before = record.sequences[outcome.index].last_token_at
        if before is None:
            self._first_token.observe((at - record.received_at) / 1e9)
            return
        for _ in range(tokens):
            self._inter_token.observe((at - before) / 1e9 / tokens)

    def _declare_gauges(self) -> None:
        r = self.registry
        self._blocks = Gauge("headway_blocks", "State blocks by state", ["state"], registry=r)
        self._reserved = Gauge("headway_pool_reserved_bytes", "Memory reserved for state", registry=r)
        self._stages = Gauge(
            "headway_requests", "Requests that are not yet delivered, by stage", ["stage"], registry=r
        )
        self._waits = Gauge("headway_waiting_requests", "Waiting requests by what they wait for", ["on"], registry=r)
        self._seat_gauge = Gauge("headway_seats", "Places among the active sequences", ["state"], registry=r)

    def _declare_totals(self) -> None:
        r = self.registry
        self._evictions = Counter("headway_prefix_evictions", "Reusable blocks that were dropped", registry=r)
        self._preemptions = Counter("headway_preemptions", "Active requests whose blocks were taken", registry=r)
        self._positions = Counter(
            "headway_positions", "Positions by how their state came to be", ["kind"], registry=r
        )
        self._drafts = Counter(
            "headway_draft_positions", "Guessed tokens that were verified, by result", ["result"], registry=r
        )
        self._tokens = Counter("headway_emitted_tokens", "Tokens that callers got", registry=r)
        self._finished = Counter("headway_requests_finished", "Requests that ended", ["reason"], registry=r)
        self._refused = Counter("headway_requests_refused", "Requests that were turned away", ["reason"], registry=r)
        self._slow_readers = Counter(
            "headway_slow_readers", "Requests dropped because their client took nothing for too long", registry=r
        )
        self._log_lost = Counter(
            "headway_event_log_lost_events", "Events that --event-log could not write, since it failed", registry=r
        )
        self._regained = Counter("headway_regained_blocks", "Blocks found again on resuming", registry=r)
        offloaded = Counter("headway_offloaded_blocks", "Blocks copied to another tier", ["tier"], registry=r)
        reloaded = Counter("headway_reloaded_blocks", "Blocks brought back from a tier", ["tier"], registry=r)
        closed: list[tuple[Counter, tuple[str, ...]]] = [
            (offloaded, TIERS),
            (reloaded, TIERS),
            (self._positions, KINDS),
            (self._drafts, DRAFTS),
            (self._finished, FINISHES),
            (self._refused, REFUSALS),
        ]
        for counter, values in closed:
            for value in values:
                counter.labels(value)

    def _declare_histograms(self) -> None:
        r = self.registry
        self._first_token = Histogram(
            "headway_time_to_first_token_seconds",
            "From headers read to the first token",
            buckets=_SECONDS,
            registry=r,
        )
        self._inter_token = Histogram(
            "headway_inter_token_seconds", "Between the tokens of one sequence", buckets=_SECONDS, registry=r
        )
        self._queued = Histogram(
            "headway_queued_seconds", "Waiting before the first admission", ["on"], buckets=_SECONDS, registry=r
        )
        self._step_seconds = Histogram("headway_step_seconds", "Duration of a step", buckets=_SECONDS, registry=r)
        self._step_positions = Histogram(
            "headway_step_positions", "Positions that a step evaluates", buckets=_POSITIONS, registry=r
        )
        for on in ONS:
            self._queued.labels(on)
