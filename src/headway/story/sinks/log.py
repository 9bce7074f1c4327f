"""The event log: every event as a line of JSON, appended as it happens, so that a crash loses at most half a line.

The first line says what the file is. Files are rotated (`logfiles.py`); numbers of events run on through all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.core.errors import ConfigError, LogError
from headway.core.events import AnyEvent
from headway.story.sinks.logfiles import (
    CAREFUL,
    KIND,
    VERSION,
    LogHead,
    aged,
    is_empty,
    lock,
    make_way,
    older_heads,
    read_head,
    refusal,
)  # fmt: skip

__all__ = ["EventLog", "LogFile", "LogHead", "aged", "check_place"]

#: A file that would grow beyond this is rotated; all files together hold at most so much.
ROTATE_BYTES, TOTAL_BYTES = 64 << 20, 512 << 20
#: Of a small total a file takes a part only, so that there is something older.
_PARTS = 4

_encoder = msgspec.json.Encoder()
_event = msgspec.json.Decoder(AnyEvent)


def check_place(path: Path) -> None:
    """Raises ConfigError, and touches nothing, if no event log can be kept at `path`."""
    try:
        reason = refusal(path)
    except OSError as error:
        raise ConfigError("--event-log", f"{path} cannot be read: {error.strerror}") from error
    if reason is not None:
        raise ConfigError("--event-log", f"{path} {reason}")


class EventLog:
    """Appends to `path`; an event log that is there already is rotated away first. Raises ConfigError if that cannot
    be done, or if anything else is there.

    A disk that fails later ends the log, not the server: `failure` then says why, and `on_failure` is called once.
    """

    def __init__(
        self,
        path: Path,
        *,
        epoch: str,
        model: str,
        rotate_bytes: int = ROTATE_BYTES,
        total_bytes: int = TOTAL_BYTES,
        on_failure: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.path, self.epoch = path, epoch
        self._model, self._on_failure = model, on_failure
        self._rotate_bytes = min(rotate_bytes, total_bytes // _PARTS)
        self._kept_bytes = total_bytes - self._rotate_bytes
        self._next = 1
        self._bytes = 0
        self.failure: str | None = None
        self._file: int | None = None
        check_place(path)
        try:
            self._begin()
        except OSError as error:
            raise ConfigError("--event-log", f"{path} cannot be written: {error.strerror}") from error

    def append(self, event: AnyEvent) -> bool:
        """One more line, handed to the operating system at once; False if it is lost."""
        if self._file is None:
            return False
        line = _encoder.encode(event) + b"\n"
        try:
            if self._bytes + len(line) > self._rotate_bytes:
                self._rotate()
            self._write(line)
        except OSError as error:
            self._fail(error.strerror or str(error))
            return False
        self._next += 1
        return True

    def close(self) -> None:
        """Nothing is appended any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rotate(self) -> None:
        """Raises OSError; also when something that is no event log has taken the log's place meanwhile."""
        self.close()
        if (reason := refusal(self.path)) is not None:
            raise OSError(None, f"{self.path} {reason}")
        self._begin()

    def _begin(self) -> None:
        """Open `path`, where an empty file may lie, and write the head. Raises OSError."""
        make_way(self.path, self._kept_bytes)
        new = 0 if os.path.lexists(self.path) and is_empty(self.path) else os.O_EXCL
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | CAREFUL | new, 0o600)
        self._bytes = 0
        if not lock(self._file):
            raise OSError(None, "another server is writing to it")
        head = LogHead(kind=KIND, version=VERSION, epoch=self.epoch, first=self._next, model=self._model)
        try:
            self._write(_encoder.encode(head) + b"\n")
        except OSError:
            os.ftruncate(self._file, 0)  # half a head would not be known as ours again
            self.close()
            raise

    def _write(self, line: bytes) -> None:
        """All of it: a disk that is nearly full takes a part."""
        assert self._file is not None
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._bytes += len(line)

    def _fail(self, reason: str) -> None:
        self.close()
        self.failure = reason
        self._on_failure(reason)


@dataclass(frozen=True)
class LogFile:
    """One server's events, as far back as its files go. `head` is the oldest file's."""

    head: LogHead
    paths: tuple[Path, ...]

    @classmethod
    def open(cls, path: Path) -> LogFile:
        """`path` and the older files of the same server. Raises LogError for a file that cannot be read, is not an
        event log, or was written by another version."""
        head, paths = read_head(path), [path]
        for older, before in older_heads(path):
            if before.epoch != head.epoch:
                break
            head = before
            paths.insert(0, older)
        return cls(head, tuple(paths))

    def events(self) -> Iterator[AnyEvent]:
        """In order. The last line may be half a line: whoever wrote it was interrupted. Raises LogError for any other
        line that is not an event."""
        for path in self.paths:
            for number, line in enumerate(_lines(path), 1):
                if not line.endswith(b"\n"):
                    return
                if number == 1:
                    continue
                try:
                    yield _event.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise LogError(path, f"line {number} is not an event ({error})") from error


def _lines(path: Path) -> Iterator[bytes]:
    """Raises LogError for a file that cannot be read (any more)."""
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise LogError(path, f"it cannot be read: {error.strerror}") from error
