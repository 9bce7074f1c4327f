"""The event log and the ring: what was written is read again, in order, and what cannot be read says why."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from headway.core.errors import ConfigError, LogError
from headway.core.events import Received
from headway.story.reduce.reducer import Story
from headway.story.sinks import log as log_module
from headway.story.sinks import logfiles
from headway.story.sinks.log import EventLog, LogFile, aged
from headway.story.sinks.ring import EventRing
from headway.story.tell.explain import request_view
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


def test_old_files_are_kept_by_their_size_all_together(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny", rotate_bytes=200, total_bytes=1000)
    for i in range(40):
        log.append(Received(at=i, id=f"request-{i}"))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1000
    files = sorted(file.name for file in tmp_path.iterdir())
    assert len(files) >= 5 and files == ["events", *(f"events.{age}" for age in range(1, len(files)))]
    assert list(LogFile.open(path).events())[-1] == Received(at=39, id="request-39")


def test_starts_that_write_little_push_no_old_log_out(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for i in range(12):
        log = EventLog(path, epoch=f"start-{i}", model="tiny")
        log.append(Received(at=1, id=f"first-of-{i}"))
        log.close()
    assert [event.id for event in LogFile.open(aged(path, 11)).events()] == ["first-of-0"]


def test_a_start_that_told_nothing_leaves_no_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for i in range(4):
        EventLog(path, epoch=f"start-{i}", model="tiny").close()
    assert [file.name for file in tmp_path.iterdir()] == ["events"] and LogFile.open(path).head.epoch == "start-3"


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
        (b"", "not an event log"),
        (b"hello\n", "not an event log"),
        (b"\xff\xfe\n", "not an event log"),
        (b'{"kind":"other","version":1,"epoch":"e","first":1,"model":"m"}\n', "not an event log"),
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
    with pytest.raises(LogError, match="line 3 is not an event"):
        list(LogFile.open(path).events())
    with pytest.raises(LogError, match="it cannot be read"):
        LogFile.open(tmp_path / "nowhere")


# -- what is no event log of ours -----------------------------------------------------------------------------


def folder(path: Path) -> None:
    path.mkdir()
    (path / "keep.txt").write_text("precious")


def link(path: Path) -> None:
    target = path.with_name("target")
    EventLog(target, epoch="e", model="tiny").close()
    path.symlink_to(target)


def socket_file(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as end:  # its name may be 107 bytes long
        end.bind(path.name)


FOREIGN = {
    "notes": (lambda path: path.write_text("my notes\n"), "is not an event log of Headway and is left as it is"),
    "one-line": (lambda path: path.write_text("no line break"), "is not an event log of Headway"),
    "bytes": (lambda path: path.write_bytes(b"\x00\xff" * 40_000), "is not an event log of Headway"),
    "other-json": (lambda path: path.write_text('{"kind":"other"}\n'), "is not an event log of Headway"),
    "folder": (folder, "is a folder; give a file"),
    "link": (link, "is a link; give the file itself"),
    "dangling-link": (lambda path: path.symlink_to("nowhere"), "is a link"),
    "pipe": (os.mkfifo, "is a named pipe, not a regular file"),
    "socket": (socket_file, "is a socket, not a regular file"),
}


def everything(root: Path) -> dict[str, tuple[int, int, bytes | str]]:
    """What is on disk, with the numbers that say that it is the same file still."""
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        regular = stat.S_ISREG(status.st_mode)
        content = path.read_bytes() if regular else os.readlink(path) if path.is_symlink() else ""
        found[str(path)] = (status.st_ino, status.st_mode, content)
    return found


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_event_log_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    make, words = FOREIGN[name]
    make(tmp_path / "here")
    before = everything(tmp_path)
    with pytest.raises(ConfigError) as caught:
        EventLog(tmp_path / "here", epoch="new", model="tiny")
    assert caught.value.option == "--event-log" and words in str(caught.value)
    assert everything(tmp_path) == before


def test_a_device_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, words in (
        (Path("/dev/null"), "is a device, not a regular file"),
        (tmp_path / "no" / "events", f"{tmp_path}/no is not an existing folder"),
        (tmp_path / "file" / "events", f"{tmp_path}/file is not an existing folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            EventLog(path, epoch="e", model="tiny")


def test_a_file_that_cannot_be_read_is_not_known_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events"
    EventLog(path, epoch="e", model="tiny").close()
    before = everything(tmp_path)

    def denied(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(logfiles.os, "open", denied)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        EventLog(path, epoch="new", model="tiny")
    assert everything(tmp_path) == before


def test_an_empty_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.touch(mode=0o640)
    made = path.stat()
    log = EventLog(path, epoch="e", model="tiny")
    log.append(Received(at=1, id="a"))
    assert (path.stat().st_ino, path.stat().st_mode) == (made.st_ino, made.st_mode)
    assert [event.id for event in LogFile.open(path).events()] == ["a"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_rotated_name_that_another_file_has_taken_is_passed_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / "events"
    make, _ = FOREIGN[name]
    make(aged(path, 2))
    foreign = everything(tmp_path)
    log = EventLog(path, epoch="e", model="tiny", rotate_bytes=200, total_bytes=3000)
    for i in range(30):
        assert log.append(Received(at=i, id=f"request-{i}"))
    assert everything(tmp_path).items() >= foreign.items()
    assert aged(path, 1).exists() and aged(path, 3).exists()
    found = list(LogFile.open(path).events())
    assert found == [Received(at=i, id=f"request-{i}") for i in range(30 - len(found), 30)] and len(found) > 8


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "events"
    first = EventLog(path, epoch="first", model="tiny")
    with pytest.raises(ConfigError, match="is being written by another server"):
        EventLog(path, epoch="second", model="tiny")
    assert first.append(Received(at=1, id="a")) and [file.name for file in tmp_path.iterdir()] == ["events"]
    first.close()
    EventLog(path, epoch="second", model="tiny")


# -- a disk that fails ----------------------------------------------------------------------------------------


class FullDisk:
    """`os.write` on a disk that takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._write = os.write

    def __call__(self, file: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        written = self._write(file, data[: self.room])
        self.room -= written
        return written


def test_a_disk_that_fails_ends_the_log_only_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny", on_failure=said.append)
    assert log.append(Received(at=1, id="whole"))
    monkeypatch.setattr(log_module.os, "write", FullDisk(room=10))
    assert [log.append(Received(at=at, id="lost")) for at in (2, 3, 4)] == [False, False, False]
    assert said == [log.failure] == ["No space left on device"]
    assert [event.id for event in LogFile.open(path).events()] == ["whole"]  # half a line at the end is forgiven


def test_a_disk_that_is_full_at_the_start_is_refused_and_half_a_head_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events"
    with monkeypatch.context() as patched:
        patched.setattr(log_module.os, "write", FullDisk(room=10))
        with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
            EventLog(path, epoch="e", model="tiny")
    EventLog(path, epoch="e", model="tiny")


def test_what_takes_the_place_of_a_log_that_is_written_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog(path, epoch="e", model="tiny", rotate_bytes=200)
    path.rename(tmp_path / "moved")
    path.write_text("my notes")
    while log.append(Received(at=1, id="a")):
        pass
    assert log.failure is not None and "is not an event log of Headway" in log.failure
    assert path.read_text() == "my notes"


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
