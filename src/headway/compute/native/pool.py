"""The native library's threads."""

from __future__ import annotations

import weakref

from headway.compute.native.library import Library


class Pool:
    """`threads` threads, the caller's among them; idle ones wait awake for `spin_us`, then sleep. Lives as long as
    anyone holds it: what is opened with its handle must hold it."""

    def __init__(self, library: Library, threads: int, spin_us: int) -> None:
        """Raises MemoryError."""
        self.threads = threads
        self.handle = library.pool_open(threads, spin_us)
        if not self.handle:
            raise MemoryError("no memory for the native library's threads")
        weakref.finalize(self, library.pool_close, self.handle)
