"""The event log: every event as a line of JSON, appended as it happens, so that a crash loses at most half a line.

The first line says what the file is. Files are rotated: `PATH` is the newest, `PATH.1` the one before it, and so on.
Numbers of events run on through all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.errors import ConfigError, LogError
from headway.story.events import AnyEvent

VERSION = 1
_KIND = "headway event log"
#: A file that has grown beyond this is rotated; so many older ones are kept.
ROTATE_BYTES, KEPT_FILES = 64 << 20, 4

_encoder = msgspec.json.Encoder()
_event = msgspec.json.Decoder(AnyEvent)


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: which server's events follow, and the number of the first of them."""

    kind: str
    version: int
    epoch: str
    first: int
    model: str


_head = msgspec.json.Decoder(LogHead)


class EventLog:
    """Appends to `path`; what is there already is rotated away first. Raises ConfigError if it cannot be written.

    A disk that fails later ends the log, not the server: `failure` then says why.
    """

    def __init__(self, path: Path, *, epoch: str, model: str, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.path, self.epoch = path, epoch
        self._model, self._rotate_bytes = model, rotate_bytes
        self._next = 1
        self._bytes = 0
        self.failure: str | None = None
        try:
            if path.exists() and path.stat().st_size:
                self._rotate()
            self._file = self._open()
        except OSError as error:
            raise ConfigError("--event-log", f"{path} cannot be written: {error.strerror}") from error

    def append(self, event: AnyEvent) -> None:
        """One more line, handed to the operating system at once."""
        if self.failure is not None:
            return
        line = _encoder.encode(event) + b"\n"
        try:
            if self._bytes + len(line) > self._rotate_bytes:
                os.close(self._file)
                self._rotate()
                self._file = self._open()
            os.write(self._file, line)
        except OSError as error:
            self.failure = f"the event log ended: {error.strerror}"
            return
        self._bytes += len(line)
        self._next += 1

    def close(self) -> None:
        if self.failure is None:
            self.failure = "closed"
            os.close(self._file)

    def _open(self) -> int:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        head = LogHead(kind=_KIND, version=VERSION, epoch=self.epoch, first=self._next, model=self._model)
        line = _encoder.encode(head) + b"\n"
        os.write(file, line)
        self._bytes = len(line)
        return file

    def _rotate(self) -> None:
        for age in range(KEPT_FILES, 0, -1):
            older = aged(self.path, age)
            newer = aged(self.path, age - 1)
            if newer.exists():
                newer.replace(older)


def aged(path: Path, age: int) -> Path:
    """The log that was rotated `age` times."""
    return path if age == 0 else path.with_name(f"{path.name}.{age}")


@dataclass(frozen=True)
class LogFile:
    """One server's events, as far back as its files go. `head` is the oldest file's."""

    head: LogHead
    paths: tuple[Path, ...]

    @classmethod
    def open(cls, path: Path) -> LogFile:
        """`path` and the older files of the same server. Raises LogError for a file that cannot be read, is no event
        log, or was written by another version."""
        head, paths = _read_head(path), [path]
        for age in range(1, KEPT_FILES + 1):
            older = aged(path, age)
            if not older.exists():
                break
            before = _read_head(older)
            if before.epoch != head.epoch:
                break
            head = before
            paths.insert(0, older)
        return cls(head, tuple(paths))

    def events(self) -> Iterator[AnyEvent]:
        """In order. The last line may be half a line: whoever wrote it was interrupted. Raises LogError for any other
        line that is no event."""
        for path in self.paths:
            with path.open("rb") as file:
                next(file)
                for number, line in enumerate(file, 2):
                    if not line.endswith(b"\n"):
                        return
                    try:
                        yield _event.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise LogError(path, f"line {number} is no event ({error})") from error


def _read_head(path: Path) -> LogHead:
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 16)
    except OSError as error:
        raise LogError(path, f"it cannot be read: {error.strerror}") from error
    try:
        head = _head.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LogError(path, "it is no event log of Headway") from None
    if head.kind != _KIND:
        raise LogError(path, "it is no event log of Headway")
    if head.version != VERSION:
        raise LogError(path, f"it was written in version {head.version} of the log; this Headway reads {VERSION}")
    return head
