"""`Retry-After` of a 429: it follows how fast requests leave the queue, and how much must leave."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from headway.artifacts.files import ModelFiles
from headway.core import events as ev
from headway.core.clock import ModelledClock
from headway.core.request import TextRequest
from headway.core.verdict import Never
from headway.front.admission import claim_place, refuse_when_full
from headway.front.departures import UNKNOWN_S, Departures
from headway.front.exchange import Exchange
from headway.front.limits import ServeLimits
from headway.front.refusals import Refusal
from headway.front.state import Front
from headway.replica.options import ModelOptions, ReplicaOptions


@pytest.mark.parametrize(("each_s", "wait_s"), [(0.5, 10), (1.0, 20), (2.0, 40)])
def test_twice_the_drain_is_half_the_wait(each_s, wait_s):
    departures, now_s = Departures(), 100.0
    while now_s < 200.0:
        departures.leave(now_s, 300)
        now_s += each_s
    assert departures.wait_s(now_s, requests=20) == wait_s
    assert departures.wait_s(now_s, requests=1) == max(1, wait_s // 20)
    assert departures.wait_s(now_s, positions=6000) == wait_s
    assert departures.wait_s(now_s, requests=10, positions=6000) == wait_s


def test_a_young_server_measures_since_its_first_departure_and_one_that_stands_still_knows_nothing():
    departures = Departures()
    assert departures.wait_s(50.0, requests=3) == UNKNOWN_S
    for place in range(40):
        departures.leave(100.0 + place / 10, 0)
    assert departures.wait_s(104.0, requests=100) == 10
    assert departures.wait_s(104.0, positions=100) == UNKNOWN_S
    assert departures.wait_s(200.0, requests=100) == UNKNOWN_S and not departures._seconds


def test_who_leaves_in_a_burst_is_taken_to_have_left_within_a_second_and_nobody_is_told_less_than_one():
    departures = Departures()
    for place in range(3):
        departures.leave(100.0 + place / 1000, 0)
    assert departures.wait_s(100.1, requests=30) == 10
    assert departures.wait_s(100.1, requests=1) == departures.wait_s(100.1) == 1


def test_of_what_is_not_short_it_does_not_matter_that_nothing_was_measured():
    departures = Departures()
    assert departures.wait_s(100.0) == 1
    for place in range(40):
        departures.leave(100.0 + place / 10, 0)
    assert departures.wait_s(104.0, requests=10, positions=0) == 1
    assert departures.wait_s(104.0, requests=10, positions=1) == 5


def front_of(smollm2: ModelFiles) -> Front:
    limits = ServeLimits(max_waiting=4, max_waiting_positions=1000)
    front = Front(
        {"m": smollm2}, ReplicaOptions(models=(ModelOptions(model="m", name="m"),), cache=""), limits=limits
    )
    front.clock = ModelledClock()
    return front


def submit(front: Front, id: str) -> None:
    new = TextRequest(id=id, model="m", prompt=(1,) * 100)
    front.submit([new], front.clock.now_ns(), front.quota.claim(100))


def admitted(front: Front, id: str) -> None:
    event = ev.Admitted(at=0, step=1, id=id, resumed=False, indexes=(0,), tables=((),), inherited=(0,))
    front.story.waiting.discard(id)
    front._advance(event)


def test_a_refusal_frees_no_place_and_whoever_leaves_the_queue_frees_one_once(smollm2):
    async def life() -> None:
        front = front_of(smollm2)
        for i in range(4):
            submit(front, f"refused {i}")
            verdict = Never("deadline", "ms", 2, 1, None)
            front._fold(ev.Refused(at=0, id=f"refused {i}", model="m", reason="deadline", verdict=verdict))
            front._close(f"refused {i}")
        assert front.retry_after_s(requests=1) == UNKNOWN_S, "nothing left the queue"
        for i in range(6):
            submit(front, f"goes {i}")
            admitted(front, f"goes {i}")
            admitted(front, f"goes {i}")  # resumed, after a preemption
        front.clock.advance(10 * 10**9)
        assert front.retry_after_s(requests=3) == 5  # 6 in 10 s
        assert front.retry_after_s(positions=900) == 15
        assert front.quota.positions == 0
        for i in range(4):
            submit(front, f"waits {i}")
        for ask, wait in ((lambda: refuse_when_full(front, None, 3), 5), (lambda: claim(front, 900), 5)):
            with pytest.raises(Refusal) as caught:
                ask()
            assert caught.value.headers["retry-after"] == str(wait)
        front.limits = ServeLimits(max_waiting=6)  # two places are free, so that one of three is short
        with pytest.raises(Refusal) as caught:
            refuse_when_full(front, None, 3)
        assert caught.value.headers["retry-after"] == "2"

    asyncio.run(life())


def claim(front: Front, bound: int) -> None:
    """With 400 of 1000 positions taken, 300 must leave for one of 900, or three requests."""
    front.limits = ServeLimits(max_waiting=9)
    model = front.models["m"]
    model.ready = SimpleNamespace(max_context=10_000)
    claim_place(front, model, Exchange("x", 0), [bound])
