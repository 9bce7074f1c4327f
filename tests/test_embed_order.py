"""Of an encoder's inputs the shorter go first, and none is overtaken for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.events import Finished
from headway.core.request import Request
from headway.policy.order import deadline, fcfs, priority, shorter_first
from mixed_world import MixedWorld

STEP, WITHIN = 64, 8


def place(arrival: int, size: int, **fields: int) -> tuple[int, ...]:
    request = Request(f"r{arrival}", "m", fields.get("priority", 0), arrival, progress=size)
    request.deadline_at = fields.get("deadline_at")
    base = priority if "priority" in fields else deadline if "deadline_at" in fields else fcfs
    return shorter_first(base, lambda r: r.progress, step=STEP, within=WITHIN)(request)


@given(sizes=st.lists(st.integers(1, 3 * STEP), min_size=1, max_size=60))
def test_nobody_goes_behind_more_than_so_many_later_arrivals(sizes: list[int]) -> None:
    order = sorted(range(len(sizes)), key=lambda arrival: place(arrival, sizes[arrival]))
    for behind, arrival in enumerate(order):
        assert sum(later > arrival for later in order[:behind]) <= WITHIN


@given(sizes=st.lists(st.integers(1, 3 * STEP), min_size=2, max_size=30))
def test_whoever_is_smaller_and_earlier_goes_first(sizes: list[int]) -> None:
    places = [place(arrival, size) for arrival, size in enumerate(sizes)]
    assert len(set(places)) == len(places)
    for later in range(1, len(sizes)):
        for earlier in range(later):
            if sizes[earlier] <= sizes[later]:
                assert places[earlier] < places[later]


def test_a_full_step_lets_the_short_that_come_close_behind_it_pass_and_no_one_after_them() -> None:
    long = place(0, STEP)
    assert [place(arrival, 1) < long for arrival in (1, WITHIN - 1, WITHIN, WITHIN + 1)] == [True, True, False, False]


def test_a_priority_or_a_deadline_counts_before_the_size() -> None:
    assert place(1, STEP, priority=-1) < place(0, 1, priority=0)
    assert place(1, STEP, deadline_at=10) < place(0, 1, deadline_at=20)


@pytest.mark.parametrize("bypass", [0, 2, 5])
def test_under_a_stream_of_short_ones_that_never_ends_a_long_one_is_passed_by_at_most_the_bypass_bound(
    bypass: int,
) -> None:
    """Two short ones come for each that a step has a place for, so without the bound the long one would never go."""
    world = MixedWorld(budget=4, seats=1, bypass=bypass, names=("embed",))
    world.embed("first", 4)
    world.embed("long", 9)
    for i in range(40):
        world.embed(f"short{i}", 1)
        world.step()
    ended = [event.id for event in world.events if isinstance(event, Finished)]
    assert ended.index("long") - ended.index("first") - 1 <= bypass
    assert (ended.index("long") > 1) == (bypass > 0)
    world.run()


def test_the_mean_wait_of_a_burst_is_shorter_than_in_order_of_arrival() -> None:
    def waits(bypass: int) -> float:
        world = MixedWorld(budget=6, seats=6, bypass=bypass, names=("embed",))
        for i in range(30):
            world.embed(f"r{i}", (6, 1, 2)[i % 3])
        world.run()
        lives = [record.elapsed_ns(0) for record in world.story.ended.values()]
        return sum(lives) / len(lives)

    assert waits(bypass=30) < 0.8 * waits(bypass=0)


def test_nothing_waits_for_others_to_come_when_the_device_is_idle() -> None:
    world = MixedWorld(budget=6, seats=6, bypass=30, names=("embed",))
    world.embed("alone", 6)
    event = world.step()
    assert [member.id for member in event.members] == ["alone"] and event.at == 0


def test_a_document_of_many_windows_leaves_those_who_come_after_it_every_other_step() -> None:
    world = MixedWorld(budget=4, seats=3, bypass=2, names=("embed",))
    world.embed("long", *[4] * 12)
    steps = []
    for i in range(8):
        if i:
            world.embed(f"short{i}", 3)
        steps.append([member.id for member in world.step().members])
    assert steps == [["long"], ["short1"], ["long"], ["short2"], ["long"], ["short3"], ["long"], ["short4"]]
    world.run()
    assert world.answers == {id: world.right(id) for id in world.asked}


def test_what_those_who_wait_leave_of_a_step_the_document_has_too() -> None:
    world = MixedWorld(budget=6, seats=3, bypass=2, names=("embed",))
    world.embed("long", *[2] * 9)
    world.step()
    world.embed("short", 1)
    event = world.step()
    assert [(member.id, member.index) for member in event.members] == [("short", 0), ("long", 3), ("long", 4)]
