"""The timeline: a trace in the format that Perfetto reads, that says what records and events say."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fake_server import FakeServer, fake_serving
from headway.cli import main
from headway.core.events import Cancelled, Failed, Preempted, Refused, Stepped
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.metrics import Metrics
from headway.story.sinks.ring import EventRing
from headway.story.sinks.timeline import ENGINE, REQUESTS, STEPS_TRACK, Timeline, placed_intervals
from headway.story.tell.explain import request_view
from serving import until
from test_story_log import busy_world
from test_story_metrics import sample
from test_story_time import mixed_world
from world import World, as_json

#: What the format wants besides ph, name, pid, tid and (names apart) ts.
REQUIRED = {
    "X": {"dur", "args"},
    "C": {"args"},
    "i": {"s"},
    "s": {"id", "cat"},
    "f": {"id", "cat", "bp"},
    "M": {"args"},
}
Trace = dict[str, Any]


def validate(trace: Trace) -> None:
    """The rules of the format, and that slices of one track stand side by side."""
    json.dumps(trace, allow_nan=False)
    events = trace["traceEvents"]
    flows: dict[int, list[str]] = defaultdict(list)
    tracks: dict[tuple[int, int], list[Trace]] = defaultdict(list)
    for event in events:
        assert REQUIRED[event["ph"]] | {"name", "pid", "tid"} <= event.keys()
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        if event["ph"] in "sf":
            flows[event["id"]].append(event["ph"])
            assert covering(tracks[event["pid"], event["tid"]], event["ts"])
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    assert all(ends == ["s", "f"] for ends in flows.values())
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert tracks.keys() <= named and len(named) == sum(e["name"] == "thread_name" for e in events)
    for slices in tracks.values():
        for one, next in pairwise(slices):
            assert one["ts"] + one["dur"] <= next["ts"] + 1e-6


def covering(slices: list[Trace], ts: float) -> list[Trace]:
    return [part for part in slices if part["ts"] <= ts <= part["ts"] + part["dur"]]


def told(world: World) -> Timeline:
    timeline = Timeline(model="tiny", delivers=False)
    for event in world.events:
        timeline.fold(event)
    return timeline


def of_kind(trace: Trace, ph: str, name: str | None = None) -> list[Trace]:
    return [e for e in trace["traceEvents"] if e["ph"] == ph and name in (None, e["name"])]


def tracks(trace: Trace) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in of_kind(trace, "M", "thread_name") if e["pid"] == REQUESTS}


def slices_of(trace: Trace, track: int) -> list[Trace]:
    return [part for part in of_kind(trace, "X") if (part["pid"], part["tid"]) == (REQUESTS, track)]


@pytest.fixture(scope="module")
def mixed() -> tuple[World, Trace]:
    """Every kind of life, its end and its waits, on a clock that moves by odd amounts."""
    world, _ = mixed_world(1000)
    return world, told(world).trace(world.clock.now_ns())


def test_a_trace_of_every_kind_of_life_keeps_the_rules_of_the_format(mixed):
    world, trace = mixed
    validate(trace)
    kinds = (Preempted, Cancelled, Failed)
    assert all(any(isinstance(event, kind) for event in world.events) for kind in kinds)
    assert {event["ph"] for event in trace["traceEvents"]} == set(REQUIRED)


def test_a_requests_slices_are_its_intervals_and_sum_to_its_elapsed_time(mixed):
    world, trace = mixed
    now = world.clock.now_ns()
    names = tracks(trace)
    assert list(names.values()) == list(dict.fromkeys(names.values())) and len(names) == 1000
    for track, id in names.items():
        view = as_json(request_view(world.story, world.story.record(id), now))
        slices = slices_of(trace, track)
        said = [{"name": s["name"], **s["args"], "ms": pytest.approx(s["dur"] / 1000, abs=1e-6)} for s in slices]
        assert [{"id": id, **interval} for interval in view["intervals"]] == said
        assert sum(part["dur"] for part in slices) / 1000 == pytest.approx(view["elapsed_ms"], abs=0.1)


def test_a_step_is_one_slice_with_its_positions_and_its_members(mixed):
    world, trace = mixed
    steps = world.steps()
    slices = [part for part in of_kind(trace, "X") if (part["pid"], part["tid"]) == (ENGINE, STEPS_TRACK)]
    assert [part["name"] for part in slices] == [f"step {step.step}" for step in steps]
    for step, part in zip(steps, slices, strict=True):
        args, spent = part["args"], sum(member.positions for member in step.members)
        assert sum(args["positions"].values()) == spent == args["budget"] - args["left"]
        assert sum(count for doings in args["members"].values() for count in doings.values()) == spent
        assert args["members"].keys() == {member.id for member in step.members}
    failed = {event.at for event in world.events if isinstance(event, Failed)}
    assert sum("failed" in part["args"] for part in slices) == len(failed) > 0


def test_positions_by_kind_sum_to_what_the_records_count(mixed):
    world, trace = mixed
    sums = dict.fromkeys(("prefilled", "decoded", "recomputed", "rejected", "evaluated"), 0)
    for part in of_kind(trace, "X"):
        if part["pid"] == ENGINE and "failed" not in part["args"]:
            for kind, count in part["args"]["positions"].items():
                sums[kind] += count
    records = [sequence.counts for record in world.story.ended.values() for sequence in record.sequences]
    assert sums.pop("evaluated") == 0, "only encoders evaluate without a sequence"
    assert sums == {kind: sum(getattr(counts, kind) for counts in records) for kind in sums}
    assert min(sums.values()) > 0


def test_metrics_records_and_steps_count_the_same_positions(mixed):
    """A thousand lives, told three times from the same events."""
    world, trace = mixed
    story = Story()
    metrics = Metrics(story)
    for event in world.events:
        metrics.fold(event)
        story.fold(event)
    counts = [sequence.counts for record in story.ended.values() for sequence in record.sequences]
    parts = [part["args"] for part in of_kind(trace, "X") if part["pid"] == ENGINE and "failed" not in part["args"]]
    for kind in ("prefilled", "decoded", "recomputed", "rejected"):
        counted = sample(metrics, "positions_total", kind=kind)
        assert counted == sum(getattr(count, kind) for count in counts) > 0
        assert counted == sum(args["positions"].get(kind, 0) for args in parts)
    ended = {reason: sample(metrics, "requests_finished_total", reason=reason) for reason in ("cancelled", "failed")}
    for stage, counted in ended.items():
        assert counted == sum(record.stage == stage for record in story.ended.values()) > 0
    assert sample(metrics, "preemptions_total") == sum(record.preemptions for record in story.ended.values()) > 0


def test_the_counters_are_the_levels_that_the_events_tell(mixed):
    world, trace = mixed
    origin = int(trace["otherData"]["began_at_ns"])
    said = {name: {e["ts"]: e["args"] for e in of_kind(trace, "C", name)} for name in ("blocks", "seats", "waiting")}
    last: dict[str, Any] = {}
    final = {event.at: event for event in world.events if hasattr(event, "levels") and event.levels}
    for at, event in final.items():
        ts, levels = (at - origin) / 1000, event.levels
        last = {name: values.get(ts, last.get(name)) for name, values in said.items()}
        assert last["blocks"] == {"live": levels.live, "reusable": levels.reusable, "free": levels.free}
        assert last["seats"] == {"used": levels.seats_used}
        if isinstance(event, Stepped):
            assert last["waiting"] == {"requests": event.waiting}


def test_what_happened_at_one_moment_is_marked_there(mixed):
    world, trace = mixed
    names = tracks(trace)
    origin = int(trace["otherData"]["began_at_ns"])
    kinds = {Cancelled: "cancelled", Failed: "failed", Preempted: "preempted", Refused: "refused"}
    happened = [(kinds[type(e)], e.id, (e.at - origin) / 1000) for e in world.events if type(e) in kinds]
    marked = [(e["name"], names[e["tid"]], e["ts"]) for e in of_kind(trace, "i") if e["name"] in kinds.values()]
    assert sorted(marked) == sorted(happened)
    evicted = of_kind(trace, "i", "evicted")
    assert sum(event["args"]["blocks"] for event in evicted) == world.pool.evictions > 0


# -- single lives ---------------------------------------------------------------------------------------------


def preempted_world() -> World:
    world = World(blocks=8, block_tokens=4, prefix_cache=False)
    world.add("old", 14, max_tokens=8)
    world.add("new", 11, max_tokens=9)
    return world


def test_a_flow_leads_from_a_preemption_to_its_recompute():
    world = preempted_world()
    world.run()
    trace = told(world).trace(world.clock.now_ns())
    validate(trace)
    (track,) = [track for track, id in tracks(trace).items() if id == "new"]
    slices = {part["name"]: part for part in slices_of(trace, track)}
    (start,), (finish,) = of_kind(trace, "s"), of_kind(trace, "f")
    assert (start["tid"], finish["tid"], start["id"]) == (track, track, finish["id"])
    assert start["ts"] == slices["preempted"]["ts"] and finish["ts"] == slices["recompute"]["ts"]
    assert slices["preempted"]["args"] == {"id": "new", "on": "space", "rule": "blocks"}
    (mark,) = of_kind(trace, "i", "preempted")
    assert mark["args"]["by"] == "old" and mark["args"]["lost_positions"] > 0


def test_a_preemption_from_which_nobody_comes_back_has_no_flow():
    world = preempted_world()
    while not any(isinstance(event, Preempted) for event in world.events):
        world.step()
    open_trace = told(world).trace(world.clock.now_ns() + 5_000_000)
    validate(open_trace)
    assert not of_kind(open_trace, "s")
    waits = next(part for part in of_kind(open_trace, "X") if part["name"] == "preempted")
    assert waits["dur"] > 5_000  # it is open, and runs to now
    world.engine.cancel("new", "client")
    world.run()
    trace = told(world).trace(world.clock.now_ns())
    validate(trace)
    assert not of_kind(trace, "s") and of_kind(trace, "i", "cancelled")[0]["args"] == {"by": "client"}


def test_an_id_that_comes_back_is_another_track():
    world = World()
    for _ in range(2):
        world.add("again", 5, max_tokens=2)
        world.run()
    timeline = told(world)
    trace = timeline.trace(world.clock.now_ns())
    validate(trace)
    assert list(tracks(trace).values()) == ["again", "again"] and len(timeline.named("again")) == 2
    first, second = slices_of(trace, 1), slices_of(trace, 2)
    assert first[-1]["ts"] + first[-1]["dur"] <= second[0]["ts"] + 1e-6


def test_chosen_requests_bring_the_steps_and_levels_of_their_time_alone():
    world = World()
    for id in ("before", "list~0", "list~1", "after"):
        world.add(id, 5, max_tokens=3)
        world.run()
        world.clock.advance(9_000_000)
    timeline, now = told(world), world.clock.now_ns()
    chosen = timeline.named("list")
    trace = timeline.trace(now, chosen)
    validate(trace)
    assert list(tracks(trace).values()) == ["list~0", "list~1"]
    begin, end = chosen[0].received_at, chosen[1].ended_at
    inside = [f"step {step.step}" for step in world.steps() if begin <= step.at < end]
    assert [part["name"] for part in of_kind(trace, "X") if part["pid"] == ENGINE] == inside
    assert len(inside) == len(world.steps()) // 2
    assert min(e["ts"] for e in of_kind(trace, "C")) == 0  # the levels that stood when it began
    assert max(e["ts"] for e in trace["traceEvents"] if e["ph"] != "M") <= (end - begin) / 1000


def test_the_stretches_of_a_life_stand_end_to_end():
    world = preempted_world()
    world.run()
    record = world.story.record("new")
    parts = placed_intervals(record, 0)
    assert all(one.end == next.begin for one, next in pairwise(parts))
    assert (parts[0].begin, parts[-1].end) == (record.received_at, record.ended_at)


def test_without_any_event_there_is_an_empty_trace():
    trace = Timeline().trace(0)
    validate(trace)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M"}


# -- the command ----------------------------------------------------------------------------------------------


def test_a_log_becomes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path / "events", epoch="e", model="tiny")
    world = busy_world(log.append)
    words = ["timeline", "--log", str(tmp_path / "events")]
    assert main([*words, "-o", str(tmp_path / "trace.json")]) == 0
    told = capsys.readouterr().err
    assert f"{tmp_path / 'trace.json'}: open it at https://ui.perfetto.dev" in told
    trace = json.loads((tmp_path / "trace.json").read_text())
    validate(trace)
    assert sorted(tracks(trace).values()) == sorted([*world.story.ended, *world.story.live])
    assert {"engine tiny", "requests"} == {e["args"]["name"] for e in of_kind(trace, "M", "process_name")}
    assert {"cancelled", "failed", "refused", "preempted"} <= {e["name"] for e in of_kind(trace, "i")}
    assert main([*words, "cmpl-a", "a", "-o", "-"]) == 0
    assert list(tracks(json.loads(capsys.readouterr().out)).values()) == ["a"]


def test_what_cannot_be_written_or_told_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busy_world(EventLog(tmp_path / "events", epoch="e", model="tiny").append)
    words = ["timeline", "--log", str(tmp_path / "events")]
    assert main([*words, "nobody"]) == 2
    assert capsys.readouterr().err == f"headway: {tmp_path / 'events'} has no request 'nobody'\n"
    assert main([*words, "-o", str(tmp_path / "no" / "trace")]) == 2
    assert "headway: --output: " in (told := capsys.readouterr().err) and told.count("\n") == 1


@pytest.fixture(scope="module")
def server(smollm2):
    with fake_serving(smollm2, blocks=64) as server:
        yield server


def test_a_running_servers_trace_says_what_its_records_say(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for id in ("one", "two"):
        assert server.complete("Hello", id=id, max_tokens=5).status_code == 200
    until(
        lambda: server.record("two")["intervals"][-1]["name"] == "delivery" and "two" not in server.front.story.live
    )
    assert main(["timeline", "--url", server.url, "-o", str(tmp_path / "trace")]) == 0
    trace = json.loads((tmp_path / "trace").read_text())
    validate(trace)
    for track, id in tracks(trace).items():
        view = server.record(id)
        assert [s["name"] for s in slices_of(trace, track)] == [interval["name"] for interval in view["intervals"]]
        elapsed_ms = sum(part["dur"] for part in slices_of(trace, track)) / 1000
        assert elapsed_ms == pytest.approx(view["elapsed_ms"], abs=0.1)
    assert list(tracks(trace).values()) == ["one", "two"]


def test_a_ring_that_forgot_how_a_request_began_says_so(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.front._chronicle._ring = EventRing("small", size=20)
    server.complete("Hello", id="long", max_tokens=60)
    assert main(["timeline", "--url", server.url, "-o", str(tmp_path / "trace")]) == 0
    validate(json.loads((tmp_path / "trace").read_text()))
    assert "1 more have no track: they arrived before the events that are kept (from number" in (
        capsys.readouterr().err
    )
