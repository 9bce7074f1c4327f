"""Who is preempted, and at what price."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headway.core.events import Arrived, Preempted, Reloaded
from headway.core.price import Price
from headway.policy.preempt import Part, price
from headway.story.reduce.record import MOST_PREEMPTIONS
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from headway.story.tell.explain import request_view
from world import World, as_json


def test_the_price_is_what_is_not_found_again_and_no_sequence_pays_for_another():
    assert price([Part(13, 8), Part(6, 4), Part(2, 9)], 3) == Price(recompute=7, reload=3)


def preempted(world: World) -> Preempted | None:
    """Two requests grow until the second is preempted for the first, which then leaves; None if it never is."""
    new = world.engine.requests["new"]
    while not new.preemptions and not new.ended:
        world.step()
    events = [event for event in world.events if isinstance(event, Preempted) and event.by == "old"]
    if len(events) != 1 or new.preemptions != 1 or "old" not in world.engine.requests:
        return None
    world.engine.cancel("old")
    return events[0]


def paid(world: World, n: int = 1) -> tuple[int, int]:
    """Positions that `new` computed again after its preemption, and blocks that were reloaded for it."""
    world.run()
    reloaded = [event for event in world.events if isinstance(event, Reloaded) and event.id == "new"]
    again = sum(world.counts("new", index).recomputed for index in range(n))
    return again, sum(sum(event.blocks.values()) for event in reloaded)


TIERS = [
    pytest.param({"prefix_cache": False}, id="nothing is kept"),
    pytest.param({}, id="reusable blocks"),
    pytest.param({"host_slots": 40}, id="a host tier"),
    pytest.param({"host_slots": 3}, id="a host tier that is full"),
    pytest.param({"host_slots": 40, "most_copies": 1}, id="a host tier that lags behind"),
    pytest.param({"host_slots": 2, "disk_slots": 40, "staging": True}, id="a disk"),
]


@pytest.mark.parametrize("tiers", TIERS)
@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 5), blocks=st.integers(4, 20), p=st.integers(1, 20), q=st.integers(1, 20),
    n=st.integers(1, 3), alike=st.integers(0, 20),
)  # fmt: skip
def test_whoever_resumes_at_once_pays_exactly_its_price(tiers, size, blocks, p, q, n, alike):
    """`n` sequences, of a prompt that may begin like the other's."""
    world = World(blocks=blocks, block_tokens=size, seats=4, **tiers)
    longest = world.model.pattern.memory.longest(q, n)
    assume(longest > 0 and blocks * size > p)
    first = list(range(p))
    world.add("old", first, max_tokens=blocks * size - p)
    world.add("new", [*first[: min(alike, q)], *range(100, 120)][:q], max_tokens=longest, n=n)
    event = preempted(world)
    assume(event)
    assert event.price.recompute <= sum(event.lost)
    assert paid(world, n) == (event.price.recompute, event.price.reload)


def test_blocks_in_a_tier_are_reloaded_and_only_the_rest_is_computed_again():
    world = World(blocks=7, block_tokens=4, seats=2, host_slots=40)
    world.add("old", 14, max_tokens=9)
    world.add("new", 10, max_tokens=9)
    event = preempted(world)
    assert event is not None and event.lost == (12,) and event.price == Price(recompute=0, reload=1)
    assert paid(world) == (0, 1)
    (view,) = as_json(request_view(world.story, world.story.record("new"), world.clock.now_ns()))["preempted"]
    assert view == {"step": event.step, "by": "old", "recompute": 0, "reload": 1}


def test_only_the_latest_preemptions_are_remembered_and_an_old_log_has_positions_alone():
    story = Story()
    story.fold(Arrived(at=0, id="r", pattern="text", model="m", prompt=9, n=1, max_tokens=4, priority=0, order=(0,)))
    for step in range(1, MOST_PREEMPTIONS + 3):
        event = Preempted(at=step, step=step, id="r", by="s", indexes=(0,), lost=(4,), blocks=1, price=Price(step, 2))
        written = msgspec.json.encode(event)
        if step == MOST_PREEMPTIONS + 2:
            written = written.replace(msgspec.json.encode(event.price), b"4")
        story.fold(msgspec.json.decode(written, type=Preempted))
    record = story.record("r")
    assert record.preemptions == MOST_PREEMPTIONS + 2
    assert [each.step for each in record.preempted] == list(range(3, MOST_PREEMPTIONS + 3))
    assert [each.price for each in record.preempted[-2:]] == [Price(MOST_PREEMPTIONS + 1, 2), Price(4, 0)]


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
