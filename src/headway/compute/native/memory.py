"""Memory for packed weights, on huge pages where the system has them: whoever decodes few sequences reads all weights
for each token, and a processor that finds 2 MiB by one address reads on where pages of 4 KiB would stop it."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

HUGE_PAGE = 2 << 20
CHUNK = 32 << 20
ALIGNED = 64


@dataclass
class _Chunk:
    whole: mmap.mmap
    address: int
    size: int
    used: int = 0


class WeightMemory:
    """Hands out parts of large chunks. A chunk lives as long as somebody holds a part of it. Safe for threads."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._lock = Lock()

    def take(self, size: int) -> tuple[int, object]:
        """The address of so many bytes, zero, aligned to 64; and what must be held as long as they are used. Raises
        MemoryError."""
        size = -(-size // ALIGNED) * ALIGNED
        with self._lock:
            chunk = next((one for one in self._chunks if one.size - one.used >= size), None)
            if chunk is None:
                chunk = _chunk(max(size, CHUNK))
                self._chunks.append(chunk)
            chunk.used += size
            return chunk.address + chunk.used - size, chunk.whole


def _chunk(size: int) -> _Chunk:
    """Pages that nobody has touched take no memory."""
    size = -(-size // HUGE_PAGE) * HUGE_PAGE
    try:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        whole = mmap.mmap(-1, size + HUGE_PAGE, **private)
    except OSError as error:
        raise MemoryError(f"no memory for packed weights: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            whole.madvise(mmap.MADV_HUGEPAGE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    return _Chunk(whole, -(-first // HUGE_PAGE) * HUGE_PAGE, size)
