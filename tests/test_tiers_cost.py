"""What a step costs with tiers: it grows with what the step touches, and with nothing that only lies there or waits.
Work is counted in instructions of the interpreter, which are the same on every machine and in every run."""

from __future__ import annotations

from typing import Any

import pytest

from counted import instructions
from fake_tiers import FakeDisk, fake_tiers
from headway.compute.fake import FakeExecutor
from headway.core.request import TextRequest
from headway.memory.tiers import Tiers
from world import World

PREFIX = [3 * i % 97 for i in range(48)]


def step(world: World) -> int:
    """What planning a step and entering its result cost; what the executor does is not the engine's."""
    spent, plans, results = 0, [], []
    spent += instructions(lambda: plans.append(world.engine.plan()))
    if plans[0] is not None:
        results.append(world.executor.run(plans[0]))
        spent += instructions(lambda: world.engine.commit(results[0]))
    return spent


def add(world: World, id: str, prompt: list[int], **fields: Any) -> None:
    world.engine.add(TextRequest(id=id, prompt=tuple(prompt), **fields))


def settle(world: World) -> None:
    while not world.engine.idle or world.engine.awaiting:
        world.engine.step()


def forget(world: World) -> None:
    """Evict all that is reusable, without anyone who would take it."""
    for block in list(world.pool._reusable):
        world.pool._free.insert(0, world.pool.take() if not world.pool._free else block)
        del world.pool._reusable[block]
        world.pool.index.evict(world.pool._key[block], 0)
        world.pool._key[block] = None
        world.tiers.gone(block)


def crowd(waiting: int, *, blocks: int, slots: int, admit: str, policy: str) -> World:
    """Four run, four await blocks from a disk that takes for ever, and `waiting` more would await the same."""
    world = World(
        blocks=blocks, block_tokens=4, seats=4, step_tokens=64, host_slots=8, disk_slots=slots, staging=True,
        admit=admit, policy=policy,
    )  # fmt: skip
    world.engine.emit = lambda event: None  # the story is the front's
    add(world, "first", PREFIX, max_tokens=1)
    settle(world)
    forget(world)
    world.disk.delay = 1 << 30
    for number in range(4):
        add(world, f"awaits {number}", [*PREFIX, number], max_tokens=1)
    world.engine.step()
    for number in range(4):
        add(world, f"runs {number}", [number] * 5, max_tokens=500)
    world.engine.step()
    for number in range(waiting):
        add(
            world, f"waits {number}", [*PREFIX, number % 90], max_tokens=1, priority=number % 3,
            deadline_ms=1e9 + number * 7 % 100, caller=f"c{number}",
        )  # fmt: skip
    queues = world.model.queues
    assert (len(queues.running), len(queues.reloading), len(queues.waiting)) == (4, 4, waiting)
    return world


@pytest.mark.parametrize(
    ("admit", "policy"),
    [("optimistic", "fair"), ("headroom", "fcfs"), ("reserve", "priority"), ("predict", "deadline")],
)
def test_a_step_costs_no_more_with_a_million_blocks_a_million_slots_and_ten_thousand_who_wait(admit, policy):
    few = crowd(50, blocks=800, slots=50, admit=admit, policy=policy)
    many = crowd(10_000, blocks=1_000_000, slots=1_000_000, admit=admit, policy=policy)
    few_costs, many_costs = [step(few) for _ in range(12)], [step(many) for _ in range(12)]
    assert sum(many_costs) <= 1.02 * sum(few_costs), "binary search is all that may grow"
    assert sum(few_costs) > 12 * 1000, "instructions are counted"


def reloading(reloads: int) -> tuple[Tiers, FakeDisk]:
    """So many reloads of ten blocks each, all on disk, and eight slots to read into."""
    executor = FakeExecutor(blocks=1, block_tokens=1, host_slots=8)
    tiers, disk = fake_tiers(executor, 10 * reloads, delay=1 << 30, staging=True)
    for number in range(10 * reloads):
        key = number.to_bytes(16, "big")
        disk.slots[tiers.disk.claim(key)] = key, [1]
        tiers.disk.written(key)
    for number in range(reloads):
        keys = [(10 * number + i).to_bytes(16, "big") for i in range(10)]
        tiers.begin(keys, range(10 * number, 10 * number + 10))
    return tiers, disk


def test_a_read_that_is_over_costs_the_same_however_many_reloads_are_on_their_way():
    def one_block(tiers: Tiers, disk: FakeDisk) -> int:
        """A block is read, named by a step and copied, and the next one's read begins."""
        disk._queue[0][0] = 0
        spent = instructions(tiers.collect)
        assert tiers.ready and len(disk._queue) == 7
        spent += instructions(lambda: tiers.ready) + instructions(lambda: tiers.name(64)) + instructions(tiers.copied)
        assert not tiers.ready and len(disk._queue) == 8
        tiers.check()
        return spent

    few, many = reloading(2), reloading(1000)
    assert [one_block(*many) for _ in range(8)] == [one_block(*few) for _ in range(8)]


def test_dropping_a_reload_costs_in_proportion_to_its_own_blocks():
    costs = []
    for reloads in (2, 1000):
        tiers, _ = reloading(reloads)
        last = list(tiers._reloads)[-1]
        costs.append(instructions(lambda tiers=tiers, last=last: tiers.end(last)))
        tiers.check()
    assert costs[0] == costs[1] > 10
