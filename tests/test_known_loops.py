"""Loops that are known from other engines, each built on the fake executor, found, and called by its name; beside
each a twin that looks like it and is none."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest
from starlette.requests import Request as HttpRequest

from headway.api.routes.models import health
from headway.core.errors import StalledError
from headway.core.events import NoProgress, Offloaded
from headway.core.tiers import Backlog
from headway.front.refusals import Refusal
from headway.policy.progress import APART_NS, TIMES, Writes
from headway.story.reduce.reducer import Story
from served import MS, Served, one_by_one, served


def told(world: Served) -> list[NoProgress]:
    return [event for event in world.events if isinstance(event, NoProgress)]


def asked_health(story: Story) -> dict:
    front = SimpleNamespace(stuck_s=lambda: 0.0, state="ready", failure="", story=story, log=None)
    app = SimpleNamespace(state=SimpleNamespace(front=front))
    return json.loads(asyncio.run(health(HttpRequest({"type": "http", "app": app}))).body)


def is_well(world: Served) -> bool:
    try:
        return bool(asked_health(world.story)["status"] == "ok")
    except Refusal as refusal:
        assert (refusal.status, refusal.code) == (503, "no_progress")
        return False


# -- a transfer that goes on for ever and brings nothing ------------------------------------------------------


HANGS = 1 << 30


def reloading(delay: int) -> Served:
    """`slow` waits for blocks from disk, which answers after `delay` questions; `other` runs."""
    prompt = [5 * i % 89 for i in range(96)]
    world = Served(blocks=26, host_slots=2, disk_slots=40, staging=True)
    for id, tokens in (("first", [*prompt, 1]), ("filler", 400)):
        world.add(id, tokens, max_tokens=1)
        while world.engine.requests or world.engine.awaiting or not world.engine.idle:
            world.step()
    world.disk.delay = delay
    world.add("slow", [*prompt, 2], max_tokens=4)
    world.add("other", 30, max_tokens=60)
    world.step()
    assert world.wait("slow").rule == "reload"
    return world


def pass_time(world: Served, seconds: int) -> None:
    """Others take steps meanwhile, one a second."""
    for _ in range(seconds):
        world.clock.advance(1000 * MS)
        world.step()


def test_a_transfer_that_brings_nothing_for_a_minute_is_no_progress_while_others_run():
    world = reloading(HANGS)
    pass_time(world, 30)
    assert not told(world) and is_well(world)
    pass_time(world, 32)
    (event,) = told(world)
    assert (event.id, event.times, event.wait.rule, event.wait.have) == ("slow", TIMES, "reload", 0)
    assert world.said["other", 0] and not is_well(world)
    found = world.findings()["no_progress"]
    need = event.wait.need
    assert need > 2 and found.says == (
        f"No progress: what slow waits for (reload) was looked for 3 times in a row, and nothing of it came: 0 of "
        f"{need} blocks."
    )
    assert found.next.startswith("look at what brings it (reload)") and found.lost == 1
    world.disk.hurry()
    world.run()
    assert is_well(world) and world.said["slow", 0] == world.expected("slow", 0, 4)


def test_a_slow_transfer_that_gets_further_is_progress():
    world = reloading(50)
    pass_time(world, 59)
    assert world.engine.requests["slow"].verdict.rule == "reload"  # two at a time, some 25 s each
    world.run()
    assert not told(world) and is_well(world) and "no_progress" not in world.findings()


def test_whoever_is_cancelled_waits_for_no_transfer():
    world = reloading(HANGS)
    pass_time(world, 62)
    assert not is_well(world)
    world.engine.cancel("slow")
    assert is_well(world)


# -- writes to a tier that go nowhere -------------------------------------------------------------------------


def offloading(delay: int, *, staging: bool, host_slots: int = 4) -> Served:
    """`a` fills blocks that are to go to disk, which takes each after `delay` questions."""
    world = Served(blocks=60, host_slots=host_slots, disk_slots=40, staging=staging)
    world.disk.delay = delay
    world.add("a", 384, max_tokens=200)
    return world


@pytest.mark.parametrize("staging", [False, True], ids=["with a host tier", "straight to disk"])
def test_writes_of_which_none_ends_for_a_minute_are_no_progress_until_one_does(staging):
    world = offloading(HANGS, staging=staging)
    pass_time(world, 59)
    assert not told(world) and is_well(world)
    pass_time(world, 181)  # four minutes in all
    (event,) = told(world)
    writes = event.writes
    assert writes is not None and (event.id, event.wait, event.times) == ("", None, TIMES)
    assert (writes.tier, writes.writing, writes.pinned, writes.slots, writes.moved) == ("disk", 4, 4, 4, 0)
    assert writes.queued == 23 and 61e9 < event.at < 64e9
    assert not is_well(world) and world.story.still == [event]
    found = world.findings()["no_progress"]
    assert found.says == (
        "No progress: none of 4 writes to the disk tier of fake ended for a minute or longer; 23 blocks of fake wait "
        "behind them, and all 4 host slots are in use by what is on its way."
    )
    assert found.next.startswith("look at the disk that holds --disk-tier") and found.evidence["queued"] == 23
    world.disk.hurry()
    world.step()
    assert is_well(world) and not world.story.still
    world.run()
    assert told(world) == [event] and world.said["a", 0] == world.expected("a", 0, 200)


@pytest.mark.parametrize("staging", [False, True], ids=["with a host tier", "straight to disk"])
def test_writes_that_are_slow_and_end_are_progress(staging):
    world = offloading(80, staging=staging)  # four at a time, some 40 s each
    pass_time(world, 170)
    assert world.tiers.backlog.queued > 10 and world.tiers.backlog.moved == 16
    assert not told(world) and is_well(world) and "no_progress" not in world.findings()


def test_writes_that_hang_are_told_again_when_they_hang_again():
    world = offloading(HANGS, staging=True)
    pass_time(world, 70)
    world.disk.hurry()
    world.step()
    world.disk.delay = HANGS
    pass_time(world, 40)
    assert len(told(world)) == 1 and is_well(world)
    pass_time(world, 40)
    assert len(told(world)) == 2 and not is_well(world)


def test_a_write_that_hangs_is_told_while_a_host_tier_with_room_takes_more():
    world = offloading(HANGS, staging=False, host_slots=60)
    pass_time(world, 70)
    (event,) = told(world)
    assert event.writes.queued == 0 and event.writes.pinned < event.writes.slots
    assert " ended for a minute or longer." in world.findings()["no_progress"].says
    assert sum(e.blocks.get("host", 0) for e in world.events if isinstance(e, Offloaded)) > 24


def test_a_write_that_fails_after_long_is_no_standing_write():
    world = offloading(HANGS, staging=True)
    world.disk.wrong = ["write"] * 4
    pass_time(world, 70)
    assert not is_well(world)
    world.disk.hurry()
    world.step()
    assert is_well(world) and world.seen().tier_faults["disk", "write"] == 4


def test_a_new_replica_has_no_standing_writes():
    world = offloading(HANGS, staging=True)
    pass_time(world, 70)
    assert not is_well(world)
    world.story.fold(world.events[0])  # it is loaded again
    assert is_well(world)


def test_blocks_that_find_no_host_slot_since_reads_hang_are_told_once_no_request_awaits_these():
    world = reloading(HANGS)
    world.engine.cancel("slow")
    pass_time(world, 59)
    assert not told(world) and is_well(world)
    pass_time(world, 5)
    (event,) = told(world)
    assert (event.writes.tier, event.writes.writing, event.writes.pinned) == ("disk", 0, 2)
    found = world.findings()["no_progress"]
    assert found.says == (
        f"No progress: {event.writes.queued} blocks of fake wait to be written to the disk tier, for a minute or "
        "longer: all 2 host slots are in use by what is on its way."
    )
    assert found.next.startswith("look at what reads from the disk") and not is_well(world)
    world.disk.hurry()
    world.step()
    assert is_well(world)


# -- waiting for capacity with nothing running ----------------------------------------------------------------


def test_requests_that_wait_for_capacity_while_nothing_runs_are_no_progress():
    """Somebody took blocks of the pool and does not give them back."""
    world = Served(blocks=10)
    world.engine.check = world.agree_on_blocks = lambda: None  # they would tell of the leak
    leaked = [world.pool.take() for _ in range(8)]
    world.add("r", 60, max_tokens=4)
    for _ in range(TIMES - 1):
        assert world.engine.step() == [] and is_well(world)
    for _ in range(3):
        with pytest.raises(StalledError, match=r"r waits by the rule blocks \(2 blocks short\), and nothing runs"):
            world.engine.step()
    (event,) = told(world)
    assert (event.id, event.wait.rule, event.wait.need, event.wait.have) == ("r", "blocks", 4, 2)
    assert not is_well(world)
    assert world.findings()["no_progress"].says == (
        "No progress: r waits for space by the rule blocks, nothing of fake runs, and nothing changed 3 times in a "
        "row: needs 4 blocks, 2 free and 0 reusable, 2 short."
    )
    world.add("small", 10, max_tokens=3)  # it fits, and overtakes: something runs again
    world.step()
    assert is_well(world)
    for block in leaked:
        world.pool.drop(block)
    world.run()
    assert world.said["r", 0] == world.expected("r", 0, 4)


def test_waiting_for_capacity_behind_one_that_runs_is_progress():
    world = Served(blocks=10)
    world.add("first", 100, max_tokens=40)
    world.add("r", 100, max_tokens=4)
    world.run()
    assert not told(world) and "no_progress" not in world.findings()


# -- two that evict each other's prefix in turn ---------------------------------------------------------------


def prompts(kinds: int, count: int) -> list[list[int]]:
    return [list(range(200 * (i % kinds), 200 * (i % kinds) + 150)) for i in range(count)]


def test_two_that_evict_each_others_prefix_in_turn_are_named():
    found = one_by_one(Served(blocks=12), prompts(2, 8)).findings()
    assert set(found) == {"evicting_in_turn"}
    (finding,) = found.values()
    assert finding.says == (
        "Two kinds of prompt evict each other's prefix in turn: prompts that begin like r6 lost it to those that "
        "begin like r7 3 times, and these to those 3 times; up to 708 of 1008 prompt positions were computed again."
    )
    assert finding.next.startswith("raise --memory (now 12 blocks) by what a sequence holds, up to 10 blocks")


@pytest.mark.parametrize(
    ("blocks", "kinds", "finds"),
    [(40, 2, set()), (12, 3, {"prefix_evicted"})],
    ids=["both stay cached", "three go round, none of them evicts the one that evicts it"],
)
def test_prefixes_that_stay_or_go_round_are_not_evicted_in_turn(blocks, kinds, finds):
    assert set(one_by_one(Served(blocks=blocks), prompts(kinds, 9)).findings()) == finds


# -- reuse that is switched off multiplies preemptions --------------------------------------------------------


def beginning_alike(count: int, *, prefix_cache: bool) -> Served:
    """So many at once, whose prompts share 15 blocks of 16 positions. Each needs up to 18 blocks, 3 of them its own;
    the pool has 50."""
    world, known = Served(blocks=50, seats=16, prefix_cache=prefix_cache), [3 * i % 91 for i in range(240)]
    one_by_one(world, [[*known, 500]], 1)
    for i in range(1, count + 1):
        world.add(f"r{i}", [*known, *range(100 + 8 * i, 108 + 8 * i)], max_tokens=40)
    world.run()
    return world


def test_reuse_that_is_off_multiplies_preemptions_where_prompts_begin_alike_and_that_is_named():
    on, off = (beginning_alike(12, prefix_cache=reuse) for reuse in (True, False))
    assert (len(on.seen().preemptions), len(off.seen().preemptions)) == (1, 12)
    assert (on.seen().counts["recomputed"], off.seen().counts["recomputed"]) == (0, 3057)
    assert "reuse_off" not in on.findings()
    found = off.findings()["reuse_off"]
    assert found.says == (
        "Prefix caching is off, so 12 preemptions that lost 3057 positions had 3057 of them computed again: with it "
        "what nobody needed meanwhile is found again; 13 of 13 prompts begin like another, and that is held once, so "
        "fewer are preempted."
    )


def test_a_pool_where_reuse_is_off_loses_more_with_each_preemption_and_that_is_named():
    off = served(12, 40, 40, blocks=16, seats=16, prefix_cache=False)
    found = off.findings()["reuse_off"]
    assert found.says.startswith("Prefix caching is off, so ") and found.says.endswith(" is found again.")
    assert found.evidence["recomputed"] == found.evidence["lost"] > 0
    assert found.next == "serve without --no-prefix-cache"
    on = served(12, 40, 40, blocks=16, seats=16)
    assert len(on.seen().preemptions) == len(off.seen().preemptions) == 8  # they share nothing
    assert "reuse_off" not in on.findings()
    roomy = served(12, 40, 40, blocks=200, seats=16, prefix_cache=False)
    assert "reuse_off" not in roomy.findings()


def test_writes_move_again_with_the_first_that_ends_although_others_are_on_their_way():
    writes, standing = Writes(), Backlog("disk", writing=4, queued=9, pinned=4, slots=4, moved=7)
    assert [writes.note(standing, i * APART_NS) for i in range(4)] == [False, False, True, False] and writes.stuck
    assert writes.note(msgspec.structs.replace(standing, moved=8), 4 * APART_NS) and not writes.stuck
