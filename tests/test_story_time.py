"""Where the time went: every nanosecond of every life has exactly one name."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headway.core.events import (
    Admitted,
    AnyEvent,
    Arrived,
    Cancelled,
    Committed,
    Delivered,
    Failed,
    Finished,
    Preempted,
    Received,
    Refused,
    Stepped,
)
from headway.core.request import Stage
from headway.core.verdict import RULES
from headway.story.reduce.record import INTERVALS, Interval, Record
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import request_view, timing
from world import SAMPLED, World, as_json

ENDINGS = (Finished, Cancelled, Failed)
Named = tuple[str, str | None, str | None, int]


def named(intervals: list[Interval]) -> list[Named]:
    return [(interval.name, interval.on, interval.rule, interval.ns) for interval in intervals]


def plain_life(events: list[AnyEvent], id: str) -> list[Named]:
    """A life from the events alone, as plainly as the design says it: step k owns the time to the next step's start;
    for whoever ends, to the end."""
    marks: list[tuple[int, str, str | None, str | None]] = []  # from when on, and what
    alive, running, put_out, end = False, False, False, 0
    for event in events:
        if isinstance(event, Arrived) and event.id == id:
            alive = True
            marks.append((event.at, "queued", "turn", "order"))
        elif isinstance(event, Admitted) and event.id == id:
            running, put_out = True, False
        elif isinstance(event, Preempted) and event.id == id:
            running, put_out = False, True
        elif isinstance(event, ENDINGS) and event.id == id:
            alive, end = False, event.at
        elif isinstance(event, Stepped) and alive:
            doings = {member.doing for member in event.members if member.id == id}
            if doings:
                name = next(doing for doing in ("recompute", "prefill", "decode") if doing in doings)
                marks.append((event.at, name, None, None))
            else:
                name = "stalled" if running else "preempted" if put_out else "queued"
                wait = event.waits.get(id)
                marks.append((event.at, name, *((wait.on, wait.rule) if wait else ("turn", "order"))))
    assert not alive and marks
    life: list[Named] = []
    for (since, *what), (until, *_) in pairwise([*marks, (end, "", None, None)]):
        if until == since:
            continue
        if life and list(life[-1][:3]) == what:
            until += life.pop()[3]
        life.append((*what, until - since))
    return life


def mixed_world(count: int) -> tuple[World, Story]:
    """`count` requests of every kind, cancelled at any point or failing with their step, on a clock that moves by odd
    amounts; seen by a story of the engine's and by one that also knows reception and delivery."""
    rng = random.Random(7)
    world = World(
        blocks=24, block_tokens=4, seats=10, step_tokens=24, max_bypass=3, policy="priority", vocab=11,
        drafter=lambda tokens: tokens[-1:] * rng.randint(0, 2),
    )  # fmt: skip
    front = Story(delivers=True)

    def emit(event: AnyEvent) -> None:
        world._emit(event)
        front.fold(event)

    world.engine.emit = emit
    ended: list[str] = []
    told = 0

    def pass_time() -> None:
        world.clock.advance(rng.randint(0, 300_001))

    def deliver() -> None:
        nonlocal told
        ended.extend(event.id for event in world.events[told:] if isinstance(event, (*ENDINGS, Refused)))
        told = len(world.events)
        while ended and rng.random() < 0.7:
            pass_time()
            front.fold(Delivered(at=world.clock.now_ns(), id=ended.pop(0)))

    def arrive(id: str) -> None:
        front.fold(Received(at=world.clock.now_ns(), id=id))
        pass_time()
        world.add(id, [rng.randint(0, 3) for _ in range(rng.choice((2, 9, 17, 40)))], n=rng.choice((1, 1, 1, 2, 3)),
                  max_tokens=rng.randint(1, 12), priority=rng.randint(0, 3), stop_ids=(9,),
                  sampling=SAMPLED, cache_salt=rng.choice(("", "s")))  # fmt: skip

    def maybe_cancel(chance: float) -> None:
        alive = [request.id for request in world.engine.requests.values() if not request.ended]
        if alive and rng.random() < chance:
            world.engine.cancel(rng.choice(alive))

    arrived = 0
    while world.engine.requests or arrived < count:
        for _ in range(min(rng.randint(0, 3), count - arrived)):
            arrive(f"r{arrived}")
            arrived += 1
        maybe_cancel(0.05)
        if plan := world.engine.plan():
            pass_time()
            maybe_cancel(0.1)
            if rng.random() < 0.01:
                world.engine.abort("the machine broke")
                world.note([])
            else:
                result = world.executor.run(plan)
                maybe_cancel(0.05)
                world.note(world.engine.commit(result))
        pass_time()
        deliver()
    while ended:
        deliver()
    return world, front


@pytest.fixture(scope="module")
def mixed() -> tuple[World, Story]:
    return mixed_world(1000)


def test_the_mix_holds_every_kind_of_life(mixed):
    world, _ = mixed
    records = list(world.story.ended.values())
    assert len(records) == 1000
    assert {record.stage for record in records} == {Stage.FINISHED, Stage.CANCELLED, Stage.FAILED}
    assert sum(record.preemptions > 0 for record in records) > 20
    names = {interval.name for record in records for interval in record.intervals}
    assert names == {"queued", "prefill", "decode", "preempted", "recompute"}
    cancelled = [record for record in records if record.stage is Stage.CANCELLED]
    assert any(record.miss is None for record in cancelled) and any(record.miss is not None for record in cancelled)
    rules = {interval.rule for record in records for interval in record.intervals} - {None}
    assert rules == {"blocks", "seats", "budget", "order"}


def test_every_lifes_intervals_sum_to_its_elapsed_time_without_remainder(mixed):
    for story in mixed_stories(mixed):
        for record in story.ended.values():
            assert sum(interval.ns for interval in record.intervals) == record.elapsed_ns(0) == elapsed(record)


def mixed_stories(mixed: tuple[World, Story]) -> tuple[Story, Story]:
    world, front = mixed
    assert not world.story.live and not front.live
    return world.story, front


def elapsed(record: Record) -> int:
    assert record.ended_at is not None
    return record.ended_at - record.received_at


def test_every_interval_has_a_name_of_the_closed_list_and_a_wait_its_rule(mixed):
    for story in mixed_stories(mixed):
        for record in story.ended.values():
            for interval in record.intervals:
                assert interval.name in INTERVALS and interval.ns > 0
                if interval.name in ("queued", "preempted", "stalled"):
                    assert RULES[interval.rule] == interval.on
                else:
                    assert interval.on is None and interval.rule is None
            assert all(one.key != next.key for one, next in pairwise(record.intervals))


def test_every_life_is_the_one_that_the_events_tell_plainly(mixed):
    world, front = mixed
    begins = {event.id: i for i, event in enumerate(world.events) if isinstance(event, Arrived)}
    ends = {event.id: i for i, event in enumerate(world.events) if isinstance(event, ENDINGS)}
    for id, record in world.story.ended.items():
        life = plain_life(world.events[begins[id] : ends[id] + 1], id)
        assert named(record.intervals) == life
        whole = named(front.ended[id].intervals)
        assert [i for i in whole if i[0] not in ("received", "delivery")] == life


def test_reception_and_delivery_belong_to_the_request_too(mixed):
    world, front = mixed
    arrived = {event.id: event.at for event in world.events if isinstance(event, Arrived)}
    over = {event.id: event.at for event in world.events if isinstance(event, ENDINGS)}
    for id, record in front.ended.items():
        first = [i.ns for i in record.intervals if i.name == "received"]
        last = [i.ns for i in record.intervals if i.name == "delivery"]
        assert sum(first) == arrived[id] - record.received_at
        assert sum(last) == record.ended_at - over[id]
        if first:
            assert record.intervals[0].name == "received"
        if last:
            assert record.intervals[-1].name == "delivery"


# -- single lives ---------------------------------------------------------------------------------------------

STEP, POSITION, MS = 1_000_000, 10_000, 1_000_000  # what the fake executor's step and position take, in ns


def test_a_step_owns_the_time_from_its_start_to_the_next_ones_start():
    world = World(seats=4, step_tokens=8)
    world.clock.advance(5 * MS)
    world.add("a", 12, max_tokens=2)
    world.clock.advance(2 * MS)
    world.step()
    world.clock.advance(3 * MS)  # the loop does something else: still the first step's time
    world.step()
    world.step()
    assert named(world.story.record("a").intervals) == [
        ("queued", "turn", "order", 2 * MS),
        ("prefill", None, None, STEP + 8 * POSITION + 3 * MS + STEP + 4 * POSITION),
        ("decode", None, None, STEP + POSITION),
    ]


def test_a_request_that_a_step_finishes_is_charged_to_the_commit_and_not_to_the_next_step():
    world = World()
    world.add("a", 10, max_tokens=1)
    world.add("b", 10, max_tokens=2)
    world.step()
    world.clock.advance(7 * MS)
    world.step()
    a, b = world.story.record("a"), world.story.record("b")
    assert named(a.intervals) == [("prefill", None, None, STEP + 20 * POSITION)]
    assert named(b.intervals)[0] == ("prefill", None, None, STEP + 20 * POSITION + 7 * MS)


def test_the_open_interval_runs_to_now_and_closes_nothing():
    world = World()
    world.add("a", 10, max_tokens=3)
    record = world.story.record("a")
    assert named(record.life(0)) == [] and record.elapsed_ns(0) == 0
    assert named(record.life(4)) == [("queued", "turn", "order", 4)]
    assert named(record.life(9)) == [("queued", "turn", "order", 9)] and record.intervals == []
    world.step()
    now = world.clock.now_ns()
    assert named(record.life(now + 5)) == [("prefill", None, None, now + 5)]
    assert as_json(request_view(world.story, record, now + 5))["intervals"] == [
        {"name": "prefill", "ms": (now + 5) / 1e6}
    ]


def test_a_wait_for_another_reason_is_another_interval_and_the_same_reason_is_the_same_one():
    world = World(blocks=10, block_tokens=4, seats=2)
    world.add("short", 3, max_tokens=3)
    world.add("long", 20, max_tokens=6)
    world.add("waits", 16, max_tokens=1)
    world.run()
    two_prompts, two_decodes, one_decode = STEP + 23 * POSITION, STEP + 2 * POSITION, STEP + POSITION
    assert named(world.story.record("waits").intervals) == [
        ("queued", "turn", "seats", two_prompts + 2 * two_decodes),
        ("queued", "space", "blocks", 3 * one_decode),
        ("prefill", None, None, STEP + 16 * POSITION),
    ]


def test_after_a_preemption_comes_preempted_then_recompute_then_the_usual():
    world = World(blocks=8, block_tokens=4, prefix_cache=False)
    world.add("old", 14, max_tokens=8)
    world.add("new", 11, max_tokens=9)
    world.run()
    record = world.story.record("new")
    assert record.preemptions == 1
    assert [name for name, *_ in named(record.intervals)] == ["prefill", "decode", "preempted", "recompute", "decode"]
    preempted = record.intervals[2]
    assert (preempted.on, preempted.rule) == ("space", "blocks")


def test_without_a_front_a_life_ends_with_its_stage_and_with_one_at_the_last_byte():
    for delivers in (False, True):
        story = Story(delivers=delivers)
        story.fold(Received(at=10, id="a"))
        story.fold(Arrived(at=15, id="a", pattern="text", prompt=4, n=1, max_tokens=3, priority=0, order=(1,)))
        story.fold(Failed(at=40, id="a", message="the replica ended"))
        assert ("a" in story.live) is delivers
        record = story.record("a")
        assert record.stage is Stage.FAILED
        story.fold(Delivered(at=70, id="a"))
        story.fold(Delivered(at=90, id="a"))
        life = [("received", None, None, 5), ("queued", "turn", "order", 25)]
        assert named(record.life(1000)) == life + [("delivery", None, None, 30)] * delivers
        assert "a" in story.ended


def test_a_delivery_that_is_told_before_the_end_changes_nothing():
    """The client left: its last byte was handed over, but the request still runs until the replica hears of it."""
    story = Story(delivers=True)
    story.fold(Received(at=10, id="a"))
    story.fold(Delivered(at=20, id="a"))
    assert story.live["a"].stage is Stage.RECEIVED


def test_events_that_are_told_late_never_make_time_run_backwards():
    """Two processes read one clock, but the front may hear of an arrival only after it was asked for the record."""
    story = Story(delivers=True)
    story.fold(Received(at=100, id="a"))
    story.fold(Arrived(at=90, id="a", pattern="text", prompt=4, n=1, max_tokens=3, priority=0, order=(1,)))
    record = story.record("a")
    assert sum(interval.ns for interval in record.life(95)) == record.elapsed_ns(95) == 0
    assert sum(interval.ns for interval in record.life(130)) == record.elapsed_ns(130) == 30


def test_the_timing_header_adds_up_the_names_in_order_of_their_first_time():
    world = World(blocks=8, block_tokens=4, prefix_cache=False)
    world.add("old", 14, max_tokens=8)
    world.add("new", 11, max_tokens=9)
    world.run()
    record = world.story.record("new")
    parts = [part.split(";dur=") for part in timing(record, 0).split(", ")]
    assert [name for name, _ in parts] == ["prefill", "decode", "preempted", "recompute"]
    for name, ms in parts:
        assert float(ms) == pytest.approx(sum(i.ns for i in record.intervals if i.name == name) / 1e6, abs=0.051)


def test_milliseconds_keep_six_decimals():
    world = World()
    world.clock.advance(1)
    world.add("a", 10, max_tokens=3)
    view = as_json(request_view(world.story, world.story.record("a"), 1 + 1_234_567))
    assert view["elapsed_ms"] == 1.234567
    assert view["intervals"] == [{"name": "queued", "on": "turn", "rule": "order", "ms": 1.234567}]


def test_a_failed_step_ends_the_life_when_it_fails():
    world = World()
    world.add("a", 10, max_tokens=3)
    world.engine.plan()
    world.clock.advance(3 * MS)
    world.engine.abort("the machine broke")
    assert named(world.story.record("a").intervals) == [("prefill", None, None, 3 * MS)]
    assert [type(event) for event in world.events[-2:]] == [Committed, Failed]
