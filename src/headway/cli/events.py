"""Events for the commands, in order and with their numbers: from a running server, or from an event log."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import httpx
import msgspec

from headway.cli.client import NotHeadway, asking
from headway.core.config import ClientOptions
from headway.core.errors import HeadwayError, LogError
from headway.core.events import AnyEvent
from headway.story.sinks.log import LogFile
from headway.story.sinks.logfiles import decode_head

#: A quiet server sends a comment every 15 s: one that is silent for longer than this is gone.
SILENT_S = 45.0
_LOOK_S = 0.25
_NUMBERED = re.compile(r".*-([0-9]{1,18})")
_event = msgspec.json.Decoder(AnyEvent)


@dataclass(frozen=True)
class Missed:
    """The events `first` to `last` (none, if it is smaller) cannot be had; what follows is a story of its own."""

    first: int
    last: int


Item: TypeAlias = AnyEvent | Missed


@dataclass
class Connection:
    """One answer to `GET /v1/events`. `last_id` is the id of the newest item that was taken from it."""

    url: str
    response: httpx.Response
    last_id: str | None

    def __post_init__(self) -> None:
        clock_ns = self.response.headers.get("headway-clock-ns", "")
        if not clock_ns.isdecimal():
            raise NotHeadway(f"{self.url}/v1/events", "does not send its clock")
        self._ahead_ns = int(clock_ns) - time.monotonic_ns()

    def now_ns(self) -> int:
        """The server's clock, the one that events' `at` is read from."""
        return time.monotonic_ns() + self._ahead_ns

    def items(self) -> Iterator[tuple[int, Item]]:
        """What the server tells, until it stops or the caller does. Raises HeadwayError for what is not an event."""
        frame: dict[str, str] = {}
        for line in self.response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                frame[name] = value
            elif "data" in frame:
                number = _NUMBERED.fullmatch(frame.get("id", ""))
                if number is None:
                    raise NotHeadway(f"{self.url}/v1/events", "sends events without numbers")
                self.last_id = number[0]
                yield int(number[1]), self._item(frame)
                frame = {}

    def _item(self, frame: dict[str, str]) -> Item:
        try:
            if frame["event"] == "gap":
                gap = msgspec.json.decode(frame["data"], type=dict[str, int])
                return Missed(gap["from"], gap["to"])
            return _event.decode(frame["data"])
        except (msgspec.DecodeError, KeyError) as error:
            raise HeadwayError(
                f"{self.url} sends an event that this version of Headway does not know ({error})"
            ) from error


@contextlib.contextmanager
def connected(options: ClientOptions, last_id: str | None = None, *, until_now: bool = False) -> Iterator[Connection]:
    """A server's events: after `last_id`, else from the oldest that it keeps; with `until_now` to the newest, else
    for as long as it tells. Raises NoServer; HeadwayError with the server's own words, and inside the block when the
    connection breaks."""
    headers = {} if last_id is None else {"last-event-id": last_id}
    query = {"until": "now"} if until_now else {}
    timeout = httpx.Timeout(10.0, read=SILENT_S)
    with asking(options, "GET", "/v1/events", params=query, headers=headers, timeout=timeout) as response:
        yield Connection(options.url, response, last_id)


def logged(log: LogFile) -> Iterator[tuple[int, AnyEvent]]:
    """All events of a log with their numbers. Raises LogError."""
    return enumerate(log.events(), log.head.first)


def tail(path: Path, go_on: Callable[[], bool]) -> Iterator[tuple[int, Item] | None]:
    """A log's events, then those that are appended, through rotations and restarts of the server, while `go_on` says
    so. None stands for "nothing more now". Raises LogError."""
    log = LogFile.open(path)
    epoch, number = log.head.epoch, log.head.first - 1
    for number, event in logged(LogFile(log.head, log.paths[:-1])):
        yield number, event
    while go_on():
        try:
            file = path.open("rb")
        except FileNotFoundError:  # between two renames of a rotation
            time.sleep(_LOOK_S)
            continue
        except OSError as error:
            raise LogError(path, f"it cannot be read: {error.strerror}") from error
        with file:
            line = file.readline()
            if not line.endswith(b"\n"):  # a file that has just been made
                time.sleep(_LOOK_S)
                continue
            head = decode_head(path, line)
            if head.epoch != epoch or head.first != number + 1:
                yield head.first - 1, Missed(number + 1 if head.epoch == epoch else 1, head.first - 1)
            epoch, number = head.epoch, head.first - 1
            for found in _growing(file, path, go_on):
                number += found is not None
                yield None if found is None else (number, found)


def _growing(file: BinaryIO, path: Path, go_on: Callable[[], bool]) -> Iterator[AnyEvent | None]:
    """The lines of one file until another one stands in its place. Half a line is read again when it is whole."""
    while go_on():
        begin = file.tell()
        rotated = not _same(file, path)  # asked before the last look, so that nothing is written unseen
        line = file.readline()
        if line.endswith(b"\n"):
            try:
                yield _event.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise LogError(path, f"it has a line that is not an event ({error})") from error
            continue
        if rotated:
            return
        file.seek(begin)
        yield None
        time.sleep(_LOOK_S)


def _same(file: BinaryIO, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # between two renames of a rotation
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return True
