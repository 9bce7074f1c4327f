"""What `headway doctor` finds: each cause from a situation that has it, in full, beside a twin that has it not.

A step of the fake executor takes 1 ms and 0.01 ms for each position, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.compute.fake import linear_cost
from headway.core.events import Loaded
from headway.core.plan import Grammar, StepPlan
from headway.story.diagnose.doctor import diagnose
from headway.story.diagnose.observations import Machine, Observations
from served import MS, Served, one_by_one, only, served

FIXED = linear_cost(step_ns=1000, position_ns=MS // 10)


# -- seats and memory -----------------------------------------------------------------------------------------


def test_seats_full_while_memory_is_free():
    found = only(served(8, 20, 20, blocks=400, seats=2))
    assert found.name == "seats_full" and found.evidence["spare_blocks"] == 394
    assert found.says == (
        "In 60 steps too few of the 2 seats were free; up to 6 requests waited, 0.25 s in total, while at least 394 "
        "of 400 blocks were free or reusable."
    )
    assert found.next == (
        "raise --seats from 2 to 8: a sequence held up to 3 blocks, so the free blocks are enough for 131 more"
    )
    assert found.but == "More --memory would not help: there was memory to spare."
    assert found.cost_s == pytest.approx(sum(6 - 2 * i for i in range(3)) * 0.0208, rel=0.02)


def test_more_seats_than_a_step_has_positions_need_more_positions():
    found = served(12, 6, 20, blocks=400, seats=4, step_tokens=8).findings()["seats_full"]
    assert found.next.startswith("raise --seats from 4 to 12, and --step-tokens to at least as many (it is 8): ")


def test_more_seats_are_not_advised_where_memory_is_full_too():
    found = only(served(8, 20, 20, blocks=6, seats=2))
    assert found.name == "seats_and_memory_full"
    assert found.says == (
        "In 60 steps too few of the 2 seats were free; up to 6 requests waited, 0.25 s in total. Memory was full "
        "too: 0 of 6 blocks were free or reusable, and a sequence holds up to 3."
    )
    assert found.next == "raise --memory and --seats together, or add a second machine"
    assert found.but == "More --seats alone would not help: there is no memory for them."


def test_memory_full_while_seats_are_free():
    found = served(8, 30, 20, blocks=9, seats=16).findings()["memory_full"]
    assert found.says == (
        "In 41 steps a request waited for blocks, up to 2 short (the pool has 9); up to 6 requests waited, 0.15 s "
        "in total. Meanwhile 32 blocks of known prefixes were evicted and requests were preempted 6 times."
    )
    assert found.next == "raise --memory from 9 to at least 11 blocks (0.2 KiB more)"
    assert found.but == "More --seats would not help: at least 12 of 16 were free."


@pytest.mark.parametrize(("state", "advised"), [("fp32", "bf16"), ("bf16", "int8"), ("int8", None)])
def test_a_smaller_format_of_state_that_would_have_been_enough_is_named_with_its_cost(state, advised):
    found = served(8, 30, 20, blocks=9, seats=16, state=state).findings()["memory_full"]
    raised, _, instead = found.next.partition(", or serve with ")
    assert raised.startswith("raise --memory from 9 to at least 11 blocks")
    assert instead.startswith(f"--state {advised} (") and "perplexity" in instead if advised else not instead


def test_what_no_event_told_is_left_out():
    world = Served(blocks=12, seats=16)
    for i in range(5):
        world.add(f"r{i}", 40, max_tokens=6)
    world.run()
    found = world.findings()["memory_full"]
    assert found.says == (
        "In 6 steps a request waited for blocks, up to 3 short (the pool has 12); up to 1 request waited, 7.8 ms in "
        "total."
    )
    (found,) = diagnose(Observations().fold_all(event for event in world.events if not isinstance(event, Loaded)))
    assert (found.next, found.but) == ("raise --memory from 12 to at least 15 blocks", "")


def test_neither_is_claimed_where_nobody_waits_for_either():
    assert served(8, 20, 20, blocks=400, seats=16).findings() == {}


def test_work_done_again_after_preemptions():
    found = served(8, 20, 20, blocks=9, seats=16, prefix_cache=False).findings()["recomputed"]
    assert found.says == (
        "57 of 369 positions (15%) were recomputed after 2 preemptions, which lost 57; most often r1 preempted "
        "r3 (once). Up to 4 sequences were active, a sequence held up to 3 blocks, and the pool has 9."
    )
    assert (
        found.next == "raise --memory to 12 blocks, enough for that many sequences to finish, or lower --seats to 3"
    )
    assert found.but == "More --step-tokens would not help: space was short, not the step budget."


def test_preemptions_whose_state_is_found_again_cost_next_to_nothing():
    world = Served(blocks=40, block_tokens=4, seats=4)
    world.add("early", 60, max_tokens=24)
    world.add("late", 60, max_tokens=40)
    world.run()
    assert any(event.lost for event in world.seen().preemptions)
    assert "recomputed" not in world.findings()


# -- steps ----------------------------------------------------------------------------------------------------


def test_a_small_step_budget_where_more_of_it_would_help():
    found = only(served(4, 200, 3, step_tokens=32, seats=8))
    assert found.name == "step_budget"
    assert found.says == (
        "25 steps spent all 32 positions of their budget while prompts waited for more, 47.5 ms in total; one prompt "
        "took 8 steps."
    )
    assert found.next == "raise --step-tokens from 32 to 64"
    assert found.but == (
        "Gaps between tokens (inter-token latency) grow: up to 1.6 ms instead of 1.3 ms in steps with a prompt."
    )
    assert found.cost_s == pytest.approx(0.0475 * 0.5 / 1.32, rel=0.01)


def test_steps_that_are_all_alike_do_not_say_what_more_budget_would_cost():
    found = only(served(3, 96, 1, step_tokens=32, seats=8))
    assert found.but == "Gaps between tokens (inter-token latency) grow in steps with a prompt."


def test_more_budget_is_not_advised_where_the_positions_take_the_time():
    found = only(served(4, 200, 3, step_tokens=32, seats=8, cost=FIXED))
    assert found.name == "compute_full"
    assert found.says.endswith(
        "Such a step takes 3.2 ms, of which only 0.0 ms is independent of the number of positions."
    )
    assert found.next.startswith("compute less or faster: ")
    assert found.but == "More --step-tokens would not help: the positions themselves take the time."


def test_a_budget_that_is_spent_by_one_prompt_with_nobody_waiting_is_no_cause():
    assert served(1, 200, 3, step_tokens=32, seats=8).findings() == {}


def beside_prompts(cost: Callable[[StepPlan], int], prompt: int = 300, **options: int) -> Served:
    """One request emits 60 tokens; others with long prompts come now and then."""
    world = Served(cost=cost, **{"step_tokens": 128, "seats": 8, **options})
    world.add("a", 10, max_tokens=60)
    for i in range(4):
        for _ in range(8):
            world.step()
        if prompt:
            world.add(f"b{i}", prompt, max_tokens=2)
    world.run()
    return world


DEAR = linear_cost(step_ns=MS, position_ns=MS // 10)


def test_prompts_that_stretch_others_gaps_between_tokens():
    world = beside_prompts(DEAR)
    found = only(world)
    assert found.name == "prefill_interference"
    assert found.says == (
        "12 gaps between tokens took 13.8 ms instead of 1.1 ms, because their steps also contained another "
        "request's prompt: steps 9, 10, 11, 17, 18 and 7 more (prompts of b0, b1, b2, b3)."
    )
    assert found.next == (
        "lower --step-tokens from 128 to 64: the longest such gap then takes about 7.4 ms instead of 13.8 ms, and a "
        "long prompt about twice as many steps"
    )
    assert found.but == "More --memory or --seats would not help: these requests had enough of both."
    held = {step.step for step in world.steps() if any(m.doing == "prefill" and m.id != "a" for m in step.members)}
    assert set(found.evidence["steps"]) == held


def test_a_shorter_step_is_not_advised_below_the_number_of_seats():
    found = beside_prompts(DEAR, prompt=60, seats=64).findings()["prefill_interference"]
    assert found.next == "lower --seats (now 64), then --step-tokens, to 31"
    assert found.but == (
        "Lowering --step-tokens alone would not help: it must be at least --seats (64), and the prompt chunks had up "
        "to 60 positions."
    )


def test_slow_gaps_without_a_prompt_in_their_steps_are_not_put_down_to_one():
    slow_now_and_then = lambda plan: 14 * MS if plan.step % 5 == 0 else MS  # noqa: E731
    assert beside_prompts(slow_now_and_then, prompt=0).findings() == {}


def test_steps_with_a_prompt_that_take_no_longer_are_not_blamed_for_gaps_between_steps():
    world = Served(cost=lambda plan: MS, step_tokens=128, seats=8)
    world.add("a", 10, max_tokens=40)
    for i in range(4):
        for _ in range(6):
            world.step()
        world.add(f"b{i}", 100, max_tokens=2)
        world.clock.advance(13 * MS)  # the step that computes this prompt comes late, but is as quick as any
    world.run()
    assert [*world.findings()] == ["host_gaps"]


def test_time_between_steps_while_work_is_there():
    world = Served()
    world.add("a", 10, max_tokens=30)
    while world.engine.requests:
        world.step()
        world.clock.advance(2 * MS if world.engine.steps == 7 else MS // 2)
    found = only(world)
    assert found.name == "host_gaps"
    assert found.says == (
        "34% of the time passed between steps, with work present and nothing computed: 16.0 ms in 29 gaps, median "
        "0.5 ms, longest 2.0 ms before step 8."
    )
    assert found.next.startswith("leave a core free for the replica's own work")
    assert found.but == "Raising a server limit would not help: nobody waited for space or a turn in that time."


@pytest.mark.parametrize("ends", ["finished", "cancelled", "awaits a grammar"])
def test_time_between_steps_without_work_is_no_gap(ends):
    world = Served()
    for i in range(6):
        world.add(f"r{i}", 10, max_tokens=3)
        if ends == "awaits a grammar":
            world.add(f"g{i}", 10, max_tokens=3, grammar=Grammar("json"))
        if ends == "cancelled":
            world.step()
            world.engine.cancel(f"r{i}", by="client")
        else:
            for _ in range(3):
                world.step()
        world.clock.advance(50 * MS)
    assert all(step.host_gap_ns in (None, 0) for step in world.seen().steps)
    assert world.findings() == {}


def repeated(cost: Callable[[int], int], requests: int = 25) -> Served:
    """Requests of one shape, one after the other; `cost` is told how many steps ran."""
    world = Served(prefix_cache=False)
    world.executor._cost_ns = lambda plan: cost(world.executor.runs)
    return one_by_one(world, [[500 + i, 1, 2, 3, 4] for i in range(requests)], 8)


SLOWER = (
    "Steps of the same shape became slower: 1.0 ms in the first third, 2.0 ms in the last (100% more), over 200 "
    "steps of 8 shapes."
)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (None, ""),
        (Machine(steal=0.2, load=3.0), " Other virtual machines now take 20% of this one's CPU time (steal)."),
        (Machine(steal=0.0, load=3.0), " The load average of this machine is now 3.0 per CPU."),
        (Machine(steal=None, load=0.4), ""),
    ],
)
def test_steps_that_become_slower_at_equal_work(machine, words):
    found = only(repeated(lambda runs: MS if runs <= 100 else 2 * MS), machine)
    assert found.says == SLOWER + words
    assert found.next.startswith("check the machine: ")
    assert found.but == "No server option would help: the steps do the same work."


def test_slower_steps_are_not_claimed_from_few_steps_nor_from_one_slow_moment():
    assert repeated(lambda runs: MS if runs <= 25 else 2 * MS, requests=6).findings() == {}
    assert repeated(lambda runs: 9 * MS if 90 < runs < 110 else MS).findings() == {}


def test_slower_steps_are_not_claimed_where_the_work_grows():
    world = Served(prefix_cache=False, seats=64)
    for i in range(40):
        for j in range(1 + i // 2):
            world.add(f"r{i}.{j}", 10, max_tokens=6)
        world.run()
    assert world.findings() == {}


def test_a_kernel_that_is_slower_than_usual():
    words = "bf16 weights and inputs, F.linear"
    found = only(served(1, 5, 3, kernels={"products": words, "attention": "batched products"}))
    assert found.says == (f"A slower kernel than usual is in use (products: {words}). The cost is not measured.")
    assert found.next.startswith("measure with `headway bench offline`") and found.cost_s == 0
    assert served(1, 5, 3).findings() == {}


def test_memory_is_full_too_where_blocks_are_left_for_growth():
    found = served(8, 30, 20, blocks=9, seats=16, admit="reserve").findings()["memory_full"]
    assert found.evidence["preemptions"] == 0 and found.evidence["short_blocks"] > 0
    assert found.next.startswith("raise --memory from 9 to at least")
