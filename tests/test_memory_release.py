"""The end of a sequence's state: one handle, one release, whatever the reason, and never too early."""

from __future__ import annotations

import pytest

from headway.core.errors import InvariantError, UnknownRequest
from headway.core.request import Stage
from headway.memory.keys import KeyChain
from headway.memory.pool import BlockPool
from headway.memory.table import BlockTable
from world import World


def levels(pool: BlockPool) -> tuple[int, int, int]:
    return pool.live, pool.reusable, pool.free


def test_a_second_release_does_nothing():
    pool = BlockPool(4, 2)
    table = BlockTable(pool, [], 0)
    table.grow(3)
    table.release()
    assert levels(pool) == (0, 0, 4)
    table.release()
    assert levels(pool) == (0, 0, 4)
    pool.check({})


def test_a_block_dropped_once_too_often_is_a_bug_that_is_named():
    pool = BlockPool(1, 2)
    block = pool.take()
    pool.drop(block)
    with pytest.raises(InvariantError, match="dropped without a reference"):
        pool.drop(block)
    with pytest.raises(InvariantError, match="is free and cannot be shared"):
        pool.share(block)
    with pytest.raises(InvariantError, match="not live and cannot be published"):
        pool.publish(block, b"key", b"root", [1, 2])


def test_an_empty_pool_gives_nothing():
    pool = BlockPool(1, 2)
    pool.take()
    with pytest.raises(InvariantError, match="none left"):
        pool.take()


def test_the_pools_own_check_sees_a_missing_reference():
    pool = BlockPool(2, 2)
    block = pool.take()
    pool.check({block: 1})
    with pytest.raises(InvariantError, match="1 references, holders count 0"):
        pool.check({})
    with pytest.raises(InvariantError, match="1 references, holders count 2"):
        pool.check({block: 2})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pool: pool._free.append(pool._free[0]), "idle twice"),
        (lambda pool: pool._free.append(0), "idle and in use"),
        (lambda pool: pool._free.pop(), "not total"),
        (lambda pool: pool.index.forget(pool._key[1]), "disagree"),
        (lambda pool: pool._reusable.update({pool._free.pop(): None}), "disagree"),
        (lambda pool: pool._free.append(pool._reusable.popitem()[0]), "still indexed"),
    ],
)
def test_the_pools_own_check_sees_every_other_way_in_which_its_books_can_be_wrong(spoil, words):
    """Block 0 is live, block 1 reusable, two are free."""
    pool = BlockPool(4, 2)
    pool.take()
    table = BlockTable(pool, [], 0)
    table.grow(1)
    table.publish(KeyChain(b"root", 2), [1, 2], 2)
    table.release()
    pool.check({0: 1})
    spoil(pool)
    with pytest.raises(InvariantError, match=words):
        pool.check({0: 1})


def test_the_engines_own_check_sees_counts_that_do_not_add_up():
    world = World()
    request = world.add("a", 20, max_tokens=3)
    world.engine.step()
    request.progress.sequences[0].counts.prefilled += 1
    with pytest.raises(InvariantError, match="the counts say"):
        world.engine.check()


@pytest.mark.parametrize("leave", ["finish", "cancel", "cancel in flight", "fail"])
def test_after_every_end_all_blocks_are_back(leave):
    world = World(blocks=10, block_tokens=4)
    world.add("a", 10, max_tokens=3)
    world.step()
    if leave == "finish":
        world.run()
    elif leave == "cancel":
        world.engine.cancel("a")
    elif leave == "cancel in flight":
        plan = world.engine.plan()
        world.engine.cancel("a")
        assert world.pool.live == 3  # the running step still writes into them
        world.note(world.engine.commit(world.executor.run(plan)))
    else:
        world.executor.fail_next = RuntimeError("the machine broke")
        world.step()
    world.engine.check()
    assert world.pool.live == 0 and not world.engine.requests
    assert world.story.record("a").sequences[0].blocks == []


def test_a_request_that_has_ended_cannot_be_cancelled_again_even_while_its_step_runs():
    world = World()
    world.add("a", 20, max_tokens=5)
    plan = world.engine.plan()
    world.engine.cancel("a", by="client")
    with pytest.raises(UnknownRequest):
        world.engine.cancel("a", by="request")
    world.note(world.engine.commit(world.executor.run(plan)))
    with pytest.raises(UnknownRequest):
        world.engine.cancel("a")
    assert world.story.record("a").reason == "client"


def test_a_cancelled_request_in_flight_keeps_what_it_computed_for_others_to_reuse():
    world = World(block_tokens=4)
    world.add("a", list(range(9)), max_tokens=5)
    plan = world.engine.plan()
    world.engine.cancel("a")
    world.note(world.engine.commit(world.executor.run(plan)))
    assert levels(world.pool) == (0, 3, 97)  # the last one holds one position
    assert world.counts("a").prefilled == 9  # it is still charged for what ran
    assert world.said["a", 0] == []
    world.add("b", list(range(9)), max_tokens=1)
    world.run()
    assert world.counts("b").reused == 8
    assert world.said["b", 0] == world.expected("b")


def test_a_cancelled_request_is_charged_for_accepted_drafts_but_keeps_none():
    box: list[World] = []

    def oracle(tokens: list[int]) -> list[int]:
        emitted = len(tokens) - 7
        return box[0].expected("a", 0, emitted + 3)[emitted:]

    world = World(block_tokens=4, drafter=oracle)
    box.append(world)
    request = world.add("a", 7, max_tokens=40)
    world.step()
    plan = world.engine.plan()
    assert plan.items[0].drafts == 3
    world.engine.cancel("a")
    world.note(world.engine.commit(world.executor.run(plan)))
    sequence = world.story.record("a").sequences[0]
    assert (sequence.known, sequence.computed) == (8, 8)
    assert (sequence.counts.decoded, sequence.counts.rejected) == (1, 3)
    assert all(len(tokens) == 4 for tokens in world.pool.index._tokens.values())
    assert request.stage is Stage.CANCELLED


def test_blocks_of_a_failed_step_are_free_and_nothing_in_them_is_found_again():
    world = World(blocks=40, block_tokens=4, seats=4, step_tokens=8)
    prompt = list(range(20))
    world.add("a", prompt, max_tokens=5)
    world.step()  # two blocks are computed, and indexed
    assert len(world.pool.index) == 2
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    assert world.story.record("a").stage is Stage.FAILED
    assert levels(world.pool) == (0, 0, 40) and len(world.pool.index) == 0
    world.add("b", prompt, max_tokens=2)
    world.run()
    assert world.counts("b").reused == 0
    assert world.story.record("b").miss.why == "none"  # nothing was evicted either


def test_requests_that_were_not_in_the_failed_step_live_on():
    world = World(blocks=40, block_tokens=4, step_tokens=4, seats=4)
    first = world.add("a", 20, max_tokens=2)
    second = world.add("b", 9, max_tokens=2)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()  # four positions for a; b waits for its turn
    assert (first.stage, second.stage) == (Stage.FAILED, Stage.WAITING)
    world.run()
    assert second.stage is Stage.FINISHED and world.said["b", 0] == world.expected("b", 0, 2)


def test_a_block_that_somebody_else_holds_stays_known_when_a_failed_request_drops_it():
    pool = BlockPool(4, 2)
    keys = KeyChain(b"root", 2)
    failed = BlockTable(pool, [], 0)
    failed.grow(2)
    failed.publish(keys, [1, 2, 3, 4], 4)
    shared, own = failed.blocks
    pool.share(shared)
    failed.release(keep=False)
    first, second = keys.upto([1, 2, 3, 4], 2)
    assert pool.index.get(first) == shared and pool.index.get(second) is None
    assert not pool.is_reusable(own)
    pool.check({shared: 1})


def test_an_id_may_come_back_while_its_cancelled_namesake_still_runs():
    world = World()
    world.add("a", 20, max_tokens=5)
    plan = world.engine.plan()
    world.engine.cancel("a")
    world.add("a", list(range(500, 530)), max_tokens=2)
    world.note(world.engine.commit(world.executor.run(plan)))  # the records agree with the books after this, too
    assert world.counts("a").prefilled == 0
    world.run()
    assert world.counts("a").prefilled == 30
    assert world.said["a", 0] == world.expected("a")


def test_published_content_never_outlives_its_block():
    pool = BlockPool(2, 2)
    keys = KeyChain(b"root", 2)
    table = BlockTable(pool, [], 0)
    table.grow(2)
    table.publish(keys, [1, 2, 3, 4], 4)
    first, second = keys.upto([1, 2, 3, 4], 2)
    table.release()
    assert pool.index.match([first, second], 2) != []
    pool.take()  # evicts the tail
    assert pool.index.get(second) is None and pool.index.get(first) is not None
    pool.take()
    assert pool.index.get(first) is None and pool.evictions == 2
