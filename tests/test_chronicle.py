"""Whatever is looked at is whole: events that the front folds later make the records that they make at once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headway.core import events as ev
from headway.front.chronicle import Chronicle
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog, LogFile
from headway.story.sinks.metrics import Metrics
from world import World

_STEPS = ev.Stepped | ev.Committed


def lives() -> list[ev.AnyEvent]:
    """What happens in a pool that is too small for all who ask."""
    world = World(blocks=12, block_tokens=4, seats=4)
    for i in range(9):
        world.add(f"r{i}", 3 + 5 * (i % 4), max_tokens=6 + i, n=1 + i % 2)
    world.run()
    assert any(isinstance(event, ev.Preempted) for event in world.events)
    return world.events


def chronicle(log: EventLog | None = None, contradicted=lambda error: None) -> Chronicle:
    return Chronicle(("fake",), log, on_alarm=lambda sentence: None, contradicted=contradicted)


def take(chronicle: Chronicle, event: ev.AnyEvent) -> None:
    """As the front does."""
    if isinstance(event, _STEPS):
        chronicle.tell_soon([event])
    else:
        chronicle.tell(event)


def step(number: int, *grown: ev.Grown) -> ev.Stepped:
    levels = ev.Levels(0, 0, 12, 0, 0)
    return ev.Stepped(
        at=number, step=number, budget=1, members=(), grown=grown, waits={}, head=None, waiting=0, levels=levels
    )


def state(story: Story) -> object:
    """All that a story holds but functions."""
    held = {name: value for name, value in vars(story).items() if name != "_handlers"}
    return repr(held)


@pytest.mark.parametrize("seed", range(4))
def test_whenever_anyone_looks_everything_is_as_if_folded_at_once(seed: int) -> None:
    chance = random.Random(seed)

    async def follow() -> None:
        soon, story = chronicle(), Story(delivers=True)
        metrics = Metrics(story, ("fake",))
        told = []
        for event in lives():
            metrics.fold(event)
            story.fold(event)
            told.append(event)
            take(soon, event)
            looks = chance.randrange(12)
            if looks == 0:
                assert state(soon.story) == state(story)
            elif looks == 1:
                assert soon.metrics.text(0) == metrics.text(0)
            elif looks == 2:
                assert [each for _, each in soon.ring.after(0, 10_000)] == told
            elif looks == 3:
                await asyncio.sleep(0)
        assert state(soon.story) == state(story) and soon.ring.last == len(told)

    asyncio.run(follow())


def test_what_nobody_looks_at_is_folded_all_the_same_once_it_is_much() -> None:
    world = World()
    world.add("alone", 5, max_tokens=200)
    world.run()

    async def most() -> int:
        soon, most = chronicle(), 0
        for event in world.events:
            take(soon, event)
            await asyncio.sleep(0)
            most = max(most, len(soon._unfolded))
        return most

    assert 30 <= asyncio.run(most()) <= 64


def test_the_log_has_each_event_at_once_and_in_the_order_of_the_ring(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def follow() -> None:
        log = EventLog(path, epoch="e", model="fake")
        soon = chronicle(log)
        for number, event in enumerate(lives()):
            if number == 30:
                soon.turn_away("fake", "queue")
            take(soon, event)
            assert list(LogFile.open(path).events())[-1] == event
        logged = list(LogFile.open(path).events())
        assert logged == [event for _, event in soon.ring.after(0, 10_000)]
        assert isinstance(logged[30], ev.TurnedAway) and logged[30].counts == {"queue": 1}
        log.close()

    asyncio.run(follow())


def test_what_cannot_be_is_told_when_it_is_folded_and_the_rest_is_folded() -> None:
    async def follow() -> list[str]:
        found: list[str] = []
        soon = chronicle(contradicted=lambda error: found.append(type(error).__name__))
        events = [event for event in lives() if not isinstance(event, ev.Finished)]
        first = next(place for place, event in enumerate(events) if isinstance(event, ev.Admitted))
        for event in events[: first + 1]:
            take(soon, event)
        assert isinstance(events[first], ev.Admitted)
        grown = ev.Grown(events[first].id, 7, (1,))  # it has no such sequence
        soon.tell_soon([step(90, grown), step(91)])
        assert not found
        assert soon.story.step == 91
        return found

    assert asyncio.run(follow()) == ["IndexError"]
