"""The thread that moves blocks between host memory and the disk tier's file, so that no step waits for a disk."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from headway.memory.tiers import Moved
from headway.replica.diskslab import DiskSlab, Unreadable

#: How far the thread's priority is below that of the threads of steps. Where these have all cores, it gets a tenth of
#: one: checksums of blocks are work enough to hold up a step whose threads wait for each other.
_NICER = 10


@dataclass(frozen=True, slots=True)
class _Job:
    what: Literal["write", "read", "erase"]
    key: bytes
    host: int
    disk: int


class DiskWorker:
    """Implements `DiskPort`; `host` gives the bytes of a host slot. Reads come before writes: a request awaits them.

    The books see to it that nobody else touches a host slot or a disk slot while it moves, so no lock guards them.
    """

    def __init__(self, slab: DiskSlab, host: Callable[[int], memoryview]) -> None:
        self._slab, self._host = slab, host
        self._jobs = threading.Condition()
        self._reads: deque[_Job] = deque()
        self._writes: deque[_Job] = deque()
        self._over: deque[Moved] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="disk tier", daemon=True)
        self._thread.start()

    def write(self, key: bytes, host: int, disk: int) -> None:
        self._put(self._writes, _Job("write", key, host, disk))

    def read(self, key: bytes, host: int, disk: int) -> None:
        self._put(self._reads, _Job("read", key, host, disk))

    def erase(self, disk: int) -> None:
        self._put(self._writes, _Job("erase", b"", 0, disk))

    def finished(self) -> Iterable[Moved]:
        while self._over:
            yield self._over.popleft()

    def close(self, timeout_s: float) -> None:
        """Do what was asked for and let go of the file; give up after `timeout_s`."""
        with self._jobs:
            self._closing = True
            self._jobs.notify()
        self._thread.join(timeout_s)

    def _put(self, jobs: deque[_Job], job: _Job) -> None:
        with self._jobs:
            jobs.append(job)
            self._jobs.notify()

    def _work(self) -> None:
        _give_way()
        while True:
            with self._jobs:
                self._jobs.wait_for(lambda: self._reads or self._writes or self._closing)
                if not self._reads and not self._writes:
                    break
                job = self._reads.popleft() if self._reads else self._writes.popleft()
            moved = self._do(job)
            if moved is not None:
                self._over.append(moved)
        self._slab.close()

    def _do(self, job: _Job) -> Moved | None:
        began = time.perf_counter_ns()
        try:
            match job.what:
                case "read":
                    self._slab.read(job.disk, job.key, self._host(job.host))
                case "write":
                    self._slab.write(job.disk, job.key, self._host(job.host))
                case _:
                    self._slab.erase(job.disk)
                    return None
        except Unreadable as error:
            return Moved("read", job.key, job.host, job.disk, fault=error.fault, words=str(error))
        except OSError as error:
            if job.what == "erase":
                return None  # it will be written over, or its block's checksum tells
            words = f"slot {job.disk} cannot be written: {error.strerror}"
            return Moved("write", job.key, job.host, job.disk, fault="write", words=words)
        return Moved(job.what, job.key, job.host, job.disk, time.perf_counter_ns() - began)


def _give_way() -> None:
    """Have this thread run behind those of steps."""
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        thread = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(19, nice + _NICER))
