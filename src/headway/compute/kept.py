"""What was measured at one start and need not be measured at the next: values by key, in a file of the cache."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class KeptFile(Generic[T]):
    """A key says all that decides its value. A file that cannot be read or written costs the next start its
    measurements, and nothing else."""

    def __init__(self, path: Path, kind: type[dict[str, T]]) -> None:
        """What is in the file; nothing where it is not there or is damaged."""
        self._path = path
        self._known: dict[str, T] = {}
        try:
            self._known = msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return

    def recall(self, key: str) -> T | None:
        """What is known of it."""
        return self._known.get(key)

    def keep(self, key: str, value: T) -> None:
        """Write it, unless it is known."""
        if self._known.get(key) == value:
            return
        self._known[key] = value
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".partial-", delete=False) as file:
                file.write(msgspec.json.encode(self._known))
            os.replace(file.name, self._path)
        except OSError:
            return
