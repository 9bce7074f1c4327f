"""What is told of state tiers: records, sentences, metrics, the pool, `top`, the timeline and the doctor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.cli.screen import screen
from headway.core import events as ev
from headway.core.plan import Spent, StepPlan, StepResult
from headway.core.tiers import ReloadChoice
from headway.memory.tiers import Moved
from headway.story.diagnose.doctor import diagnose
from headway.story.diagnose.observations import Observations
from headway.story.reduce.board import Board
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from headway.story.sinks.timeline import Timeline
from headway.story.tell.explain import pool_view, request_view
from headway.story.tell.narration import Narrator
from headway.story.tell.sentences import tell
from test_story_metrics import sample
from test_tiers import evicted, measured, settled, tiered
from world import World, as_json

LONG = 64


def reloaded(**options: Any) -> World:
    """`again` found its prefix in a tier."""
    world = tiered(**options)
    world.add("again", evicted(world), max_tokens=3)
    world.run()
    return world


def said(world: World, id: str = "again") -> list[str]:
    return tell(request_view(world.story, world.story.record(id), world.clock.now_ns()))


def test_a_record_says_what_lay_in_tiers_what_came_back_and_by_which_numbers():
    world = reloaded(host_slots=3, disk_slots=40, disk_delay=1, staging=True)
    view = as_json(request_view(world.story, world.story.record("again"), world.clock.now_ns()))
    assert view["reload"]["reload"] is True and view["reload"]["loaded"] == {"disk": 7}
    assert (view["reload"]["host"], view["reload"]["disk"]) == (0, 7)
    assert "reload" not in as_json(request_view(world.story, world.story.record("first"), 0))
    assert "7 blocks of its prefix lay on disk; 7 reloaded: how fast they come was not measured yet." in said(world)
    assert any("queued for input, reload" in sentence for sentence in said(world))


def test_a_request_that_awaits_its_blocks_says_how_many_are_there():
    world = tiered(host_slots=3, disk_slots=40, disk_delay=4, staging=True)
    world.add("again", evicted(world), max_tokens=3)
    while not any(isinstance(event, ev.ReloadStarted) for event in world.events):
        world.step()
    assert said(world)[1].startswith("Waiting for input since step ")
    assert "0 of 7 blocks reloaded from a tier." in said(world)[1]
    assert 'on="input"' in Metrics(world.story).text().decode()
    for name, view in (("waiting", as_json(request_view(world.story, world.story.record("again"), 0))),):
        assert view["stage"] == name and view["verdict"]["rule"] == "reload" and view["verdict"]["need"] == 7


def test_where_computing_is_faster_the_sentence_says_by_how_much():
    world = tiered()
    tokens = evicted(world)
    world.model.pattern.tiering._measured = measured(prefill=1e6, copy=2_500_000)
    world.add("again", tokens, max_tokens=3)
    world.run()
    assert (
        "7 blocks of its prefix lay in host memory, and were computed again: they would come at 2.5 MB/s, and above "
        "8.0 MB/s only it pays."
    ) in said(world)
    assert "what follows position 0 lies in a tier, and computing it is faster than reloading" in " ".join(
        said(world)
    )


BLOCK_BYTES, POSITION_BYTES = 64, 8


class Machine:
    """Times of a world's machine: it computes a position in `position_ns`, copies a block in `copy_ns`, and reads one
    from disk in `read_ns`. All may change while it runs."""

    def __init__(self, position_ns: int, copy_ns: int, read_ns: int = 1, **options: Any) -> None:
        self.position_ns, self.copy_ns, self.read_ns = position_ns, copy_ns, read_ns
        self.world = tiered(**options)
        self.world.executor._cost_ns = lambda plan: self.position_ns * plan.cost
        self._run, self.world.executor.run = self.world.executor.run, self.run
        if self.world.disk is not None:
            self._finished, self.world.disk.finished = self.world.disk.finished, self.finished

    def run(self, plan: StepPlan) -> StepResult:
        result = self._run(plan)
        copies = (("offload", len(plan.offloads)), ("reload", len(plan.reloads)))
        spent = tuple(Spent(kind, (), blocks, blocks * self.copy_ns) for kind, blocks in copies if blocks)
        self.world.clock.advance(sum(each.ns for each in spent))
        return replace(result, spent=spent)

    def finished(self) -> list[Moved]:
        return [replace(moved, ns=self.read_ns) for moved in self._finished()]

    def told(self, id: str, tokens: list[int]) -> ReloadChoice:
        """The numbers in the record of a request that finds its prefix in a tier."""
        self.world.add(id, tokens, max_tokens=3)
        self.world.run()
        choice = self.world.story.record(id).choice
        assert choice is not None and choice.blocks == 7
        return choice

    def evict(self, by: str) -> None:
        self.world.add(by, self.world.pool.total * 8 - 1, max_tokens=1)
        self.world.run()
        settled(self.world)


@pytest.mark.parametrize(("position_ns", "copy_ns"), [(10_000, 3_000), (40_000, 3_000), (10_000, 96_000), (1, 3_000)])
def test_both_numbers_of_a_record_are_what_this_machine_does(position_ns, copy_ns):
    machine = Machine(position_ns, copy_ns)
    world, tokens = machine.world, [5 * i for i in range(LONG)]
    world.add("first", tokens, max_tokens=1)
    world.step()
    machine.evict("other")  # its first step copies what was computed, too
    assert [len(step.members) for step in world.steps()[:2]] == [1, 1] and len(world.tiers.host) > 8
    choice = machine.told("again", tokens)
    assert choice.break_even == pytest.approx(POSITION_BYTES * 1e9 / position_ns)
    assert choice.bandwidth == pytest.approx(BLOCK_BYTES * 1e9 / copy_ns)
    assert choice.reload is (8 * position_ns >= copy_ns), "a block has eight positions"


def test_a_machine_that_changes_while_it_runs_is_told_as_it_is_a_minute_later():
    machine = Machine(10_000, 3_000, read_ns=50_000, disk_slots=40, host_slots=3, staging=True)
    tokens = evicted(machine.world)
    assert machine.told("first reload", tokens).bandwidth is None, "nothing was read from disk before"
    machine.evict("other 2")
    first = machine.told("again", tokens)
    assert first.bandwidth == pytest.approx(BLOCK_BYTES * 1e9 / (3_000 + 50_000))
    assert first.break_even == pytest.approx(POSITION_BYTES * 1e9 / 10_000) and first.reload
    machine.position_ns, machine.copy_ns, machine.read_ns = 2_500, 6_000, 200_000
    machine.world.clock.advance(61 * 10**9)
    machine.evict("other 3")
    assert machine.told("reads again", tokens).bandwidth is None, "what was read a minute ago decides nothing"
    machine.evict("other 4")
    second = machine.told("once more", tokens)
    assert second.bandwidth == pytest.approx(BLOCK_BYTES * 1e9 / (6_000 + 200_000))
    assert second.break_even == pytest.approx(POSITION_BYTES * 1e9 / 2_500) and not second.reload


def test_the_pool_the_metrics_and_top_say_how_much_lies_where():
    world = reloaded(disk_slots=30)
    tiers = as_json(pool_view(world.story))["tiers"]
    held = len(world.tiers.host), len(world.tiers.disk)
    assert tiers == [
        {"name": "host", "blocks": held[0], "bytes": 8 * held[0], "total": 40},
        {"name": "disk", "blocks": held[1], "bytes": 8 * held[1], "total": 30},
    ]
    board, narrator, story = Board(), Narrator(), Story()
    told = Metrics(story, ["fake"])
    lines = []
    for number, event in enumerate(world.events, 1):
        told.fold(event)
        story.fold(event)
        board.fold(number, event)
        lines += narrator.tell(event)
    offloaded = [sample(told, "offloaded_blocks_total", tier=tier) for tier in ("host", "disk")]
    assert offloaded[0] == offloaded[1] > 8
    assert sample(told, "reloaded_blocks_total", tier="host") == 7
    assert sample(told, "reloaded_blocks_total", tier="disk") == 0
    view = board.view(world.clock.now_ns(), steps=9, requests=9, ended=9)
    drawn = "\n".join(map(str, screen(view, 120, 40, "here", "")))
    assert f"tiers  host {held[0]} of 40 blocks · disk {held[1]} of 30 blocks" in drawn
    assert view.counters["reloaded_blocks"] == 7 and "offloaded, 7 reloaded" in drawn
    assert "again gets 9 blocks; 7 of them are reloaded from tiers first." in lines
    assert "again has 7 blocks back from tiers." in lines


def test_a_trace_shows_reloads_and_how_much_lies_in_each_tier():
    world = reloaded(disk_slots=40)
    timeline = Timeline(delivers=False)
    for event in world.events:
        timeline.fold(event)
    events = timeline.trace(world.clock.now_ns())["traceEvents"]
    marks = {event["name"]: event["args"] for event in events if event["ph"] == "i"}
    assert marks["reload"]["blocks"] == marks["reloaded"]["blocks"] == 7
    assert [event["args"] for event in events if event["name"] == "tiers"][-1].keys() == {"host", "disk"}


# -- the doctor ---------------------------------------------------------------------------------------------------


def found(events: list[ev.AnyEvent]) -> dict[str, Any]:
    return {finding.name: finding for finding in diagnose(Observations(model="fake").fold_all(events))}


def test_the_doctor_finds_a_disk_that_takes_nothing():
    world = tiered(disk_slots=40, staging=True, host_slots=8)
    world.disk.wrong = ["write"] * 3
    evicted(world)
    finding = found(world.events)["tier_faults"]
    assert finding.says == "Of the disk tier 3 slots could not be written; the last: the disk is wrong."
    assert finding.next.startswith("make room on the disk") and finding.evidence == {"disk_write": 3}
    assert "tier_faults" not in found(reloaded(disk_slots=40).events)


def test_the_doctor_finds_blocks_that_are_not_what_was_written():
    world = tiered(disk_slots=40, staging=True, host_slots=8)
    tokens = evicted(world)
    world.disk.wrong = [None, "checksum"]
    world.add("again", tokens, max_tokens=3)
    world.run()
    settled(world)
    finding = found(world.events)["tier_faults"]
    assert "1 slot did not hold what was written to them" in finding.says and finding.next.startswith("look after")


def test_the_doctor_finds_a_tier_that_is_slower_than_computing():
    world = tiered()
    tokens = evicted(world)
    for name in "abc":
        world.model.pattern.tiering._measured = measured(prefill=1e6, copy=1 << 20)
        world.add(name, [*tokens, ord(name)], max_tokens=1, cache_salt="")
        world.run()
        world.add("other" + name, 95, max_tokens=1)
        world.run()
    finding = found(world.events)["slow_tier"]
    assert finding.evidence["declined"] == 3 and finding.next.startswith("leave out --host-tier")
    assert "they would come at 1.0 MiB/s" in finding.says
    assert "slow_tier" not in found(reloaded().events)


def test_the_doctor_finds_a_tier_too_small_for_what_comes_again():
    world = tiered(host_slots=4)
    for round in range(3):
        for name in "abcd":
            world.add(f"{name}{round}", [ord(name)] * LONG, max_tokens=1)
            world.run()
            settled(world)
    finding = found(world.events)["small_tier"]
    assert finding.evidence["reloaded"] == 0 and finding.evidence["slots"] == 4
    assert finding.next.startswith("raise --host-tier, to 0.1 KiB for a start")
    assert "small_tier" not in found(reloaded().events)
