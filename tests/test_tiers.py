"""State tiers on the fake executor: what is offloaded, what is brought back, who waits, and what goes wrong."""

from __future__ import annotations

import pytest

from fake_tiers import fake_tiers
from headway.compute.fake import FakeExecutor
from headway.core.errors import UnknownRequest
from headway.core.events import Offloaded, ReloadDropped, Reloaded, ReloadStarted
from headway.core.request import Stage
from headway.core.tiers import ReloadChoice
from headway.core.verdict import Wait
from headway.memory.slots import Slots
from headway.policy.copies import MOST_NS, CopyBudget
from headway.policy.reload import BlockSize, Measured, choose
from world import World

LONG = 64


def told(world: World, kind: type) -> list:
    return [event for event in world.events if isinstance(event, kind)]


def settled(world: World) -> None:
    """Step until nothing is left to be copied or moved."""
    for _ in range(1000):
        world.step()
        if world.engine.idle and not world.engine.awaiting:
            return
    raise AssertionError("the tiers do not come to rest")


def evicted(world: World, prompt: int = LONG) -> list[int]:
    """A prompt whose state went through the pool, and is there no more: others took its place."""
    tokens = [(5 * i) % world.vocab for i in range(prompt)]
    world.add("first", tokens, max_tokens=2)
    world.run()
    settled(world)
    world.add("other", world.pool.total * world.pool.block_tokens - 1, max_tokens=1)
    world.run()
    settled(world)
    assert not world.pool.index.match(world_keys(world, tokens), 99)
    return tokens


def world_keys(world: World, tokens: list[int]) -> list[bytes]:
    from headway.memory.keys import KeyChain, Origin

    facts = world.executor.facts
    origin = Origin(facts.revision, facts.weights_format, facts.state_format)
    return KeyChain(origin, world.pool.block_tokens).upto(tokens, len(tokens) // world.pool.block_tokens)


def tiered(**options) -> World:
    return World(**{"blocks": 12, "block_tokens": 8, "host_slots": 40, "step_tokens": 512, "seats": 4} | options)


# -- offloading -------------------------------------------------------------------------------------------------


def test_a_block_is_copied_once_it_is_indexed_and_not_when_it_is_evicted():
    world = tiered()
    world.add("a", 24, max_tokens=20)
    world.step()  # computes and indexes three blocks
    world.step()  # copies them
    assert len(world.tiers.host) == 3 and not world.pool.evictions
    assert told(world, Offloaded)[-1].blocks == {"host": 3}


def test_what_the_last_step_indexed_is_copied_although_nobody_is_left():
    world = tiered()
    world.add("a", 24, max_tokens=1)
    world.step()
    assert not world.engine.requests and not world.engine.idle
    world.step()
    assert world.engine.idle and len(world.tiers.host) == 3


def test_a_block_is_copied_once_however_often_it_is_found():
    world = tiered()
    for name in "abc":
        world.add(name, list(range(24)), max_tokens=1)
        world.run()
        settled(world)
    assert sum(event.blocks["host"] for event in told(world, Offloaded)) == 3


def test_one_step_copies_no_more_than_it_may():
    world = tiered(most_copies=2)
    world.add("a", LONG, max_tokens=20)
    world.step()
    assert world.step() and len(world.tiers.host) == 2
    world.step()
    assert len(world.tiers.host) == 4


def test_a_block_on_disk_was_in_host_memory_first_and_both_say_so():
    world = tiered(disk_slots=40, disk_delay=2)
    world.add("a", 24, max_tokens=1)
    world.run()
    settled(world)
    sums = {tier: sum(e.blocks.get(tier, 0) for e in told(world, Offloaded)) for tier in ("host", "disk")}
    assert sums == {"host": 3, "disk": 3}
    assert [(t.name, t.blocks, t.total) for t in world.story.tiers["fake"]] == [("host", 3, 40), ("disk", 3, 40)]


def test_without_a_host_tier_the_way_to_disk_is_told_as_no_tier():
    world = tiered(host_slots=2, disk_slots=40, disk_delay=3, staging=True)
    world.add("a", LONG, max_tokens=1)
    world.run()
    settled(world)
    assert [(t.name, t.blocks) for t in world.story.tiers["fake"]] == [("disk", 8)]


# -- reloading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("disk", [0, 40], ids=["host", "disk"])
def test_what_was_evicted_is_reloaded_and_counts_as_reused(disk):
    world = tiered(disk_slots=disk, disk_delay=3 if disk else 0, host_slots=2 if disk else 40, staging=bool(disk))
    tokens = evicted(world)
    world.add("again", tokens, max_tokens=3)
    world.run()
    counts = world.counts("again")
    assert (counts.reused, counts.prefilled) == (56, 8)
    assert world.said["again", 0] == world.expected("again", 0, 3)
    (reloaded,) = told(world, Reloaded)
    assert reloaded.blocks == {"disk" if disk else "host": 7}
    record = world.story.record("again")
    assert record.first_reused == 56 and record.choice.reload and record.miss.why == "evicted"
    assert ("queued", "input", "reload") in [interval.key for interval in record.life(0)]


def test_a_request_whose_blocks_are_reloaded_holds_blocks_and_no_seat_and_says_how_many_are_there():
    world = tiered(disk_slots=40, disk_delay=3, host_slots=2, staging=True)
    world.add("again", evicted(world), max_tokens=3)
    seen = []
    world.add("busy", 9, max_tokens=30)
    while not told(world, Reloaded):
        world.step()
        wait = world.story.record("again").verdict
        if isinstance(wait, Wait) and wait.rule == "reload":
            assert world.story.record("again").stage is Stage.WAITING
            assert len(world.story.record("again").sequences[0].blocks) == 9
            assert world.engine.levels().seats_used <= 1
            seen.append((wait.need, wait.have, wait.short))
    assert seen[0] == (7, 0, 7) and seen == sorted(seen) and len({have for _, have, _ in seen}) > 2
    assert world.said["busy", 0], "another request runs while blocks are reloaded"
    world.run()


def test_a_reload_starts_only_once_all_blocks_are_reserved():
    world = tiered()
    tokens = evicted(world)
    world.add("big", 60, max_tokens=30)
    world.step()
    world.add("again", tokens, max_tokens=3)
    world.step()
    assert world.wait("again").rule == "blocks" and not told(world, ReloadStarted)
    world.run()
    assert len(told(world, ReloadStarted)) == 1 and world.said["again", 0] == world.expected("again", 0, 3)


def test_no_more_reloads_are_begun_than_there_are_seats_for_those_who_await_them():
    """Ten would find the same; space and seats are there for all of them, one after the other."""
    world = tiered(blocks=100, disk_slots=300, host_slots=30, staging=True)
    tokens = evicted(world, 40)
    world.disk.delay = 20
    for number in range(10):
        world.add(f"again {number}", [*tokens, number], max_tokens=2)
    world.step()
    queues = world.model.queues
    assert [request.id for request in queues.reloading] == [f"again {number}" for number in range(4)]
    wait = world.engine.requests["again 4"].verdict
    assert (wait.on, wait.rule, wait.need, wait.have, wait.short) == ("turn", "seats", 1, 0, 1)
    world.add("nothing of it", 20, max_tokens=2)
    world.step()
    assert world.said["nothing of it", 0], "who needs no reload has the seat meanwhile"
    world.run()
    assert all(world.said[f"again {i}", 0] == world.expected(f"again {i}", 0, 2) for i in range(10))


def test_a_resumed_request_regains_what_was_reloaded():
    world = World(blocks=9, block_tokens=4, seats=2, step_tokens=64, host_slots=40)
    world.add("a", 12, max_tokens=16)
    world.add("b", 12, max_tokens=16)
    world.run()
    counts = [world.counts("a"), world.counts("b")]
    assert any(c.lost for c in counts) and any(c.regained for c in counts)
    assert told(world, Reloaded)
    assert sum(c.recomputed for c in counts) < sum(c.lost for c in counts)


def test_two_that_want_the_same_prefix_both_get_it():
    world = tiered(blocks=30, disk_slots=40, disk_delay=2, host_slots=3, staging=True)
    tokens = evicted(world)
    for name in ("x", "y"):
        world.add(name, tokens, max_tokens=2)
    world.run()
    assert all(world.counts(name).reused == 56 for name in ("x", "y"))
    assert all(world.said[name, 0] == world.expected(name, 0, 2) for name in ("x", "y"))


def test_siblings_go_on_behind_what_was_reloaded_for_the_first():
    world = tiered(blocks=20)
    tokens = evicted(world, 61)
    world.add("again", tokens, n=3, max_tokens=4)
    world.run()
    assert world.counts("again").reused == 56 and world.counts("again", 1).reused == 61
    assert all(world.said["again", i] == world.expected("again", i, 4) for i in range(3))


def test_another_salt_finds_nothing_in_the_tiers():
    world = tiered()
    world.add("again", evicted(world), max_tokens=1, cache_salt="mine")
    world.run()
    assert world.counts("again").reused == 0 and not told(world, ReloadStarted)


def test_whoever_goes_first_takes_the_blocks_of_one_that_is_being_reloaded_behind_it():
    world = World(blocks=12, block_tokens=8, seats=4, step_tokens=64, host_slots=2, disk_slots=40, disk_delay=50,
                  staging=True)  # fmt: skip
    tokens = evicted(world, 40)
    world.add("runs", 30, max_tokens=40)
    world.step()
    world.add("again", tokens, max_tokens=2)
    world.run()
    dropped = told(world, ReloadDropped)
    assert dropped and dropped[0].id == "again" and dropped[0].by == "runs"
    record = world.story.record("again")
    assert record.preemptions == 0 and world.said["again", 0] == world.expected("again", 0, 2)


def test_under_reserve_nothing_is_taken_from_one_that_is_being_reloaded():
    world = World(blocks=12, block_tokens=8, seats=4, step_tokens=64, host_slots=2, disk_slots=40, disk_delay=9,
                  staging=True, admit="reserve")  # fmt: skip
    tokens = evicted(world, 40)
    world.add("runs", 30, max_tokens=20)
    world.step()
    world.add("again", tokens, max_tokens=2)
    world.add("late", 20, max_tokens=20)
    world.run()
    assert not told(world, ReloadDropped)
    assert not any(world.story.record(name).preemptions for name in ("runs", "again", "late"))


# -- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["read", "checksum"])
def test_a_block_that_cannot_be_read_is_computed_and_what_was_wrong_is_counted(fault):
    world = tiered(disk_slots=40, disk_delay=1, host_slots=8, staging=True)
    tokens = evicted(world)
    world.disk.wrong = [None, None, fault]
    world.add("again", tokens, max_tokens=3)
    world.run()
    settled(world)
    counts = world.counts("again")
    assert counts.reused == 16 and counts.prefilled == 48
    assert world.said["again", 0] == world.expected("again", 0, 3)
    assert world.story.record("again").miss.why == "lost"
    assert sum(e.faults.get("disk", {}).get(fault, 0) for e in told(world, Offloaded)) == 1
    world.add("third", tokens, max_tokens=3)
    world.run()
    assert world.counts("third").reused == 63 or world.counts("third").reused == 56


def test_a_disk_that_takes_nothing_is_asked_no_more_and_everything_goes_on():
    world = tiered(disk_slots=40, host_slots=8, staging=True, most_copies=1)
    world.disk.wrong = ["write"] * 99
    tokens = evicted(world)
    assert world.disk.told == ["write"] * 3
    world.add("again", tokens, max_tokens=3)
    world.run()
    assert world.said["again", 0] == world.expected("again", 0, 3)
    assert sum(e.faults["disk"]["write"] for e in told(world, Offloaded) if e.faults) == 3


@pytest.mark.parametrize("after", range(12))
def test_cancelled_at_any_stage_of_a_reload_it_leaves_an_exact_pool(after):
    world = tiered(disk_slots=40, disk_delay=2, host_slots=3, staging=True)
    world.add("again", evicted(world), max_tokens=3)
    for _ in range(after):
        world.step()
    try:
        world.engine.cancel("again")
    except UnknownRequest:
        assert world.finish["again", 0] == "length"
    world.engine.check()
    settled(world)
    assert world.pool.live == 0


@pytest.mark.parametrize("flying", [False, True], ids=["between steps", "in a step"])
def test_cancelled_at_any_stage_of_offloading_it_leaves_only_true_copies(flying):
    """Its blocks are queued, named in a plan, in host memory, on their way to disk or there; others take them."""
    copies = set()
    for after in range(14):
        world = tiered(disk_slots=40, disk_delay=2, host_slots=3, most_copies=1, step_tokens=16)
        tokens = [(5 * i) % world.vocab for i in range(48)]
        world.add("first", tokens, max_tokens=6)
        for _ in range(after):
            world.step()
        plan = world.engine.plan() if flying else None
        if "first" in world.engine.requests:
            world.engine.cancel("first")
        world.engine.check()
        if plan is not None:
            world.note(world.engine.commit(world.executor.run(plan)))
        world.add("other", world.pool.total * world.pool.block_tokens - 1, max_tokens=1)
        world.run()
        settled(world)
        assert world.pool.live == 0
        copies.add(len(world.tiers.disk))
        world.add("again", tokens, max_tokens=3)
        world.run()
        assert world.said["again", 0] == world.expected("again", 0, 3)
    assert len(copies) > 3, "it was cancelled at different stages"


@pytest.mark.parametrize("jump_s", [3600, -3600, 1e-9])
@pytest.mark.parametrize("disk", [0, 40], ids=["host", "disk"])
def test_a_clock_that_jumps_at_any_stage_of_a_reload_changes_no_answer_and_no_count(jump_s, disk):
    for after in range(12):
        world = tiered(disk_slots=disk, disk_delay=2 if disk else 0, host_slots=3 if disk else 40, staging=bool(disk))
        world.clock.advance(10_000_000_000_000)
        world.add("again", evicted(world), max_tokens=3)
        for _ in range(after):
            world.step()
        world.clock._now_ns += round(jump_s * 1e9)
        world.run()
        settled(world)
        assert world.said["again", 0] == world.expected("again", 0, 3)
        assert world.counts("again").reused == 56
        known = world.model.pattern.tiering._measured
        for rate in (known.prefill, known.offload, known.reload, known.read):
            now = world.clock.now_ns()
            assert (rate.per_second(now) or 0) >= 0 and (rate.typical(now) or 0) >= 0


def test_cancelled_between_the_plan_and_the_result_its_blocks_go_with_the_step():
    world = tiered()
    world.add("again", evicted(world), max_tokens=3)
    plan = world.engine.plan()
    assert plan is not None and len(plan.reloads) == 7
    world.engine.cancel("again")
    assert world.pool.live == 9
    world.note(world.engine.commit(world.executor.run(plan)))
    assert world.pool.live == 0


def test_a_step_that_fails_takes_those_with_it_whose_blocks_it_copied():
    world = tiered()
    tokens = evicted(world)
    world.add("again", tokens, max_tokens=3)
    world.engine.plan()
    world.engine.abort("the machine broke")
    world.engine.check()
    assert world.story.record("again").stage is Stage.FAILED and world.pool.live == 0
    world.add("once more", tokens, max_tokens=3)
    world.run()
    assert world.said["once more", 0] == world.expected("once more", 0, 3)


def test_copies_of_what_came_out_not_finite_are_not_found_again():
    world = tiered(disk_slots=40)
    tokens = list(range(24))
    world.add("a", tokens, max_tokens=20)
    for _ in range(3):
        world.step()
    assert len(world.tiers.host) == 3
    world.executor.spoils = lambda span: True
    world.step()
    world.executor.spoils = lambda span: False
    settled(world)
    assert len(world.tiers.host) == len(world.tiers.disk) == 0 and not world.disk.slots


def test_a_host_slot_that_is_read_into_is_nobody_elses_although_what_is_read_is_spoiled():
    """Else another block would be copied to it, and what the disk reads would lie there in its place."""
    executor = FakeExecutor(blocks=2, block_tokens=2, host_slots=1)
    tiers, disk = fake_tiers(executor, 4, delay=None)
    disk.slots[tiers.disk.claim(b"read")] = b"read", [1, 2]
    tiers.disk.written(b"read")
    reload = tiers.begin([b"read"], [0])
    tiers.spoil(1, b"read")
    tiers.indexed(1, b"another")
    tiers.name_offloads(64)
    assert tiers.name(64) == ((), ()) and not tiers.host.room
    tiers.check()
    disk.end(0)
    tiers.collect()
    tiers.check()
    assert reload.over and reload.lost and tiers.host.room
    assert b"read" not in tiers.host and b"read" not in tiers.disk and not disk.slots


# -- the decision -----------------------------------------------------------------------------------------------


BLOCK, ALONE = BlockSize(2000, 2), CopyBudget(MOST_NS)


def measured(prefill=None, copy=None, read=None, offload=None) -> Measured:
    known = Measured()
    for rate, value in (
        (known.prefill, prefill), (known.offload, offload), (known.reload, copy), (known.read, read),
    ):  # fmt: skip
        if value is not None:
            rate.note(0, value, 1_000_000_000)
    return known


def test_until_both_sides_are_measured_blocks_are_reloaded():
    for known in (measured(), measured(prefill=1e9), measured(copy=1), measured(prefill=1e9, copy=1)):
        assert choose(0, 2, BLOCK, known, 0, ALONE).reload
    assert choose(2, 0, BLOCK, measured(prefill=1e9), 0, ALONE) == ReloadChoice(True, 2, 0, None, 1e12)


def test_the_break_even_bandwidth_is_state_bytes_per_position_times_prefill_positions_per_second():
    slow = choose(4, 0, BLOCK, measured(prefill=500, copy=499_000), 0, ALONE)
    fast = choose(4, 0, BLOCK, measured(prefill=500, copy=501_000), 0, ALONE)
    assert not slow.reload and fast.reload and slow.break_even == fast.break_even == 500_000


def test_a_block_from_disk_is_read_and_then_copied():
    choice = choose(1, 3, BLOCK, measured(prefill=1, copy=4000, read=3000), 0, ALONE)
    assert choice.bandwidth == pytest.approx(4 / (4 / 4000 + 3 / 3000))


def test_what_was_measured_more_than_a_minute_ago_decides_nothing():
    known = measured(prefill=500, copy=1000)
    assert not choose(4, 0, BLOCK, known, 60_000_000_000, ALONE).reload
    assert choose(4, 0, BLOCK, known, 60_000_000_001, ALONE).reload


def test_a_clock_that_jumps_measures_nothing_absurd():
    rate = measured(copy=1000).reload
    rate.note(0, 5, 0)
    rate.note(0, 5, -7)
    assert rate.per_second(0) == 1000
    assert rate.per_second(-1) is None, "what was measured in the future counts when it comes"


def test_where_computing_is_faster_it_is_computed_and_the_record_says_by_which_numbers():
    world = tiered()
    tokens = evicted(world)
    pattern = world.model.pattern
    pattern.tiering._measured = measured(prefill=1e6, copy=1000)
    world.add("again", tokens, max_tokens=3)
    world.run()
    record = world.story.record("again")
    assert not told(world, ReloadStarted) and world.counts("again").prefilled == 64
    assert record.choice == ReloadChoice(False, 7, 0, 1000.0, 8e6) and record.miss.why == "slower"


# -- the slots --------------------------------------------------------------------------------------------------


def test_the_least_recently_used_slot_goes_first_and_a_pinned_one_never():
    slots = Slots(3)
    for key in (b"a", b"b", b"c"):
        slots.claim(key)
        slots.written(key)
    slots.renew(b"a")
    held = slots.pin(b"b")
    assert slots.claim(b"d") == 2 and b"c" not in slots and b"a" in slots
    assert slots.claim(b"e") is not None and b"a" not in slots
    assert slots.claim(b"f") is None, "all slots are pinned or being written"
    slots.forget(b"b")
    assert slots.claim(b"f") is None, "a forgotten slot stays while it is pinned"
    slots.unpin(held)
    assert slots.claim(b"f") == held
