"""The design's worked examples: counts, not latencies."""

from __future__ import annotations

import pytest

from headway.core.events import Admitted
from headway.core.request import Stage
from world import World


def decoding_world(step_tokens: int) -> World:
    world = World(blocks=1000, seats=64, step_tokens=step_tokens, prefix_cache=False)
    for i in range(32):
        world.add(f"d{i}", 1, max_tokens=100)
    world.step()
    assert all(len(world.said[f"d{i}", 0]) == 1 for i in range(32))
    return world


@pytest.mark.parametrize(("step_tokens", "chunks"), [(512, [480, 480, 480, 60]), (256, [224] * 6 + [156])])
def test_512_less_32_decoding_leaves_480_so_1500_positions_take_4_steps_and_with_256_they_take_7(step_tokens, chunks):
    world = decoding_world(step_tokens)
    world.add("long", 1500, max_tokens=2)
    got = []
    while not world.said["long", 0]:
        world.step()
        event = world.steps()[-1]
        got.append(sum(m.positions for m in event.members if m.id == "long"))
        assert sum(m.positions for m in event.members if m.id != "long") == 32
    assert got == chunks


def test_ten_preemptions_that_each_lose_2000_positions_recompute_20000_beside_20000_of_ordinary_prompt_work():
    world = World(blocks=1 + 126, block_tokens=16, step_tokens=4096, prefix_cache=False)
    for i in range(10):
        world.add(f"old{i}", 15, max_tokens=4)
        world.step()
        world.add(f"v{i}", 2000, max_tokens=2)
        world.step()  # the whole prompt of v, while old fills its only block
        world.step()  # old needs a second block: v is preempted, with the prompt computed and nothing more
        assert world.story.record(f"v{i}").preemptions == 1
        assert world.counts(f"v{i}").lost == 2000
        world.run()
    counts = [world.counts(f"v{i}") for i in range(10)]
    assert sum(c.recomputed for c in counts) == 20_000
    assert sum(c.prefilled for c in counts) == 20_000
    prompt_work = [m for e in world.steps() for m in e.members if m.id[0] == "v" and m.doing != "decode"]
    assert sum(m.positions for m in prompt_work) == 40_000 + 10  # each resumption adds its newest position


def test_identical_prompts_without_a_prefix_cache_are_both_processed():
    world = World(prefix_cache=False)
    prompt = list(range(64))
    world.add("a", prompt, max_tokens=1)
    world.run()
    world.add("b", prompt, max_tokens=1)
    world.run()
    assert (world.counts("a").prefilled, world.counts("b").prefilled, world.counts("b").reused) == (64, 64, 0)
    assert world.story.record("b").miss.why == "off"


def test_with_one_the_second_reuses_whole_blocks_and_a_copy_of_the_last_and_still_computes_its_last_position():
    world = World(prefix_cache=True)
    prompt = list(range(64))  # exactly four whole blocks
    world.add("a", prompt, max_tokens=1)
    world.run()
    world.add("b", prompt, max_tokens=1)
    world.run()
    assert (world.counts("b").reused, world.counts("b").prefilled) == (63, 1)
    (a, b) = (next(event for event in world.events if isinstance(event, Admitted) and event.id == id) for id in "ab")
    assert a.tables[0][:3] == b.tables[0][:3] and a.tables[0][3] != b.tables[0][3]
    assert world.said["a", 0] == world.said["b", 0]


def test_twins_in_one_step_are_both_processed():
    world = World(prefix_cache=True)
    prompt = list(range(64))
    world.add("a", prompt, max_tokens=1)
    world.add("b", prompt, max_tokens=1)
    world.run()
    assert world.counts("a").prefilled == world.counts("b").prefilled == 64
    assert world.counts("b").reused == 0


def test_evicting_a_reusable_block_adds_no_prefill_until_a_later_request_misses_it():
    world = World(blocks=8, block_tokens=16)
    world.add("a", list(range(64)), max_tokens=1)
    world.run()
    assert world.pool.reusable == 4
    world.add("b", list(range(500, 600)), max_tokens=1)  # 7 blocks: evicts three of the four
    world.run()
    assert world.pool.evictions == 3
    assert world.counts("b").prefilled == 100 and world.counts("b").recomputed == 0
    world.add("c", list(range(64)), max_tokens=1)  # misses what was evicted, and pays for it now
    world.run()
    assert world.counts("c").reused == 16 and world.counts("c").prefilled == 48
    assert world.story.record("c").miss.why == "evicted"


def test_a_preempted_sequence_recomputes_only_what_is_gone_when_it_resumes():
    world = World(blocks=8, block_tokens=4, step_tokens=64)
    old = world.add("old", list(range(14)), max_tokens=12)
    new = world.add("new", list(range(100, 111)), max_tokens=4)
    while not new.preemptions:
        world.step()
    lost = new.progress.sequences[0].counts.lost
    assert lost > 0 and old.preemptions == 0
    world.run()
    counts = world.counts("new")
    assert counts.regained + counts.recomputed == lost
    assert world.said["new", 0] == world.expected("new")


def fixed_drafts(world_box: list[World], good: int, count: int):
    """Drafts of which the first `good` are right."""

    def drafter(tokens: list[int]) -> list[int]:
        world = world_box[0]
        prompt = list(world.asked["a"].prompt)
        emitted = len(tokens) - len(prompt)
        truth = world.expected("a", 0, emitted + count)[emitted:]
        return [token if i < good else (token + 1) % 997 for i, token in enumerate(truth)]

    return drafter


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_verifying_k_drafts_spends_1_plus_k_owns_blocks_for_known_plus_k_and_returns_the_spare(good):
    box: list[World] = []
    world = World(blocks=20, block_tokens=4, drafter=fixed_drafts(box, good, 3))
    box.append(world)
    request = world.add("a", 7, max_tokens=40)
    sequence = request.progress.sequences[0]
    world.step()  # the prompt: no drafts yet
    known = sequence.known
    assert known == 8
    plan = world.engine.plan()
    span = plan.items[0]
    assert plan.cost == 1 + 3
    assert len(sequence.state.blocks) == -(-(known + 3) // 4) == 2 + 1  # extra = ceil((8 + 3)/4) - ceil(8/4)
    world.note(world.engine.commit(world.executor.run(plan)))
    assert span.drafts == 3
    assert sequence.known == known + good + 1
    assert sequence.computed == known + good
    assert sequence.counts.rejected == 3 - good
    assert len(sequence.state.blocks) == -(-sequence.known // 4)
    world.run()
    assert world.said["a", 0] == world.expected("a", 0, 40)


def test_drafts_never_cost_a_token_or_a_preemption():
    box: list[World] = []
    world = World(blocks=6, block_tokens=4, step_tokens=4, seats=4, drafter=fixed_drafts(box, 3, 3))
    box.append(world)
    world.add("a", 7, max_tokens=14)
    world.run()
    assert world.said["a", 0] == world.expected("a", 0, 14)
    assert world.story.record("a").preemptions == 0
    assert all(sum(m.positions for m in event.members) <= 4 for event in world.steps())


def test_a_preview_of_progress_computed_is_prompt_plus_emitted_less_one():
    world = World()
    request = world.add("a", 40, max_tokens=9)
    while request.stage is not Stage.FINISHED:
        world.step()
        sequence = request.progress.sequences[0]
        assert sequence.computed == 40 + sequence.emitted - 1


def test_a_prompt_whose_last_position_comes_alone_forks_all_its_sequences_even_with_drafts():
    world = World(blocks=20, block_tokens=7, step_tokens=4, seats=4, drafter=lambda tokens: [1])
    world.add("a", 17, n=3, max_tokens=3)  # chunks of 4, 4, 4, 4 and 1
    world.run()
    assert all(world.said["a", index] == world.expected("a", index, 3) for index in range(3))
