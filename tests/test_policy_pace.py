"""A burst for one model beside steady text of another: how far the gaps between tokens may grow, and who starves."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from statistics import median, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.events import Stepped
from headway.policy.turns import Pace, Share, Turn, next_turn
from mixed_world import MixedWorld

#: A text step of 8 sequences takes 12 ms; an encoder's step of 512 positions 53 ms.
COSTS = {
    "text": (10_000_000, 250_000),
    "other": (10_000_000, 250_000),
    "embed": (2_000_000, 100_000),
    "image": (1, 1),
}
ALONE_NS = 12_000_000


def gaps(world: MixedWorld, name: str) -> list[int]:
    """Between the ends of two steps of a model that follow each other."""
    ends = [world.ends[event.step] for event in world.events if isinstance(event, Stepped) and event.model == name]
    return [after - before for before, after in itertools.pairwise(ends)]


class Timed(MixedWorld):
    """`ends` are the times at which steps ended."""

    def __init__(self, slowdown: float | None, names: tuple[str, ...] = ("text", "embed"), **options: object) -> None:
        super().__init__(
            blocks=999, size=16, longest=512, seats=64, budget=512, slowdown=slowdown, names=names, costs=COSTS,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip
        self.ends: dict[int, int] = {}

    def go(self, steps: int) -> None:
        for _ in range(steps):
            stepped = self.step()
            assert stepped is not None
            self.ends[stepped.step] = self.clock.now_ns()


def burst(slowdown: float | None, longest: int, weights: dict[str, float] | None = None, steps: int = 300) -> Timed:
    """Eight sequences generate; then texts of up to `longest` positions come faster than they can be evaluated."""
    world, chance = Timed(slowdown, weights=weights), random.Random(7)
    for i in range(8):
        world.text(f"text-{i}", 4, 4000)
    world.go(40)
    for i in range(400):
        world.embed(f"embed-{i}", chance.randint(4, longest))
    world.events.clear()
    world.ends.clear()
    world.go(steps)
    return world


def time_of(world: Timed) -> Counter[str]:
    """Device time by model while the burst lasted."""
    spent: Counter[str] = Counter()
    steps = [event for event in world.events if isinstance(event, Stepped)]
    last = max(place for place, event in enumerate(steps) if event.model == "embed")
    for event in steps[:last]:
        spent[event.model] += world.ends[event.step] - event.at
    return spent


def test_without_a_bound_a_burst_stretches_the_gap_fivefold() -> None:
    assert quantiles(gaps(burst(None, 256), "text"), n=100)[98] > 5 * ALONE_NS


@pytest.mark.parametrize("slowdown", [1.5, 2.0, 3.0])
def test_the_p99_gap_between_tokens_stays_within_the_bound_and_texts_are_still_embedded(slowdown: float) -> None:
    longest = 36  # the longest input alone fits into what the least of these bounds leaves
    world = burst(slowdown, longest)
    found = gaps(world, "text")
    assert quantiles(found, n=100)[98] <= slowdown * ALONE_NS
    assert time_of(world)["embed"] / sum(time_of(world).values()) > 0.6 * (1 - 1 / slowdown)
    for id in [id for id in world.engine.requests if id.startswith("text")]:
        world.engine.cancel(id)
    world.run()
    embedded = [id for id in world.asked if id.startswith("embed")]
    assert all(world.answers[id] == world.right(id) for id in embedded)


def test_an_input_longer_than_the_bound_takes_a_step_alone_directly_after_a_step_of_the_other_model() -> None:
    world = burst(2.0, 256)
    steps = [event for event in world.events if isinstance(event, Stepped)]
    oversized = [(before, after) for before, after in itertools.pairwise(steps) if after.oversized]
    assert len(oversized) > 20
    for before, after in oversized:
        assert (before.model, after.kept, len(after.members)) == ("text", "text", 1)
    longest = max(sum(member.positions for member in event.members) for event in steps)
    assert max(gaps(world, "text")) <= ALONE_NS + COSTS["embed"][0] + longest * COSTS["embed"][1]


def test_the_bound_comes_before_the_weights_and_gives_way_once_the_text_is_over() -> None:
    world = burst(2.0, 36, weights={"embed": 50.0}, steps=100)
    assert quantiles(gaps(world, "text"), n=20)[18] <= 2 * ALONE_NS  # of 50 gaps the 99th percentile is the first one
    for id in [id for id in world.engine.requests if id.startswith("text")]:
        world.engine.cancel(id)
    world.events.clear()
    while world.engine.busy:
        world.go(1)
    budgets = {event.budget for event in world.events if isinstance(event, Stepped)}
    assert budgets == {512}


def test_two_text_models_keep_each_others_pace_and_every_running_sequence_still_moves() -> None:
    world = Timed(2.0, names=("text", "other"))
    for i in range(6):
        world.text(f"text-{i}", 4, 900)
        world.text(f"other-{i}", 4, 900, model="other")
    world.go(60)
    for i in range(20):
        world.text(f"long-{i}", 400, 2, model="other")
    world.events.clear()
    world.ends.clear()
    world.go(200)
    found = gaps(world, "text")
    assert quantiles(found, n=100)[98] <= 2.2 * median(found[:20])  # its own decode steps are 2% of it
    decoding = [sum(member.id.startswith("other") for member in event.members)
                for event in world.events if isinstance(event, Stepped) and event.model == "other"]  # fmt: skip
    assert set(decoding) == {6}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.builds(
            Pace,
            st.integers(0, 1000),
            st.floats(0, 99),
            st.floats(0, 50),
            st.booleans(),
            st.one_of(st.none(), st.integers(0, 2000)),
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(1, 5),
)
def test_somebody_always_goes_with_a_budget_and_alone_with_all_of_it(paces: list[Pace], slowdown: float) -> None:
    shares = [Share(7 * place, 1.0) for place in range(len(paces))]
    turn = next_turn(shares, paces, [512] * len(paces), slowdown)
    assert 0 <= turn.place < len(paces) and 1 <= turn.budget <= 512
    if len(paces) == 1:
        assert turn == Turn(0, 512)
    if turn.kept is not None:
        assert paces[turn.kept].paced and turn.kept != turn.place
    assert next_turn(shares, paces, [512] * len(paces), None) == Turn(0, 512)
