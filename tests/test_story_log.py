"""The event log and the ring: what was written is read again, in order, and what cannot be read says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.errors import ConfigError, LogError
from headway.story import log as log_module
from headway.story.events import Received
from headway.story.explain import request_view
from headway.story.log import EventLog, LogFile, aged
from headway.story.reducer import Story
from headway.story.ring import EventRing
from world import SAMPLED, World


def busy_world(sink) -> World:
    """Preemptions, siblings, a cancellation, a failure and a refusal."""
    world = World(blocks=8, block_tokens=4, seats=4, prefix_cache=True)
    told = world._emit

    def emit(event) -> None:
        told(event)
        sink(event)

    world.engine.emit = emit
    world.add("a", 14, max_tokens=8)
    world.add("b", 5, n=2, max_tokens=6, sampling=SAMPLED)
    world.add("never", 100)
    world.add("gone", 5, max_tokens=3)
    world.step()
    world.engine.cancel("gone", "client")
    world.run()
    world.add("fails", 5)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    world.add("alive", 9, max_tokens=20)
    world.step()
    return world


def refold(path: Path) -> Story:
    story = Story()
    for event in LogFile.open(path).events():
        story.fold(event)
    return story


def test_a_log_tells_the_same_story_as_the_server_did(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events", epoch="e", model="tiny")
    world = busy_world(log.append)
    story, now = refold(tmp_path / "events"), world.clock.now_ns()
    assert LogFile.open(tmp_path / "events").head.model == "tiny"
    assert list(story.ended) == list(world.story.ended) and list(story.live) == list(world.story.live) == ["alive"]
    assert sum(record.preemptions for record in story.ended.values()) > 0
    for id in (*story.ended, *story.live):
        assert request_view(story, story.record(id), now) == request_view(world.story, world.story.record(id), now)


def test_every_line_is_there_at_once_and_half_a_line_at_the_end_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny")
    world = busy_world(log.append)  # never closed: as after kill -9
    whole = list(LogFile.open(path).events())
    assert len(whole) == len(world.events)
    path.write_bytes(path.read_bytes()[:-7])
    assert list(LogFile.open(path).events()) == whole[:-1]


def test_files_rotate_and_are_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny", rotate_bytes=3000)
    world = busy_world(log.append)
    ages = [age for age in range(9) if aged(path, age).exists()]
    assert len(ages) > 2
    assert all(aged(path, age).stat().st_size <= 3000 for age in ages)
    found = list(LogFile.open(path).events())
    assert found == world.events[len(world.events) - len(found) :]
    first = json.loads(aged(path, ages[-1]).read_text().splitlines()[0])["first"]
    assert len(world.events) - len(found) == first - 1


def test_no_more_old_files_than_promised_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny", rotate_bytes=200)
    for i in range(40):
        log.append(Received(at=i, id=f"request-{i}"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events", *(f"events.{age}" for age in range(1, 5))]


def test_an_older_servers_log_is_kept_aside_and_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for epoch in ("old", "new"):
        log = EventLog(path, epoch=epoch, model="tiny")
        log.append(Received(at=1, id=epoch))
        log.close()
    assert [event.id for event in LogFile.open(path).events()] == ["new"]
    assert [event.id for event in LogFile.open(aged(path, 1)).events()] == ["old"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no event log"),
        (b"hello\n", "no event log"),
        (b"\xff\xfe\n", "no event log"),
        (b'{"kind":"other","version":1,"epoch":"e","first":1,"model":"m"}\n', "no event log"),
        (b'{"kind":"headway event log","version":2,"epoch":"e","first":1,"model":"m"}\n', "version 2"),
    ],
)
def test_what_is_no_log_of_this_version_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(LogError, match=words):
        LogFile.open(tmp_path / "file")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny")
    for i in range(3):
        log.append(Received(at=i, id="a"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b'{"event":"step"}\n', *lines[3:]]))
    with pytest.raises(LogError, match="line 3 is no event"):
        list(LogFile.open(path).events())
    with pytest.raises(LogError, match="it cannot be read"):
        LogFile.open(tmp_path / "nowhere")


def test_a_place_that_cannot_be_written_is_refused_and_a_disk_that_fails_later_ends_the_log_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"--event-log.*cannot be written"):
        EventLog(tmp_path / "no" / "folder", epoch="e", model="tiny")
    log = EventLog(tmp_path / "events", epoch="e", model="tiny")

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.os, "write", full)
    log.append(Received(at=1, id="a"))
    log.append(Received(at=2, id="b"))
    assert log.failure == "the event log ended: No space left on device"


# -- the ring -------------------------------------------------------------------------------------------------


def test_the_ring_keeps_the_last_events_with_their_numbers() -> None:
    ring = EventRing("e", size=5)
    assert (ring.first, ring.last, ring.after(0)) == (1, 0, [])
    for i in range(1, 13):
        ring.append(Received(at=i, id="a"))
    assert (ring.first, ring.last) == (8, 12)
    assert [(number, event.at) for number, event in ring.after(0)] == [(i, i) for i in range(8, 13)]
    assert [number for number, _ in ring.after(9, most=2)] == [10, 11]
    assert ring.after(12) == []
