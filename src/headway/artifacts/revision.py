"""Hexadecimal digits that name a model's weights: twelve for a revision, from what is quick to read; more for the
content of its tensors, whatever else its files hold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 64


def of_identity(identity: str) -> str:
    """From a text that holds a cryptographic hash of the content already (a wheel's sha256)."""
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def of_files(paths: list[Path]) -> str:
    """From files on disk, without reading them whole, so that a start does not hash gigabytes.

    Hashed are each file's name, size and modification time, and 64 evenly spaced samples of 64 KiB, the first at
    its start, where the header of both formats lies. A change of weights by any ordinary tool changes size or time.
    A copy that gets new times gets a new revision too, which costs reuse but is never wrong. Only an edit in
    place that keeps the size, restores the time and misses every sample goes unnoticed.
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        stride = max(status.st_size // _SAMPLES, _SAMPLE_BYTES)
        with path.open("rb") as file:
            for offset in range(0, status.st_size, stride):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]


class ContentDigest:
    """Of tensors, one after another. `reading` is what else decides the values that are read from them."""

    def __init__(self, reading: object = None) -> None:
        self._digest = hashlib.blake2b(repr(reading).encode(), digest_size=16)

    def add(self, name: str, shape: Sequence[int], kind: str, data: np.ndarray) -> None:
        self._digest.update(f"\0{name}\0{list(map(int, shape))}\0{kind}\0{data.nbytes}\0".encode())
        self._digest.update(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data if data.size else b"")

    def text(self) -> str:
        return self._digest.hexdigest()
