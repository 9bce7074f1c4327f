"""Every small world: block size 2, two or three requests, prompts to 5, outputs to 3, pools to 6 blocks."""

from __future__ import annotations

import itertools

import pytest

from headway.core.request import Stage
from reference import Plain, Reference
from world import World

SHAPES = [(prompt, emits) for prompt in range(1, 6) for emits in range(1, 4)]


def live_through(
    shapes,
    blocks,
    *,
    seats,
    budget,
    bypass,
    gaps,
    prefix_cache,
    same=False,
    policy="fcfs",
    admit="optimistic",
    answers=(),
    tiers=None,
):
    """One world, compared step by step with the plain reference (where that applies) and with the true tokens. Later
    requests have smaller priority numbers; the second is due before the first, and the third never; the first is
    another caller's than the others: so the policies differ wherever there is a choice."""
    world = World(blocks=blocks, block_tokens=2, seats=seats, step_tokens=budget, max_bypass=bypass,
                  prefix_cache=prefix_cache, policy=policy, admit=admit, **(tiers or {}))  # fmt: skip
    plain = None if prefix_cache else Reference(blocks, 2, seats, budget, bypass, policy, admit, answers)
    for tokens in answers:
        world.model.answers.add(tokens)
    arrivals = list(zip(shapes, gaps, strict=True))
    taken = 0
    for tick in range(200):
        while taken < len(arrivals) and arrivals[taken][1] <= tick:
            (prompt, emits), _ = arrivals[taken]
            id = f"r{taken}"
            due, caller = (2e6, 1e6, None)[taken], "abb"[taken]
            alike = same is True or (same == "outer" and taken != 1)
            request = world.add(id, list(range(prompt)) if alike else prompt, max_tokens=emits, priority=-taken,
                                deadline_ms=due, caller=caller)  # fmt: skip
            fits = -(-(prompt + emits) // 2) <= blocks
            assert (request.stage is Stage.REFUSED) == (not fits)
            if plain and fits:
                plain.add(Plain(id, prompt, emits, -taken, taken, due=request.deadline_at, caller=caller))
            taken += 1
        if not world.engine.requests and taken == len(arrivals):
            break
        world.step()
        if plain and world.steps():
            compare(world, plain)
    else:
        raise AssertionError("the world did not end")
    assert world.pool.live == 0
    for id, new in world.asked.items():
        record = world.story.record(id)
        if record.stage is not Stage.REFUSED:
            assert world.said[id, 0] == world.expected(id, 0, new.max_tokens)
    evaluated = sum(m.positions for event in world.steps() for m in event.members)
    counts = [s.counts for record in world.story.ended.values() for s in record.sequences]
    assert evaluated == sum(c.prefilled + c.decoded + c.recomputed + c.rejected for c in counts)
    return world


def compare(world: World, plain: Reference) -> None:
    if not plain.running and not plain.waiting:
        return
    waits, moves = plain.step()
    event = world.steps()[-1]
    assert {id: (w.on, w.rule, w.need, w.have) for id, w in event.waits.items()} == waits
    assert {m.id: m.positions for m in event.members} == moves
    assert all(w.short == w.need - w.have > 0 for w in event.waits.values())
    plain.commit(moves)


PAIRS = list(itertools.product(SHAPES, repeat=2))


@pytest.mark.parametrize("blocks", range(1, 7))
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_every_pair_of_requests_ends_with_the_right_tokens_and_the_plain_reference_agrees(blocks, prefix_cache):
    for shapes in PAIRS:
        for gap, budget in itertools.product((0, 1, 3), (2, 6)):
            live_through(shapes, blocks, seats=2, budget=budget, bypass=1, gaps=(0, gap), prefix_cache=prefix_cache,
                         same=prefix_cache)  # fmt: skip


@pytest.mark.parametrize("blocks", range(2, 7))
def test_the_plain_reference_agrees_under_priority_too(blocks):
    for shapes in PAIRS:
        live_through(shapes, blocks, seats=2, budget=3, bypass=1, gaps=(0, 1), prefix_cache=False, policy="priority")


#: Enough answers to predict from: all short, all as long as they may be, and a mixture.
ANSWERS = {"short": [1] * 32, "long": [3] * 32, "mixed": [1, 2, 3, 3] * 8}
ADMISSIONS = [
    ("headroom", "none"),
    ("reserve", "none"),
    ("predict", "none"),
    *(("predict", name) for name in ANSWERS),
]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "deadline", "fair"])
@pytest.mark.parametrize(("admit", "answers"), ADMISSIONS)
def test_the_plain_reference_agrees_under_every_admission_and_order(admit, answers, policy):
    for blocks, shapes in itertools.product((3, 5), PAIRS[::4]):
        live_through(shapes, blocks, seats=2, budget=3, bypass=1, gaps=(0, 1), prefix_cache=False, policy=policy,
                     admit=admit, answers=ANSWERS.get(answers, ()))  # fmt: skip


@pytest.mark.parametrize("policy", ["deadline", "fair"])
@pytest.mark.parametrize("bypass", [0, 2])
def test_the_plain_reference_agrees_on_three_requests_under_deadlines_and_fair_shares(policy, bypass):
    shapes_of_all = [(1, 3), (2, 2), (3, 3), (5, 1), (5, 3)]
    for blocks, shapes in itertools.product((4, 6), itertools.product(shapes_of_all, repeat=3)):
        for seats, gaps in ((1, (0, 0, 0)), (2, (0, 1, 2))):
            live_through(shapes, blocks, seats=seats, budget=4, bypass=bypass, gaps=gaps, prefix_cache=False,
                         policy=policy)  # fmt: skip


@pytest.mark.parametrize(("admit", "answers"), ADMISSIONS)
def test_the_plain_reference_agrees_on_three_requests_under_every_admission(admit, answers):
    shapes_of_all = [(1, 3), (2, 2), (3, 3), (5, 1), (5, 3)]
    for blocks, shapes in itertools.product((4, 6), itertools.product(shapes_of_all, repeat=3)):
        world = live_through(shapes, blocks, seats=3, budget=4, bypass=2, gaps=(0, 0, 1), prefix_cache=False,
                             admit=admit, answers=ANSWERS.get(answers, ()))  # fmt: skip
        if admit == "reserve":
            assert not any(record.preemptions for record in world.story.ended.values())


@pytest.mark.parametrize("blocks", range(2, 7))
def test_every_triple_of_requests_ends_with_the_right_tokens_and_the_plain_reference_agrees(blocks):
    for shapes in itertools.product(SHAPES, repeat=3):
        live_through(shapes, blocks, seats=2, budget=3, bypass=1, gaps=(0, 0, 1), prefix_cache=False)


@pytest.mark.parametrize("blocks", range(2, 7))
def test_every_triple_of_equal_prompts_shares_what_it_may_and_never_wrong_state(blocks):
    for shapes in itertools.product(SHAPES, repeat=3):
        live_through(shapes, blocks, seats=3, budget=4, bypass=2, gaps=(0, 1, 2), prefix_cache=True, same=True)


TIERS = {
    "host": {"host_slots": 9},
    "a small host": {"host_slots": 4, "most_copies": 1},
    "disk": {"host_slots": 1, "disk_slots": 9, "disk_delay": 2, "staging": True},
    "both": {"host_slots": 2, "disk_slots": 2, "disk_delay": 1},
}


@pytest.mark.parametrize("tiers", TIERS)
def test_with_tiers_every_pair_of_equal_prompts_and_one_between_them_gets_its_own_tokens(tiers):
    """The last request comes when what the first computed may lie in the pool, in a tier, on its way, or nowhere."""
    reloads = 0
    for (prompt, emits), blocks in itertools.product(SHAPES[1::2], range(2, 5)):
        for other, gap in itertools.product(((5, 3), (4, 1)), (4, 6, 9)):
            world = live_through(((prompt, emits), other, (prompt, emits)), blocks, seats=2, budget=4, bypass=1,
                                 gaps=(0, 2, gap), prefix_cache=True, same="outer",
                                 tiers=TIERS[tiers])  # fmt: skip
            reloads += sum(bool(record.reloaded) for record in world.story.ended.values())
    assert reloads
