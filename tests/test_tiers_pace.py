"""Copies between pool and host memory beside those who decode: no step is held up by them, and none is forgotten."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from fake_tiers import fake_tiers
from headway.compute.fake import FakeExecutor, linear_cost
from headway.core.clock import ModelledClock
from headway.core.events import Offloaded, Reloaded
from headway.core.plan import StepPlan
from headway.core.request import TextRequest
from headway.core.tiers import ReloadChoice
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions, ServedModel
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model
from headway.patterns.text.tiering import Tiering
from headway.policy.copies import MOST_NS, UNMEASURED, CopyBudget, copy_budget
from headway.policy.reload import BlockSize, Measured, Rate, choose
from headway.replica.diskslab import DiskSlab
from headway.replica.diskworker import DiskWorker
from world import World

STEP_NS, POSITION_NS = 1_000_000, 10_000
#: Whole blocks of the prompt that comes back.
BLOCKS = 20


class Watched(World):
    """`ran` are the plans of its steps, and how long each took."""

    def __init__(self, **options: object) -> None:
        super().__init__(block_tokens=4, seats=4, step_tokens=512, **options)  # type: ignore[arg-type]
        self.ran: list[tuple[StepPlan, int]] = []
        run = self.executor.run

        def watched(plan: StepPlan):
            began = self.clock.now_ns()
            result = run(plan)
            self.ran.append((plan, self.clock.now_ns() - began))
            return result

        self.executor.run = watched  # type: ignore[method-assign]

    def rest(self) -> None:
        while not self.engine.idle or self.engine.awaiting:
            self.step()


def copied(plan: StepPlan) -> int:
    return len(plan.offloads) + len(plan.reloads)


def comes_back(copy_ns: int, disk: bool = False, **options: object) -> Watched:
    """Three decode; meanwhile a prompt comes whose blocks were evicted, so that they are brought back."""
    tiers = {"disk_slots": 200, "host_slots": 30, "staging": True} if disk else {"host_slots": 200}
    world = Watched(blocks=100, copy_ns=copy_ns, **tiers, **options)
    prompt = [5 * i % 97 for i in range(4 * BLOCKS + 1)]
    world.add("first", prompt, max_tokens=1)
    world.run()
    world.rest()
    world.add("filler", 4 * 99, max_tokens=1)
    world.run()
    world.rest()
    for number in range(3):
        world.add(f"decodes {number}", 3, max_tokens=64)
    for _ in range(35):
        world.step()
    world.ran.clear()
    world.events.clear()
    world.model.pattern.tiering._measured.prefill = Rate()  # so that nothing is computed that could be brought back
    world.add("again", prompt, max_tokens=1)
    return world


@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize(("copy_ns", "blocks"), [(2_000, 20), (10_000, 5), (25_000, 2), (50_000, 1), (400_000, 1)])
def test_copies_take_a_twentieth_of_a_step_of_those_who_decode_or_one_block_each_way(copy_ns, blocks, disk):
    world = comes_back(copy_ns, disk)
    while not any(isinstance(event, Reloaded) for event in world.events):
        world.step()
        assert "decodes 0" in world.engine.requests, "it comes back while they decode"
    quiet = STEP_NS + 3 * POSITION_NS
    beside = [(plan, ns) for plan, ns in world.ran if plan.items]
    assert max(len(plan.reloads) for plan, _ in beside) == blocks
    assert sum(len(plan.reloads) for plan, _ in beside) == BLOCKS
    assert all(copied(plan) * copy_ns <= max(quiet // 20, 2 * copy_ns) for plan, _ in beside)
    world.run()
    assert world.counts("again").reused == 4 * BLOCKS
    assert all(world.said[id, 0] == world.expected(id) for id in ("again", "decodes 0"))


def test_where_nobody_waits_for_the_step_all_is_copied_at_once():
    world = comes_back(10_000)
    for number in range(3):
        world.engine.cancel(f"decodes {number}")
    world.ran.clear()
    world.run()
    assert max(len(plan.reloads) for plan, _ in world.ran) == BLOCKS


def test_where_nobody_waits_a_step_copies_ten_milliseconds_at_most():
    world = comes_back(1_000_000)
    assert BLOCKS > 10
    for number in range(3):
        world.engine.cancel(f"decodes {number}")
    world.ran.clear()
    world.run()
    assert max(copied(plan) for plan, _ in world.ran) == MOST_NS // 1_000_000 == 10


def test_writes_and_reloads_share_the_budget_and_neither_waits_for_the_end_of_the_other():
    tiers, _ = fake_tiers(FakeExecutor(blocks=1, block_tokens=4, host_slots=40), 0)
    tiering = Tiering(BlockPool(60, 4, tiers), 1000)
    for rate in (tiering._measured.offload, tiering._measured.reload):
        rate.note(0, 1e9, 10**9)
    keys = [bytes([number]) * 16 for number in range(40)]
    for key in keys[:20]:
        tiers.host.claim(key)
        tiers.host.written(key)

    def named(ns: int) -> tuple[int, int]:
        """Of a step whose copies may take that long, where a block takes a microsecond."""
        tiering.open(0, CopyBudget(ns, 20 * ns))
        offloads, reloads = tiering.name()
        tiers.copied()
        return len(offloads), len(reloads)

    for number, key in enumerate(keys[20:]):
        tiers.indexed(20 + number, key)
    assert named(7_000) == (7, 0), "all of it is for writes"
    reload = tiers.begin(keys[:20], range(20))
    assert named(7_000) == (3, 4) and named(7_500) == (3, 4) and named(1_000) == (1, 1)
    assert named(40_000) == (6, 11), "what is left of either"
    assert reload.over and named(40_000) == (0, 0)


def test_what_is_indexed_faster_than_it_may_be_copied_is_copied_in_the_steps_that_follow():
    world = Watched(blocks=200, host_slots=200, copy_ns=10_000)
    for number in range(3):
        world.add(f"decodes {number}", 3, max_tokens=150)
    for _ in range(35):
        world.step()
    world.ran.clear()
    world.add("long", 4 * 40 + 1, max_tokens=1)
    for _ in range(12):
        world.step()
    counts = [len(plan.offloads) for plan, _ in world.ran]
    assert max(counts) == 5 and sum(counts) >= 40
    assert (
        world.tiers.backlog is None and sum(e.blocks["host"] for e in world.events if isinstance(e, Offloaded)) >= 40
    )


def tiered_model(name: str, clock: ModelledClock, copy_ns: int, host_slots: int) -> tuple[ServedModel, FakeExecutor]:
    executor = FakeExecutor(
        blocks=60, block_tokens=4, clock=clock, copy_ns=copy_ns, host_slots=host_slots,
        cost_ns=lambda plan: linear_cost(step_ns=STEP_NS, position_ns=POSITION_NS)(plan) if plan.items else 0,
    )  # fmt: skip
    tiers = fake_tiers(executor, 0)[0] if host_slots else None
    memory = StateMemory(BlockPool(60, 4, tiers), prefix_cache=True)
    return text_model(executor, memory, EngineOptions(seats=4, step_tokens=512), name=name), executor


def run(engine: Engine, until: Sequence[str]) -> None:
    while any(id in engine.requests for id in until) or (not until and not engine.idle):
        engine.step()


@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside another model"])
def test_a_step_of_copies_alone_is_as_short_where_those_of_another_model_decode(other):
    clock = ModelledClock()
    (copying, executor), (decoding, _) = (tiered_model(name, clock, 10_000, 200 * (name == "a")) for name in "ab")
    engine = Engine([copying, decoding], clock)
    prompt = tuple(5 * i % 97 for i in range(4 * BLOCKS + 1))
    for id, tokens in (("first", prompt), ("filler", tuple(range(200, 200 + 4 * 59)))):
        engine.add(TextRequest(id=id, model="a", prompt=tokens, max_tokens=1))
        run(engine, [])
    if other:
        engine.add(TextRequest(id="decodes", model="b", prompt=(1, 2, 3), max_tokens=200))
        for _ in range(40):
            engine.step()
    seen: list[int] = []
    evaluate = executor.run
    executor.run = lambda plan: (seen.append(len(plan.reloads)), evaluate(plan))[1]  # type: ignore[method-assign]
    engine.add(TextRequest(id="again", model="a", prompt=prompt, max_tokens=1))
    copying.pattern.tiering._measured.prefill = Rate()
    run(engine, ["again"])
    assert sum(seen) == BLOCKS and max(seen) == (5 if other else BLOCKS)


def test_a_step_that_only_copied_or_failed_says_nothing_of_what_steps_take():
    world = Watched(blocks=60, host_slots=200, copy_ns=1)
    world.add("a", 40, max_tokens=1)
    world.run()
    world.rest()
    assert [bool(plan.items) for plan, _ in world.ran] == [True, False]
    model = world.model
    assert model.fastest_ns == model.pace(world.clock.now_ns()).step_ns == STEP_NS + 40 * POSITION_NS
    world.add("b", 8, max_tokens=4)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    assert model.fastest_ns == model.pace(world.clock.now_ns()).step_ns == STEP_NS + 40 * POSITION_NS


# -- the policy ---------------------------------------------------------------------------------------------------


def test_the_budget_is_five_percent_of_the_shortest_step_that_is_waited_for():
    assert copy_budget([]) == CopyBudget(MOST_NS, 0)
    assert copy_budget([8_000_000, 20_000_000]) == CopyBudget(400_000, 8_000_000)
    assert copy_budget([10**10]) == CopyBudget(MOST_NS, 10**10)
    assert copy_budget([0, 8_000_000]).ns == 0, "a model that had no step yet may have short ones"


def test_a_budget_holds_the_blocks_that_its_time_is_enough_for_and_one_always():
    assert CopyBudget(400_000).blocks(100_000, 1e9) == 4 and CopyBudget(399_999).blocks(100_000, 1e9) == 3
    assert CopyBudget(0).blocks(100_000, 1e9) == 1
    assert CopyBudget(400_000).blocks(100_000, None) == CopyBudget(400_000).blocks(100_000, UNMEASURED)
    assert CopyBudget(400_000).without(3, 100_000, 1e9) == CopyBudget(100_000)
    assert CopyBudget(400_000).without(5, 100_000, 1e9).ns == 0


def test_beside_steps_blocks_come_at_the_rate_at_which_steps_bring_them():
    """Of blocks of 1,000 bytes at a byte a nanosecond four fit into 4 µs of each 80 µs, which are 84 with them."""
    known = Measured()
    known.prefill.note(0, 10_000, 10**9)
    known.reload.note(0, 1e9, 10**9)
    alone, beside = (
        choose(9, 0, BlockSize(1000, 4), known, 0, each) for each in (CopyBudget(MOST_NS), CopyBudget(4000, 80_000))
    )
    assert alone == ReloadChoice(True, 9, 0, pytest.approx(1e9), 2.5e6)
    assert beside.reload and beside.bandwidth == pytest.approx(4000 / 84e-6)
    assert not choose(9, 0, BlockSize(1000, 4), known, 0, CopyBudget(4000, 10**9)).reload


def test_until_a_reload_was_measured_an_offload_says_how_fast_copies_are():
    known = Measured()
    known.offload.note(0, 100, 10**9)
    assert choose(1, 0, BlockSize(1, 1), known, 0, CopyBudget(MOST_NS)).bandwidth == 100
    known.reload.note(0, 300, 10**9)
    assert choose(1, 0, BlockSize(1, 1), known, 0, CopyBudget(MOST_NS)).bandwidth == 300


def test_a_few_copies_that_were_held_up_do_not_make_all_of_them_slow():
    rate = Rate()
    for at in range(9):
        rate.note(at, 1000, 8_000_000 if at % 3 == 0 else 1000)
    assert rate.typical(9) == 1e9 and rate.per_second(9) < 1e6
    assert rate.typical(-1) is None and rate.typical(10**12) is None


# -- the disk's thread --------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no niceness of its own")
def test_the_thread_of_the_disk_stands_behind_those_of_steps(tmp_path):
    slab = DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 14)
    worker = DiskWorker(slab, lambda slot: memoryview(bytearray(100)))
    worker.write(b"k" * 16, 0, 0)
    until = time.monotonic() + 30
    while not (over := list(worker.finished())):
        assert time.monotonic() < until
        time.sleep(0.001)
    assert over[0].fault is None
    thread = worker._thread.native_id
    assert thread is not None
    own, behind = (os.getpriority(os.PRIO_PROCESS, each) for each in (threading.get_native_id(), thread))
    assert behind == min(19, own + 10)
    worker.close(10)
