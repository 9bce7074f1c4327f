"""Work that is lost and done again, from events alone."""

from __future__ import annotations

from headway.story.reduce.recovery import Recovery
from world import World

S = 10**9


def test_ten_preemptions_a_second_that_lose_2000_positions_each_read_20000_of_40000_positions_of_prompt_work():
    """The worked example in one second of modelled time: nothing is found again, since there is no prefix cache."""
    world, recovery = World(blocks=1 + 126, block_tokens=16, step_tokens=4096, prefix_cache=False), Recovery()
    for i in range(10):
        world.clock.advance(S + i * S // 10 - world.clock.now_ns())
        world.add(f"old{i}", 15, max_tokens=4)
        world.step()
        world.add(f"v{i}", 2000, max_tokens=2)
        world.step()
        world.step()
        assert world.counts(f"v{i}").lost == 2000
        world.run()
    assert world.clock.now_ns() < 2 * S
    for event in world.events:
        recovery.fold(event)
    rates = recovery.rates("fake", over=1)
    assert (rates.preempted, rates.recomputed) == (10, 20_000)
    assert rates.prompt == 40_000 + 10 * 15  # with the short prompts of those that preempted
    assert rates.goodput == 10 * (4 + 2)
