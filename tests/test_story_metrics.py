"""The metrics say what the records say: every total is the sum over records."""

from __future__ import annotations

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.core.events import Admitted, AnyEvent, Committed, Levels, Preempted, Stepped
from headway.core.request import Stage
from headway.core.verdict import ONS
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from world import SAMPLED, World

CONTRACT = {
    "headway_blocks": "gauge",
    "headway_pool_reserved_bytes": "gauge",
    "headway_requests": "gauge",
    "headway_waiting_requests": "gauge",
    "headway_seats": "gauge",
    "headway_recompute_share": "gauge",
    "headway_recovery_loops": "counter",
    "headway_deadlines": "counter",  # beyond the contract
    "headway_admission_cut": "gauge",
    "headway_prefix_evictions": "counter",
    "headway_preemptions": "counter",
    "headway_offloaded_blocks": "counter",
    "headway_reloaded_blocks": "counter",
    "headway_regained_blocks": "counter",
    "headway_positions": "counter",
    "headway_emitted_tokens": "counter",
    "headway_draft_positions": "counter",  # beyond the contract
    "headway_requests_finished": "counter",
    "headway_requests_refused": "counter",
    "headway_slow_readers": "counter",  # beyond the contract
    "headway_event_log_lost_events": "counter",  # beyond the contract
    "headway_time_to_first_token_seconds": "histogram",
    "headway_inter_token_seconds": "histogram",
    "headway_queued_seconds": "histogram",
    "headway_step_seconds": "histogram",
    "headway_step_positions": "histogram",
}


class Metered(World):
    """A world whose events feed the metrics first, as the front's do."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.metrics = Metrics(self.story)
        self.metrics.size(
            "fake", seats=self.model.options.seats, reserved_bytes=1 << 20, block_tokens=self.pool.block_tokens
        )

    def _emit(self, event: AnyEvent) -> None:
        if hasattr(self, "metrics"):
            self.metrics.fold(event)
        super()._emit(event)

    def value(self, name: str, **labels: str) -> float:
        """One sample of the exposition."""
        return sample(self.metrics, name, **labels)


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.text().decode()):
        for found in family.samples:
            if found.name == f"headway_{name}" and found.labels == {"model": "fake", **labels}:
                return found.value
    raise AssertionError(f"no sample headway_{name}{labels}")


def families(metrics: Metrics) -> dict[str, str]:
    return {family.name: family.type for family in text_string_to_metric_families(metrics.text().decode())}


def test_the_metrics_are_those_of_the_contract():
    assert families(Metrics(Story())) == CONTRACT


def test_every_label_value_of_a_closed_list_is_there_from_the_start_at_zero():
    metrics = Metrics(Story(), ("fake",))
    closed = {
        ("blocks", "state"): ("live", "reusable", "free"),
        ("requests", "stage"): tuple(Stage),
        ("waiting_requests", "on"): ONS,
        ("seats", "state"): ("used", "free"),
        ("offloaded_blocks_total", "tier"): ("host", "disk"),
        ("reloaded_blocks_total", "tier"): ("host", "disk"),
        ("positions_total", "kind"): ("reused", "prefilled", "decoded", "recomputed", "rejected"),
        ("requests_finished_total", "reason"): ("stop", "length", "cancelled", "time", "failed"),
        ("requests_refused_total", "reason"): ("pool", "context", "seats", "queue", "loading", "invalid"),
        ("queued_seconds_count", "on"): ONS,
        ("deadlines_total", "result"): ("met", "missed"),
    }
    for (name, label), values in closed.items():
        for value in values:
            assert sample(metrics, name, **{label: str(value)}) == 0


@pytest.fixture(scope="module")
def busy() -> Metered:
    """Some two hundred requests of every kind."""
    rng = random.Random(3)
    world = Metered(blocks=18, block_tokens=4, seats=8, step_tokens=20, max_bypass=2, policy="priority", vocab=9,
                    drafter=lambda tokens: tokens[-1:] * rng.randint(0, 2), max_context=60)  # fmt: skip
    for i in range(220):
        prompt = [rng.randint(0, 2) for _ in range(rng.choice((2, 9, 17, 30, 70)))]
        world.add(f"r{i}", prompt, n=rng.choice((1, 1, 2)), max_tokens=rng.randint(1, 12),
                  priority=rng.randint(0, 2), stop_ids=(7,), sampling=SAMPLED)  # fmt: skip
        for _ in range(rng.randint(0, 3)):
            world.clock.advance(rng.randint(0, 400_000))
            world.step()
        alive = list(world.engine.requests)
        if alive and rng.random() < 0.1:
            world.engine.cancel(rng.choice(alive))
        if rng.random() < 0.02:
            world.executor.fail_next = RuntimeError("the machine broke")
    world.run()
    return world


def test_totals_equal_sums_over_records(busy):
    records = list(busy.story.ended.values())
    counts = [sequence.counts for record in records for sequence in record.sequences]
    for kind in ("reused", "prefilled", "decoded", "recomputed", "rejected"):
        total = sum(getattr(count, kind) for count in counts)
        assert busy.value("positions_total", kind=kind) == total > 0
    assert busy.value("preemptions_total") == sum(record.preemptions for record in records) > 0
    emitted = sum(sequence.emitted for record in records for sequence in record.sequences)
    assert busy.value("emitted_tokens_total") == emitted == sum(len(said) for said in busy.said.values())
    assert busy.value("prefix_evictions_total") == busy.pool.evictions > 0


def test_ends_and_refusals_are_counted_by_reason(busy):
    records = list(busy.story.ended.values())
    for reason in ("stop", "length"):
        told = sum(record.stage is Stage.FINISHED and record.reason == reason for record in records)
        assert busy.value("requests_finished_total", reason=reason) == told > 0
    for reason, stage in (("cancelled", Stage.CANCELLED), ("failed", Stage.FAILED)):
        assert busy.value("requests_finished_total", reason=reason) == sum(r.stage is stage for r in records) > 0
    for reason in ("context", "pool", "seats"):
        told = sum(record.stage is Stage.REFUSED and record.reason == reason for record in records)
        assert busy.value("requests_refused_total", reason=reason) == told
    assert busy.value("requests_refused_total", reason="context") > 0


def test_steps_and_their_positions_are_counted(busy):
    steps = busy.steps()
    assert busy.value("step_seconds_count") == busy.value("step_positions_count") == len(steps)
    assert busy.value("step_positions_sum") == sum(member.positions for step in steps for member in step.members)
    ends = {event.step: event.at for event in busy.events if isinstance(event, Committed)}
    took = sum(ends[step.step] - step.at for step in steps)
    assert busy.value("step_seconds_sum") == pytest.approx(took / 1e9)


def test_each_request_has_one_time_to_first_token_and_each_later_token_one_time_since_the_last(busy):
    records = [record for record in busy.story.ended.values() if record.sequences]
    started = [record for record in records if any(sequence.emitted for sequence in record.sequences)]
    assert busy.value("time_to_first_token_seconds_count") == len(started)
    later = sum(max(0, sequence.emitted - 1) for record in records for sequence in record.sequences)
    assert busy.value("inter_token_seconds_count") == later


def test_queued_time_is_the_first_queueing_of_those_that_were_admitted(busy):
    first: dict[str, int] = {}
    for event in busy.events:
        if isinstance(event, Admitted) and not event.resumed:
            first[event.id] = event.at
    for on in ONS:
        waited = [
            sum(interval.ns for interval in record.intervals if interval.name == "queued" and interval.on == on)
            for record in busy.story.ended.values()
            if record.id in first
        ]
        assert busy.value("queued_seconds_count", on=on) == sum(ns > 0 for ns in waited)
        assert busy.value("queued_seconds_sum", on=on) == pytest.approx(sum(waited) / 1e9)
    assert busy.value("queued_seconds_count", on="turn") > 0 and busy.value("queued_seconds_count", on="space") > 0


def test_afterwards_nothing_is_live_and_no_seat_is_used(busy):
    assert busy.value("blocks", state="live") == 0
    assert sum(busy.value("blocks", state=state) for state in ("live", "reusable", "free")) == 18
    assert (busy.value("seats", state="used"), busy.value("seats", state="free")) == (0, 8)
    assert all(busy.value("requests", stage=str(stage)) == 0 for stage in Stage)


def test_waiting_requests_by_what_they_wait_for_sum_to_the_stage():
    world = Metered(blocks=20, block_tokens=4, seats=3, max_bypass=2)
    world.add("runs", 20, max_tokens=40)
    world.step()
    for id, prompt, n in (("space", 60, 1), ("seats", 3, 3), ("behind", 3, 3), ("fresh", 3, 1)):
        if id == "fresh":
            world.step()
        world.add(id, prompt, n=n, max_tokens=2, sampling=SAMPLED)
    by_on = {on: world.value("waiting_requests", on=on) for on in ONS}
    assert by_on == {"space": 1, "turn": 3, "input": 0}
    assert world.value("requests", stage="waiting") == sum(by_on.values()) == 4
    assert world.value("requests", stage="running") == 1
    assert (world.value("seats", state="used"), world.value("seats", state="free")) == (1, 2)
    assert world.value("blocks", state="live") == world.pool.live
    assert world.value("pool_reserved_bytes") == 1 << 20


def test_several_sequences_first_tokens_are_one_request_and_times_between_tokens_are_each_sequences_own():
    world = Metered()
    world.add("a", 10, n=3, max_tokens=4, sampling=SAMPLED)
    world.run()
    assert world.value("emitted_tokens_total") == 12
    assert world.value("time_to_first_token_seconds_count") == 1
    assert world.value("time_to_first_token_seconds_sum") == pytest.approx(0.0011)
    assert world.value("inter_token_seconds_count") == 9
    assert world.value("inter_token_seconds_sum") == pytest.approx(9 * 0.00103)


def test_tokens_of_one_step_share_the_time_since_the_last_one():
    box: list[Metered] = []

    def oracle(tokens: list[int]) -> list[int]:
        emitted = len(tokens) - 7
        return box[0].expected("a", 0, emitted + 2)[emitted:]

    world = Metered(drafter=oracle)
    box.append(world)
    world.add("a", 7, max_tokens=7)
    world.run()
    steps = len(world.steps())
    assert steps == 3  # 1, then 3 and 3
    assert world.value("inter_token_seconds_count") == 6
    assert world.value("inter_token_seconds_sum") == pytest.approx(2 * 0.00103)


def test_a_block_that_several_sequences_found_again_is_one_block():
    world = Metered(blocks=11, block_tokens=4, seats=8)
    world.add("old", 7, max_tokens=25)
    request = world.add("pair", list(range(100, 110)), n=2, max_tokens=10, sampling=SAMPLED)
    while not request.preemptions:
        assert world.step()
    world.run()
    event = next(event for event in world.events if isinstance(event, Admitted) and event.resumed)
    found = {block for table, n in zip(event.tables, event.inherited, strict=True) for block in table[: n // 4]}
    assert sum(isinstance(e, Preempted) for e in world.events) == 1
    assert world.value("regained_blocks_total") == len(found) < sum(event.inherited) // 4


def test_another_replicas_evictions_count_from_its_own_start():
    story = Story()
    metrics = Metrics(story)

    def tell(step: int, evictions: int) -> None:
        levels = Levels(0, 0, 9, 0, evictions)
        for event in (
            Stepped(
                at=0,
                step=step,
                model="fake",
                budget=1,
                members=(),
                grown=(),
                waits={},
                head=None,
                waiting=0,
                levels=levels,
            ),
            Committed(at=1, step=step, model="fake", outcomes=(), forks=(), levels=levels),
        ):
            metrics.fold(event)
            story.fold(event)

    tell(1, 5)
    tell(2, 7)
    tell(1, 2)  # a new replica
    assert sample(metrics, "prefix_evictions_total") == 9


def test_what_is_turned_away_before_it_has_a_record_is_counted_too():
    metrics = Metrics(Story(), ("fake",))
    metrics.refuse("fake", "queue")
    metrics.refuse("fake", "queue")
    assert sample(metrics, "requests_refused_total", reason="queue") == 2


def test_events_that_the_log_lost_are_counted_from_0_on() -> None:
    metrics = Metrics(Story())
    lost = "headway_event_log_lost_events_total"  # the server's, so of no model
    assert metrics.registry.get_sample_value(lost) == 0
    metrics.lose_logged()
    assert metrics.registry.get_sample_value(lost) == 1
