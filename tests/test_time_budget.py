"""`--step-tokens auto`: prompts beside decoding sequences get what keeps the gap between tokens, never nothing."""

from __future__ import annotations

import itertools

import pytest

from headway.compute.fake import linear_cost
from headway.core.choices import choose_models
from headway.core.config import ServeOptions
from headway.core.errors import ConfigError
from headway.core.events import Stepped
from headway.core.plan import StepPlan
from headway.policy.budget import AIM, LEAST_CHUNK, beside
from headway.policy.turns import Pace
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import shortage
from served import MS, Served
from world import World

GAP_MS = 150.0
#: A step takes 20 ms and half a millisecond for each position, as a small model does on two cores.
COST = linear_cost(step_ns=20 * MS, position_ns=MS // 2)
#: (0.8 · 150 − 20) / 0.5 positions take what is aimed at.
FITTING = 200


def paced(fixed_ms: float, position_ms: float, most: int) -> Pace:
    return Pace(step_ns=1, fixed_ns=fixed_ms * MS, unit_ns=position_ms * MS, most=most)


@pytest.mark.parametrize(
    ("decoding", "pace", "room"),
    [
        (8, paced(20, 0.5, 512), FITTING - 8),
        (32, paced(20, 0.5, 512), FITTING - 32),
        (8, paced(20, 1.0, 512), 100 - 8),
        (8, paced(20, 0.5, 20), 4 * 20 - 8),  # nothing above 20 positions was measured: not at once to 200
        (8, paced(140, 0.5, 512), LEAST_CHUNK),  # decoding alone takes the gap, and prompts move all the same
        (8, Pace(0), LEAST_CHUNK),  # nothing was measured
    ],
)
def test_the_room_beside_decode_positions_by_hand(decoding: int, pace: Pace, room: int) -> None:
    assert beside(decoding, pace, GAP_MS) == room


def beside_prompts(prompts: int = 3, length: int = 2000, decoding: int = 8, **options: object) -> Served:
    """Sequences decode; then long prompts come. With the events of the prompts' steps only."""
    settings = {"seats": 64, "step_tokens": 512, "gap_ms": GAP_MS, "blocks": 9999, "cost": COST} | options
    world = Served(**settings)  # type: ignore[arg-type]
    for i in range(decoding):
        world.add(f"d{i}", 4, max_tokens=400)
    for _ in range(40):
        world.step()
    world.events[:] = world.events[:1]  # what was loaded
    for i in range(prompts):
        world.add(f"long{i}", length, max_tokens=1)
    while any(not world.said[f"long{i}", 0] for i in range(prompts)):
        world.step()
    return world


def chunks(world: World) -> list[int]:
    return [sum(m.positions for m in step.members if m.doing == "prefill") for step in world.steps()]


def lasted_ms(step: Stepped) -> float:
    return 20 + 0.5 * sum(m.positions for m in step.members)


def test_steps_with_prompts_keep_the_gap_and_use_it() -> None:
    world = beside_prompts()
    steps = world.steps()
    assert all(lasted_ms(step) <= GAP_MS for step in steps)
    assert all(lasted_ms(step) == pytest.approx(AIM * GAP_MS, rel=0.01) for step in steps[3:-1])
    assert sum(chunks(world)) == 6000


def attending(plan: StepPlan) -> int:
    """As measured of a small model with int8 weights: 10 ms, a quarter of one for each position, and 180 ns for each
    position that it attends to."""
    pairs = sum(len(span.tokens) * (span.start + len(span.tokens) // 2) for span in plan.spans)
    return 10 * MS + MS // 4 * plan.cost + 180 * pairs


def test_each_chunk_of_a_long_prompt_costs_more_than_the_one_before_and_the_gap_is_kept_all_the_same() -> None:
    world = beside_prompts(4, cost=attending)
    lasted = [(after.at - before.at) / MS for before, after in itertools.pairwise(world.steps())]
    assert max(lasted) <= GAP_MS
    assert sum(lasted) / sum(chunks(world)[:-1]) <= 0.5  # ms for each position: no more than in the last chunks


def test_the_same_prompts_with_a_fixed_budget_stretch_the_gap() -> None:
    world = beside_prompts(gap_ms=None)
    assert max(map(lasted_ms, world.steps())) == pytest.approx(20 + 0.5 * 512)
    assert all(step.bound is None and step.budget == 512 for step in world.steps())


def test_what_a_prompt_costs_is_known_again_after_many_steps_without_one() -> None:
    world = beside_prompts(1)
    for _ in range(60):
        world.step()
    world.events[:] = world.events[:1]
    world.add("next", 2000, max_tokens=1)
    world.step()
    assert chunks(world) == [pytest.approx(FITTING - 8, abs=2)]


def test_where_nobody_decodes_a_step_is_as_large_as_any() -> None:
    assert chunks(beside_prompts(decoding=0))[:3] == [512, 512, 512]


def test_a_machine_that_becomes_slower_gets_smaller_steps() -> None:
    """Of the first steps some exceed the gap; the pace of the last few is what counts."""
    world = beside_prompts(3)
    world.executor._cost_ns = linear_cost(step_ns=40 * MS, position_ns=MS)
    world.events[:] = world.events[:1]
    world.add("next", 2000, max_tokens=1)
    while not world.said["next", 0]:
        world.step()
    late = world.steps()[8:-1]
    assert all(40 + sum(m.positions for m in step.members) <= GAP_MS for step in late)
    assert chunks(world)[0] > 180 and chunks(world)[8] < 90


def test_the_step_tells_by_which_numbers_its_budget_was_cut() -> None:
    step = beside_prompts().steps()[5]
    assert step.bound is not None and step.budget == FITTING
    assert step.bound.gap_ms == GAP_MS
    assert step.bound.fixed_ms == pytest.approx(20, rel=0.05)
    assert step.bound.position_ms == pytest.approx(0.5, rel=0.01)


def test_who_waits_for_the_cut_budget_is_told_of_the_option() -> None:
    world = beside_prompts(1)
    for name in ("first", "second"):
        world.add(name, 2000, max_tokens=1)
    world.step()
    wait = world.steps()[-1].waits["second"]
    assert (wait.rule, wait.have, wait.by) == ("budget", 0, "--gap-ms 150")
    assert shortage(wait) == "the step's budget (cut for --gap-ms 150) is spent before its next position."
    view = request_view(world.story, world.story.record("second"), world.clock.now_ns())
    assert view.verdict is not None and view.verdict.by == "--gap-ms 150"  # type: ignore[union-attr]


def test_the_doctor_weighs_prompts_against_gaps_by_the_measured_numbers() -> None:
    found = beside_prompts(6).findings()
    assert found["time_budget"].next == "raise --gap-ms from 150 to 300"
    assert "where a step takes 20.0 ms and 0.5 ms for each position" in found["time_budget"].says
    assert found["time_budget"].evidence["position_ms"] == pytest.approx(0.5, rel=0.01)


def test_the_doctor_advises_a_shorter_gap_where_prompts_stretch_it() -> None:
    world = Served(seats=8, step_tokens=512, gap_ms=GAP_MS, blocks=999, cost=COST)
    world.add("a", 10, max_tokens=60)
    for i in range(4):
        for _ in range(8):
            world.step()
        world.add(f"b{i}", 600, max_tokens=2)
    world.run()
    found = world.findings()["prefill_interference"]
    assert found.next.startswith("lower --gap-ms from 150 to 75 (the longest such gap took ")


def test_one_model_may_keep_another_gap_or_have_a_fixed_step() -> None:
    slow, fixed = choose_models(ServeOptions(model=("a:gap-ms=400", "b:step-tokens=256"), gap_ms=80))
    assert (slow.options.kept_gap_ms, fixed.options.kept_gap_ms) == (400, None)
    assert (slow.options.most_step_tokens, fixed.options.most_step_tokens) == (512, 256)
    with pytest.raises(ConfigError, match="keeps no gap"):
        choose_models(ServeOptions(model=("a:step-tokens=256:gap-ms=80",)))
