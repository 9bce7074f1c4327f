"""Crowds: many clients at once, of whom some leave and some find no place. Everyone is answered rightly or refused,
and nothing of them stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from fake_process import Client, said
from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Stage
from headway.front.limits import ServeLimits
from serving import until

BLOCKS, SEATS, WAITING = 80, 12, 60
_random = random.Random(20240817)


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2, blocks=BLOCKS, seats=SEATS, limits=ServeLimits(max_waiting=WAITING)) as server:
        Client(server.url, [5], max_tokens=2).end()
        yield server


def tasks(server: FakeServer) -> int:
    return len(asyncio.all_tasks(server.server.servers[0].get_loop()))


def is_empty(server: FakeServer) -> bool:
    """Nothing of any request is left but its record, and no task, connection or claim."""
    front, levels = server.front, server.front.story.levels
    left = [front.story.live, front._inboxes, front.waiting, front.quota.positions, front.quota.coming, levels.live]
    assert levels.live + levels.reusable + levels.free == BLOCKS
    return not any(left) and not levels.seats_used and not server.server.server_state.connections


def full(server: FakeServer) -> float:
    """Requests that found no place."""
    labels = {"model": server.model.name, "reason": "queue"}
    return server.front.metrics.registry.get_sample_value("headway_requests_refused_total", labels) or 0


def test_of_fifty_streams_a_third_is_left_and_the_others_say_what_they_say_alone(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = server.executor.run

    def slow(plan: StepPlan) -> StepResult:
        time.sleep(0.001)
        return run(plan)

    monkeypatch.setattr(server.executor, "run", slow)  # so that they are left at every stage
    until(lambda: is_empty(server))
    idle = tasks(server)
    asked = [
        (_random.choices(range(300, 9000), k=_random.choice((3, 40, 200, 700))),
         {"max_tokens": _random.randint(5, 60), "seed": i, "n": _random.choice((1, 1, 2)), "temperature": i % 2})
        for i in range(50)
    ]  # fmt: skip
    clients = [Client(server.url, p, id=f"stream-{i}", stream=True, **f) for i, (p, f) in enumerate(asked)]
    leaving = _random.sample(range(50), 17)
    for i in leaving:
        time.sleep(_random.uniform(0, 0.02))
        clients[i].leave()
    for i in set(range(50)) - set(leaving):
        prompt, fields = asked[i]
        assert clients[i].end().error is None
        assert clients[i].texts == said(server.model.tokenizer, prompt, **fields), i
    until(lambda: is_empty(server))
    until(lambda: tasks(server) <= idle)
    ends = [server.front.story.record(f"stream-{i}") for i in range(50)]
    assert {end.stage for end in ends} == {Stage.FINISHED, Stage.CANCELLED}, "some were left in time"
    assert all(ends[i].stage is Stage.FINISHED for i in set(range(50)) - set(leaving))


def test_of_two_hundred_at_once_those_without_a_place_are_told_when_to_come_again(server: FakeServer) -> None:
    until(lambda: is_empty(server))
    idle, refused = tasks(server), full(server)
    server.executor.gate.clear()
    holder = Client(server.url, [5], seed=1, max_tokens=2)
    until(lambda: server.executor.waits)  # while this step stands still nobody else is admitted
    clients = [Client(server.url, [i + 20], id=f"short-{i}", seed=i, max_tokens=3) for i in range(200)]
    until(lambda: full(server) == refused + 200 - WAITING)
    assert server.front.waiting == WAITING
    server.executor.gate.set()
    answered = 0
    for i, client in enumerate(clients):
        if client.end().status == 200:
            answered += 1
            assert client.texts == said(server.model.tokenizer, [i + 20], seed=i, max_tokens=3)
        else:
            assert (client.status, client.error) == (429, "queue_full")
            assert int(client.headers["retry-after"]) >= 1
    assert answered == WAITING and holder.end().status == 200
    until(lambda: is_empty(server))
    until(lambda: tasks(server) <= idle)


def test_records_are_bounded_and_the_latest_are_kept(server: FakeServer) -> None:
    story = server.front.story
    for i in range(55):
        answer = Client(server.url, [[7, j] for j in range(20)], id=f"many-{i}", seed=1, max_tokens=1).end()
        assert answer.texts == said(server.model.tokenizer, [[7, j] for j in range(20)], seed=1, max_tokens=1)
    until(lambda: is_empty(server))
    assert len(story.ended) == 1000 and next(reversed(story.ended)).startswith("many-54~")
    assert "many-0~0" not in story.ended


def test_a_client_that_left_gets_its_next_turn_under_the_same_id(server: FakeServer) -> None:
    """Its first turn may still be ending when it asks again: then it is told that the id is alive, never more."""
    conflicts = 0
    for turn in range(30):
        client = Client(server.url, [9] * 40, id="talk", seed=turn, max_tokens=900, stream=True)
        if turn % 2:
            until(lambda: "talk" in server.front.story.live)
        client.leave()

        def again(turn: int = turn) -> Client | None:
            answer = Client(server.url, [9] * 41, id="talk", seed=turn, max_tokens=5, stream=True).end()
            assert answer.status in (200, 409)
            return answer if answer.status == 200 else None

        answer = again()
        if answer is None:
            conflicts += 1
            answer = until(again, 5)
        assert answer.error is None
        assert answer.texts == said(server.model.tokenizer, [9] * 41, seed=turn, max_tokens=5)
        until(lambda: "talk" not in server.front.story.live)
    assert conflicts < 30
    until(lambda: is_empty(server))
