"""Work that is lost and done again, from events alone; and when that is a recovery loop."""

from __future__ import annotations

import pytest

from headway.core.events import Arrived, Committed, Levels, Outcome, Preempted
from headway.story.diagnose.findings.space import recovery_loop
from headway.story.diagnose.observations import Observations
from headway.story.reduce.recovery import STRETCH_SECONDS, Recovery
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


def seconds(*rows: tuple[int, int, int, int]) -> list[object]:
    """A stretch of equal seconds for each row: sequences preempted, prefilled, recomputed, emitted in each."""
    levels = Levels(0, 0, 0, 0, 0)
    events: list[object] = [Arrived(at=0, id="r", pattern="text", model="m", priority=0, order=(1,), n=1)]
    for second in range(STRETCH_SECONDS * len(rows)):
        preempted, prefilled, recomputed, emitted = rows[second // STRETCH_SECONDS]
        at = second * S
        events += [
            Preempted(at=at, step=second, id="r", by="s", indexes=(0,), lost=(9,), blocks=1) for _ in range(preempted)
        ]
        outcome = Outcome("r", 0, prefilled, 0, recomputed, 0, emitted, 1)
        events.append(Committed(at=at, step=second, model="m", outcomes=(outcome,), forks=(), levels=levels))
    return events


WELL, LOOPS = (0, 400, 0, 100), (5, 200, 200, 60)


@pytest.mark.parametrize(
    ("rows", "is_one"),
    [
        pytest.param([WELL, LOOPS], True, id="lost work rises while goodput falls"),
        pytest.param([WELL, WELL, LOOPS, LOOPS], True, id="it goes on"),
        pytest.param([LOOPS, WELL], False, id="it is over"),
        pytest.param([WELL, (5, 200, 200, 95)], False, id="work is lost, and goodput does not fall"),
        pytest.param([WELL, (0, 10, 0, 5)], False, id="nobody asks for much"),
        pytest.param([LOOPS], False, id="nothing to compare with"),
    ],
)
def test_a_recovery_loop_is_lost_work_that_rises_while_goodput_falls(rows, is_one):
    recovery, observed = Recovery(), Observations()
    for event in seconds(*rows):
        recovery.fold(event)
        observed.recovery.fold(event)
    loop, finding = recovery.loop("m"), recovery_loop(observed)
    assert (loop is not None) == (finding is not None) == is_one
    if loop and finding:
        assert (loop.now.preempted, loop.now.recomputed, loop.now.goodput, loop.best.goodput) == (5, 200, 60, 100)
        assert finding.says == (
            "A recovery loop: 5.0 sequences a second were preempted and 200 positions a second computed again, 50% "
            "of all prompt work (0% at its best); meanwhile goodput fell from 100.0 to 60.0 tokens a second."
        )
