"""Several sequences of one request: what they share, what each has alone, and how they come back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compute.fake import expected_tokens
from headway.core.events import Admitted, Committed
from headway.core.plan import Draw
from headway.core.request import Stage
from world import SAMPLED, World


def right(world: World, id: str) -> bool:
    new = world.asked[id]
    return all(world.said[id, index] == world.expected(id, index) for index in range(new.n))


def test_sequences_share_the_whole_blocks_of_their_prompt_and_nothing_else():
    world = World(block_tokens=4)
    world.add("a", 10, n=3, max_tokens=5, sampling=SAMPLED)
    world.step()
    first, second, third = (sequence.blocks for sequence in world.story.record("a").sequences)
    assert first[:2] == second[:2] == third[:2]
    assert len({*first[2:], *second[2:], *third[2:]}) == 3
    assert [world.pool.references(block) for block in first] == [3, 3, 1]
    assert world.pool.live == 2 + 3


def test_the_prompt_is_computed_once_and_its_siblings_count_all_of_it_as_reused():
    world = World(block_tokens=4)
    world.add("a", 10, n=3, max_tokens=5, sampling=SAMPLED)
    world.run()
    counts = [world.counts("a", index) for index in range(3)]
    assert [count.prefilled for count in counts] == [10, 0, 0]
    assert [count.reused for count in counts] == [0, 10, 10]
    assert [count.decoded for count in counts] == [4, 4, 4]
    assert world.story.record("a").first_reused == 0  # what the answer's usage calls cached
    assert right(world, "a")


@pytest.mark.parametrize(("prompt", "copies"), [(10, 2), (8, 0), (3, 2)])
def test_the_last_partly_filled_block_is_copied_for_each_sibling_in_the_step_that_ends_the_prompt(prompt, copies):
    world = World(block_tokens=4, seats=4, step_tokens=6)
    request = world.add("a", prompt, n=3, max_tokens=5, sampling=SAMPLED)
    plans = []
    while not request.ended:
        plans.append(world.engine.plan())
        tables = [list(sequence.state.blocks) for sequence in request.progress.open_sequences]
        world.note(world.engine.commit(world.executor.run(plans[-1])))
        if plans[-1].copies:
            lead, *siblings = tables
            assert plans[-1].copies == tuple((lead[prompt // 4], table[prompt // 4]) for table in siblings)
    last = next(plan for plan in plans if plan.items[0].draws)
    assert len(last.copies) == copies and len(last.items[0].draws) == 3
    assert sum(len(plan.copies) for plan in plans) == copies
    assert right(world, "a")


def test_all_sequences_emit_their_first_token_in_the_same_step_and_from_the_same_logits():
    world = World(seats=4, step_tokens=4)
    world.add("a", 10, n=3, max_tokens=5, sampling=SAMPLED)
    emissions = []
    while not emissions:
        emissions = world.step()
    assert [(emission.index, len(emission.tokens)) for emission in emissions] == [(0, 1), (1, 1), (2, 1)]
    assert sum(member.positions for step in world.steps() for member in step.members) == 10


def test_a_request_of_several_sequences_may_reuse_a_prefix_and_then_they_share_it():
    world = World(block_tokens=4)
    prompt = list(range(10))
    world.add("before", prompt, max_tokens=1)
    world.run()
    world.add("a", prompt, n=2, max_tokens=3, sampling=SAMPLED)
    world.run()
    assert [world.counts("a", index).reused for index in range(2)] == [9, 10]
    assert world.counts("a").prefilled == 1
    assert world.story.record("a").first_reused == 9
    assert right(world, "a")


def stop_of(world: World, prompt: list[int], index: int, place: int) -> int:
    """The token that ends sequence `index` of a sampled request as its `place`-th one."""
    return expected_tokens(prompt, Draw(index, 0, SAMPLED), place, world.vocab)[-1]


def test_the_leading_sequence_may_end_with_its_first_token_and_the_others_go_on():
    world = World(block_tokens=4)
    prompt = list(range(10))
    world.add("a", prompt, n=3, max_tokens=6, stop_ids=(stop_of(world, prompt, 0, 1),), sampling=SAMPLED)
    world.step()
    assert world.finish == {("a", 0): "stop"}
    assert [len(sequence.blocks) for sequence in world.story.record("a").sequences] == [0, 3, 3]
    world.run()
    assert [len(world.said["a", index]) for index in range(3)] == [1, 6, 6]
    assert right(world, "a")


# -- preempted and resumed ------------------------------------------------------------------------------------


def pair_world(*, cache: bool, first_ends_at: int | None, n: int = 2) -> World:
    """Two or three sequences that are preempted once, after six tokens of their own, beside an older request."""
    left = n - (first_ends_at is not None)
    world = World(blocks=5 + 3 * left, block_tokens=4, seats=8, prefix_cache=cache)
    prompt = list(range(100, 110))
    stop = () if first_ends_at is None else (stop_of(world, prompt, 0, first_ends_at),)
    world.add("old", 7, max_tokens=25)
    request = world.add("pair", prompt, n=n, max_tokens=10, stop_ids=stop, sampling=SAMPLED)
    while not request.preemptions:
        assert world.step()
    assert request.stage is Stage.WAITING
    return world


def test_sequences_are_put_out_whole_and_each_counts_what_it_lost():
    world = pair_world(cache=False, first_ends_at=None)
    sequences = world.story.record("pair").sequences
    assert all(sequence.blocks == [] and sequence.computed == 0 for sequence in sequences)
    known = [sequence.known for sequence in sequences]
    assert [sequence.counts.lost for sequence in sequences] == [k - 1 for k in known]


def test_without_a_cache_the_leading_one_recomputes_the_prompt_and_the_others_only_their_own():
    world = pair_world(cache=False, first_ends_at=None, n=3)
    lost = [world.counts("pair", index).lost for index in range(3)]
    world.run()
    counts = [world.counts("pair", index) for index in range(3)]
    assert [count.lost for count in counts] == lost  # preempted once
    assert (counts[0].regained, counts[0].recomputed) == (0, lost[0])
    for count, gone in zip(counts[1:], lost[1:], strict=True):
        assert (count.regained, count.recomputed) == (8, gone - 8)  # the shared whole blocks, by forking
    assert right(world, "pair") and right(world, "old")


def test_when_the_leading_one_had_ended_the_next_one_leads():
    world = pair_world(cache=False, first_ends_at=2, n=3)
    ended, *open_ones = world.story.record("pair").sequences
    assert ended.finish == "stop" and ended.counts.lost == 0
    lost = [sequence.counts.lost for sequence in open_ones]
    world.run()
    event = next(event for event in world.events if isinstance(event, Admitted) and event.resumed)
    assert event.indexes == (1, 2)
    assert (open_ones[0].counts.regained, open_ones[0].counts.recomputed) == (0, lost[0])
    assert (open_ones[1].counts.regained, open_ones[1].counts.recomputed) == (8, lost[1] - 8)
    assert right(world, "pair")


def test_when_all_but_one_had_ended_it_comes_back_alone():
    world = pair_world(cache=False, first_ends_at=2, n=2)
    lost = world.counts("pair", 1).lost
    world.run()
    count = world.counts("pair", 1)
    assert (count.lost, count.regained, count.recomputed) == (lost, 0, lost)
    assert right(world, "pair")


def test_with_a_cache_each_finds_its_own_blocks_again_as_far_as_they_are_left():
    world = pair_world(cache=True, first_ends_at=None)
    lost = [world.counts("pair", index).lost for index in range(2)]
    world.run()
    counts = [world.counts("pair", index) for index in range(2)]
    assert all(count.regained + count.recomputed == gone for count, gone in zip(counts, lost, strict=True))
    assert all(count.regained >= 8 for count in counts)
    assert right(world, "pair")


def test_put_out_before_the_first_token_they_fork_when_the_prompt_is_computed_again():
    world = World(blocks=11, block_tokens=4, seats=6, step_tokens=6, prefix_cache=False)
    world.add("old", 7, max_tokens=30)
    world.step(), world.step()
    request = world.add("pair", 26, n=2, max_tokens=3, sampling=SAMPLED)
    while not request.preemptions:
        assert world.step()
    assert request.progress.sequences[0].emitted == 0 and request.progress.sequences[0].counts.lost > 0
    world.run()
    first, second = (world.counts("pair", index) for index in range(2))
    assert first.prefilled + first.recomputed - first.lost == 26 and first.recomputed == first.lost > 0
    assert (second.reused, second.regained, second.recomputed) == (0, 26, 0)
    assert right(world, "pair")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(8, 20), st.integers(1, 5), st.booleans(), st.integers(4, 12), st.integers(0, 2),
    st.lists(st.tuples(st.integers(1, 11), st.integers(1, 3), st.integers(1, 9), st.integers(0, 2)),
             min_size=2, max_size=6),
)  # fmt: skip
def test_sequences_always_say_what_they_would_alone(blocks, size, cache, budget, guesses, asks):
    """Preempted, resumed, drafted, chunked: in any batch. Few tokens exist, so prefixes and answers coincide."""
    world = World(blocks=blocks, block_tokens=size, seats=4, step_tokens=budget, prefix_cache=cache, vocab=3,
                  drafter=lambda tokens: tokens[-1:] * guesses)  # fmt: skip
    for i, (prompt, n, emits, gap) in enumerate(asks):
        world.add(f"r{i}", [0] * prompt, n=n, max_tokens=emits, sampling=SAMPLED, stop_ids=(2,))
        for _ in range(gap):
            world.step()
    world.run()
    assert all(right(world, id) for id in world.asked)
    evaluated = sum(member.positions for step in world.steps() for member in step.members)
    told = [outcome for event in world.events if isinstance(event, Committed) for outcome in event.outcomes]
    assert evaluated == sum(o.prefilled + o.decoded + o.recomputed + o.rejected for o in told)
