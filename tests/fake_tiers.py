"""A disk for the fake executor's blocks, whose moves end when the test says so, and which can go wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.compute.fake import FakeExecutor
from headway.core.tiers import Fault
from headway.memory.slots import Slots
from headway.memory.tiers import Moved, Tiers

#: What a slot holds that is being read into: state of no prefix.
_NOTHING = -1


class FakeDisk:
    """Implements `DiskPort` over an executor's host slots. A move takes place at once, and is told after `delay`
    questions; `wrong` are faults of the moves to come, first come first served (None: it goes well). The content of
    a slot carries its key, so a block that is read from the wrong slot shows."""

    def __init__(self, executor: FakeExecutor, delay: int = 0) -> None:
        self.slots: dict[int, tuple[bytes, list[int]]] = {}
        self.delay = delay
        self.wrong: list[Fault | None] = []
        self.told: list[str] = []
        self._executor = executor
        self._queue: list[list] = []

    def write(self, key: bytes, host: int, disk: int) -> None:
        fault = self.wrong.pop(0) if self.wrong else None
        self.slots.pop(disk, None)
        if fault is None:
            self.slots[disk] = key, list(self._executor.host[host])
        self._put(Moved("write", key, host, disk, 1000, fault and "write", "the disk is wrong"))

    def read(self, key: bytes, host: int, disk: int) -> None:
        fault = self.wrong.pop(0) if self.wrong else None
        lies, content = self.slots[disk]
        assert lies == key, "a slot holds another block than the books say"
        if fault is None:
            self._executor.host[host] = list(content)
        self._put(Moved("read", key, host, disk, 1000, fault, "the disk is wrong"))

    def erase(self, disk: int) -> None:
        self.slots.pop(disk, None)

    def finished(self) -> Iterable[Moved]:
        for each in self._queue:
            each[0] -= 1
        ready = [moved for left, moved in self._queue if left < 0]
        self._queue = [each for each in self._queue if each[0] >= 0]
        return ready

    def hurry(self) -> None:
        """Tell of everything at the next question, and answer at once from now on."""
        self.delay = 0
        for each in self._queue:
            each[0] = 0

    def _put(self, moved: Moved) -> None:
        self.told.append(moved.what)
        self._queue.append([self.delay, moved])


class HeldDisk(FakeDisk):
    """A disk whose moves take place when the test says so: those of `pending`, by `end`. Until then a slot that is
    read into holds nothing of use, and nobody else may touch it, nor the one that is written from."""

    def __init__(self, executor: FakeExecutor) -> None:
        super().__init__(executor)
        self.pending: list[Moved] = []
        self._before: dict[bytes, list[int]] = {}
        self._over: list[Moved] = []

    def write(self, key: bytes, host: int, disk: int) -> None:
        self.slots.pop(disk, None)
        self._begin(Moved("write", key, host, disk))

    def read(self, key: bytes, host: int, disk: int) -> None:
        self._executor.host[host] = [_NOTHING] * len(self._executor.host[host])
        self._begin(Moved("read", key, host, disk))

    def end(self, place: int, fault: Fault | None = None, ns: int = 1000) -> None:
        """The move at that place of `pending` is over; the books are told at their next question."""
        moved = self.pending.pop(place)
        before = self._before.pop(moved.key)
        assert self._executor.host[moved.host] == before, "a host slot was given away while it moved"
        if moved.what == "write" and fault is None:
            self.slots[moved.disk] = moved.key, before
        elif moved.what == "read":
            lies, content = self.slots[moved.disk]
            assert lies == moved.key, "a slot holds another block than the books say"
            if fault is None:
                self._executor.host[moved.host] = list(content)
        words = "the disk is wrong" if fault else ""
        self._over.append(replace(moved, ns=ns, fault=fault, words=words))

    def finished(self) -> Iterable[Moved]:
        over, self._over = self._over, []
        return over

    def _begin(self, moved: Moved) -> None:
        self.told.append(moved.what)
        self.pending.append(moved)
        self._before[moved.key] = list(self._executor.host[moved.host])


def fake_tiers(
    executor: FakeExecutor,
    disk_slots: int,
    *,
    delay: int | None = 0,
    most_copies: int = 64,
    staging=False,
):
    """Tiers over the executor's host slots, and where there are any `disk_slots` on a fake disk. With `delay` None
    its moves end when the test says so."""
    disk = None
    if disk_slots:
        disk = HeldDisk(executor) if delay is None else FakeDisk(executor, delay)
    slots = Slots(disk_slots) if disk_slots else None
    host = Slots(len(executor.host))
    tiers = Tiers(host, slots, disk, most_copies=most_copies, staging=staging, slot_bytes=8)
    return tiers, disk
