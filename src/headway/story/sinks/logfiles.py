"""The files of an event log on disk: `PATH` is the newest, `PATH.1` the one before it, and so on.

Only a regular file that begins with an event log's head is ever moved or deleted. A name that anything else has taken
is left as it is and passed over.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from headway.core.errors import LogError

if sys.platform != "win32":
    import fcntl

VERSION = 1
KIND = "headway event log"
_MOST_HEAD_BYTES = 1 << 16
#: Neither follow a link nor wait for whoever writes into a pipe.
CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NOT_REGULAR: dict[Callable[[int], bool], str] = {
    stat.S_ISDIR: "is a folder; give a file",
    stat.S_ISLNK: "is a link; give the file itself",
    stat.S_ISFIFO: "is a named pipe, not a regular file",
    stat.S_ISSOCK: "is a socket, not a regular file",
    stat.S_ISCHR: "is a device, not a regular file",
    stat.S_ISBLK: "is a device, not a regular file",
}
_FOREIGN = "is not an event log of Headway and is left as it is; choose another file"


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: which server's events follow, and the number of the first of them."""

    kind: str
    version: int
    epoch: str
    first: int
    model: str


class _Kind(msgspec.Struct):
    """All that the heads of all versions share."""

    kind: str


_head = msgspec.json.Decoder(LogHead)
_kind = msgspec.json.Decoder(_Kind)


def aged(path: Path, age: int) -> Path:
    """The log that was rotated `age` times."""
    return path if age == 0 else path.with_name(f"{path.name}.{age}")


def foreign(path: Path) -> str | None:
    """Why what is at `path` may not be moved or deleted: it `is a folder`, …; None for an event log, of any version.
    Raises OSError if that cannot be found out."""
    if (other := _not_regular(path.lstat().st_mode)) is not None:
        return other
    file = os.open(path, os.O_RDONLY | CAREFUL)
    try:
        kind = _kind.decode(os.read(file, _MOST_HEAD_BYTES).partition(b"\n")[0]).kind
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _FOREIGN
    finally:
        os.close(file)
    return None if kind == KIND else _FOREIGN


def refusal(path: Path) -> str | None:
    """Why no event log can be kept at `path`; None if one can: nothing is there, or an event log, or an empty file,
    which has nothing to lose. Nothing on disk is touched. Raises OSError if that cannot be found out."""
    if not os.path.lexists(path):
        return None if path.parent.is_dir() else f"cannot be written: {path.parent} is not an existing folder"
    if is_empty(path):
        return None
    return foreign(path) or _busy(path)


def is_empty(path: Path) -> bool:
    """Whether it is a regular file that holds nothing."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def is_event_log(path: Path) -> bool:
    """Whether an event log is at `path`, or where a link at `path` leads. What cannot be read is none."""
    try:
        return foreign(path.resolve()) is None
    except OSError:
        return False


def lock(file: int) -> bool:
    """Mark an open file as written by this process until it is closed; False if another one has marked it."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def make_way(path: Path, kept_bytes: int) -> None:
    """Move the log at `path`, if there is one, to `path.1`, and older ones on; then delete the oldest until the rest
    hold at most `kept_bytes`. A log without events is deleted at once. Raises OSError."""
    if not os.path.lexists(path) or is_empty(path):
        return
    if _holds_nothing_but_its_head(path):
        path.unlink()
        return
    moved = [path, *_older(path)]
    free = next(aged(path, age) for age in count(1) if not os.path.lexists(aged(path, age)))
    places = [*moved[1:], free]
    for source, target in zip(reversed(moved), reversed(places), strict=True):
        source.rename(target)
    total = 0
    for older in places:
        total += older.stat().st_size
        if total > kept_bytes:
            older.unlink()


def read_head(path: Path) -> LogHead:
    """Raises LogError for a file that cannot be read, is not an event log, or was written by another version."""
    try:
        if (other := _not_regular(path.stat().st_mode)) is not None:
            raise LogError(path, f"it {other}")
        with path.open("rb") as file:
            line = file.readline(_MOST_HEAD_BYTES)
    except OSError as error:
        raise LogError(path, f"it cannot be read: {error.strerror}") from error
    return decode_head(path, line)


def decode_head(path: Path, line: bytes) -> LogHead:
    """The first line of `path`. Raises LogError as `read_head`."""
    try:
        head = _head.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LogError(path, "it is not an event log of Headway") from None
    if head.kind != KIND:
        raise LogError(path, "it is not an event log of Headway")
    if head.version != VERSION:
        raise LogError(path, f"it is an event log of version {head.version}; this version of Headway reads {VERSION}")
    return head


def _older(path: Path) -> Iterator[Path]:
    """The older files of the log at `path`, the newest first, up to the first name that is free."""
    for age in count(1):
        older = aged(path, age)
        if not os.path.lexists(older):
            return
        if foreign(older) is None:
            yield older


def older_heads(path: Path) -> Iterator[tuple[Path, LogHead]]:
    """The older files and their heads, the newest first. Raises LogError as `read_head`."""
    try:
        for older in _older(path):
            yield older, read_head(older)
    except OSError as error:
        raise LogError(path, f"its older files cannot be read: {error.strerror}") from error


def _not_regular(mode: int) -> str | None:
    return next((words for is_one, words in _NOT_REGULAR.items() if is_one(mode)), None)


def _busy(path: Path) -> str | None:
    file = os.open(path, os.O_RDONLY | CAREFUL)
    try:
        return None if lock(file) else "is being written by another server; give each its own file"
    finally:
        os.close(file)


def _holds_nothing_but_its_head(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY | CAREFUL)
    try:
        start = os.read(file, _MOST_HEAD_BYTES)
    finally:
        os.close(file)
    return not start.partition(b"\n")[2]
