"""Who is preempted, and at what price."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headway.core.events import Preempted
from headway.policy.preempt import Part, price
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from world import World

ALONE = [True] * 4


def test_the_last_block_goes_first_and_costs_what_it_holds():
    """13 positions in blocks of 4: the last holds one, each other four."""
    part = Part(13, 4, ALONE)
    assert [price([part], short, kept=True) for short in range(6)] == [0, 1, 5, 9, 13, 13]


def test_blocks_without_state_go_before_all_others_and_cost_nothing():
    half = Part(7, 4, [True] * 5)
    assert [price([half], short, kept=True) for short in (1, 3, 4, 5)] == [0, 0, 3, 7]


def test_a_block_that_others_hold_stays_but_is_of_no_use_once_one_before_it_is_gone():
    shared = Part(13, 4, [True, False, False, True])
    assert [price([shared], short, kept=True) for short in (1, 2, 3)] == [1, 13, 13]


def test_of_several_sequences_the_first_to_be_given_back_pays_first():
    parts = [Part(8, 4, [True, True]), Part(6, 4, [True, True])]
    assert [price(parts, short, kept=True) for short in (1, 2, 3, 4)] == [4, 8, 10, 14]


def test_without_reuse_all_of_it_is_the_price():
    assert price([Part(13, 4, ALONE), Part(2, 4, [True])], 1, kept=False) == 15


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(4, 20), st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_whoever_resumes_at_once_recomputes_exactly_its_price(size, blocks, p, q, cache):
    world = World(blocks=blocks, block_tokens=size, prefix_cache=cache, seats=2)
    old = world.add("old", p, max_tokens=max(1, blocks * size - p))
    new = world.add("new", q, max_tokens=max(1, blocks * size - q))
    while not new.preemptions and not new.ended:
        world.step()
    assume(new.preemptions and not old.ended)
    event = next(event for event in world.events if isinstance(event, Preempted))
    assume(event.by == "old")
    assert event.id == "new" and event.price <= sum(event.lost)
    world.engine.cancel("old")
    while not new.ended and world.counts("new").recomputed < event.price:
        world.step()
    world.run()
    counts = world.counts("new")
    assert (counts.recomputed, counts.regained) == (event.price, counts.lost - event.price)


def test_the_recompute_tax_of_the_last_minute_is_a_gauge():
    world, story = World(blocks=8, block_tokens=4, prefix_cache=False), Story()
    metrics = Metrics(story, ("fake",))
    world.add("old", 14, max_tokens=12)
    world.add("new", 11, max_tokens=4)
    world.run()
    for event in world.events:
        metrics.fold(event)
        story.fold(event)

    def share(now: int) -> float:
        families = text_string_to_metric_families(metrics.text(now).decode())
        (sample,) = next(family for family in families if family.name == "headway_recompute_share").samples
        return sample.value

    counts = [world.counts(id) for id in ("old", "new")]
    evaluated = sum(c.prefilled + c.decoded + c.recomputed for c in counts)
    recomputed = sum(c.recomputed for c in counts)
    assert share(world.clock.now_ns()) == recomputed / evaluated > 0
    assert share(world.clock.now_ns() + 61 * 10**9) == 0
