"""Weights converted once and kept: a file for each set of tensors and format, bounded in all.

A process that serves from a file holds a shared lock on it for as long as it lives, one that makes a file holds an
exclusive one; the system drops both when the process ends, however it ends. So what is unlocked is in nobody's use,
and a partial file that is unlocked was left by a crash. A file under its final name is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import ArtifactError

#: Bytes that are kept. What is in use may exceed it: a large model is served all the same.
LIMIT_BYTES = 8 << 30
#: Partial files and folders of small things are left alone for so long after their last use: they cannot be locked
#: between the moment they are made or found and the moment they are opened.
_GRACE_S = 60
_SUFFIX, _PARTIAL, _MEMO = ".safetensors", ".partial-", "tensors.digest"


class HeldFile:
    """A converted file that stays for as long as this object lives."""

    def __init__(self, path: Path, lock: int) -> None:
        """`lock` is a descriptor, closed with this object."""
        self.path = path
        weakref.finalize(self, os.close, lock)


@dataclass(frozen=True)
class Entry:
    """One thing that is kept: a file of weights, or the folder of small things that belong to one revision."""

    path: Path
    bytes: int
    used_at_s: float


@dataclass(frozen=True)
class Cleaned:
    """What was removed, and what was kept because it is in use."""

    removed: tuple[Entry, ...]
    kept: tuple[Entry, ...]


class ConvertedWeights:
    """The folder of converted weights."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes

    def hold(self, key: str) -> HeldFile | None:
        """The file of `key`, locked against removal; None if there is none."""
        return self._hold(self._path(key))

    def hold_revision(self, revision: str, digest: str) -> HeldFile:
        """The folder of a revision's small things, its tokenizer too, locked against removal. `digest` is remembered
        there."""
        memo = self._memo(revision)
        while (held := self._hold(memo)) is None:
            memo.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, prefix=_PARTIAL, delete=False) as file:
                file.write(digest)
            os.replace(file.name, memo)
        return held

    def _hold(self, path: Path) -> HeldFile | None:
        while True:
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            held = HeldFile(path, file)
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is_at(file, path):  # else it was removed between the two calls
                with suppress(PermissionError):  # another user's cache can be read; its order of use stays theirs
                    os.utime(path)
                return held

    @contextmanager
    def making(self, key: str, size_bytes: int) -> Iterator[Path]:
        """A file of that size to fill; with the end of the block it is there under its key, and what is over the
        limit is gone. Nothing stays if the block raises. Raises ArtifactError if there is no room for it."""
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove(self._abandoned())
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=_PARTIAL)
        except OSError as error:
            raise ArtifactError(_unwritable(self._folder, error)) from error
        try:
            with os.fdopen(handle, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                try:
                    os.posix_fallocate(file.fileno(), 0, size_bytes)  # a full disk shows here, not at a mapped write
                except OSError as error:
                    raise ArtifactError(_unwritable(self._folder, error, size_bytes)) from error
                yield Path(temporary)
                if not path.exists():  # another server may have been quicker, and serves from its own
                    os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        self.trim(keep=path)

    def digest(self, revision: str, compute: Callable[[], str]) -> str:
        """The digest of a revision's tensors: the remembered one, else what `compute` says, which reads them all."""
        with suppress(FileNotFoundError):
            return self._memo(revision).read_text()
        return compute()

    def trim(self, keep: Path | None = None) -> Cleaned:
        """Remove what was used least recently until the rest is within the limit, never what is in use or `keep`."""
        entries = sorted(self.entries(), key=lambda entry: entry.used_at_s)
        over = sum(entry.bytes for entry in entries) - self._limit_bytes
        removed: list[Entry] = []
        for entry in entries:
            if over <= 0:
                break
            if entry.path != keep and self._remove([entry]):
                removed.append(entry)
                over -= entry.bytes
        return Cleaned(tuple(removed), ())

    def clean(self) -> Cleaned:
        """Remove all that is not in use."""
        entries = [*self.entries(), *self._abandoned()]
        removed = self._remove(entries)
        return Cleaned(tuple(removed), tuple(entry for entry in entries if entry not in removed))

    def entries(self) -> list[Entry]:
        """Everything that is kept, partial files aside."""
        if not self._folder.is_dir():
            return []
        paths = (p for p in self._folder.iterdir() if not p.name.startswith(_PARTIAL))
        return [found for path in paths if (found := _entry(path)) is not None]

    def _abandoned(self) -> list[Entry]:
        found = [_entry(path) for path in self._folder.glob(f"{_PARTIAL}*")]
        return [entry for entry in found if entry is not None]

    def _remove(self, entries: list[Entry]) -> list[Entry]:
        """Those of `entries` that could be removed: nobody holds them."""
        return [entry for entry in entries if _removed(entry)]

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _memo(self, revision: str) -> Path:
        return self._folder / revision / _MEMO


def _entry(path: Path) -> Entry | None:
    """None for what has gone meanwhile."""
    try:
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        status = [one.stat() for one in files] or [path.stat()]
        return Entry(path, sum(one.st_size for one in status if files), max(one.st_mtime for one in status))
    except FileNotFoundError:
        return None


def _removed(entry: Entry) -> bool:
    lockable = entry.path.suffix == _SUFFIX
    if not lockable and time.time() - entry.used_at_s < _GRACE_S:
        return False
    try:
        with _locked(entry.path):
            shutil.rmtree(entry.path) if entry.path.is_dir() else entry.path.unlink()
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return False  # another process removed it first
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises BlockingIOError if somebody holds a file or a revision's folder."""
    lock = path / _MEMO if path.is_dir() else path
    if path.is_dir() and not lock.exists():  # its weights were never made, or are not yet
        yield
        return
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _is_at(file: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _unwritable(folder: Path, error: OSError, size_bytes: int = 0) -> str:
    needs = f" ({size_bytes} bytes)" if size_bytes else ""
    return (
        f"cannot write converted weights{needs} to {folder}: {error.strerror}. Free some space (`headway models "
        "--clean` removes what no server uses), or set HEADWAY_CACHE to another folder"
    )
