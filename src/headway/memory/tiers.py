"""State tiers: blocks of the pool copied to host memory, and from there to disk, and brought back from either.

    pool  --offload-->  host slot  --write-->  disk slot          (write-behind: as soon as a block is indexed)
    pool  <--reload---  host slot  <--read---  disk slot          (once the whole need of a request is reserved)

A step copies between pool and host slots, at its start, as its plan names it; somebody else (`DiskPort`) moves
between host and disk slots, while steps run. So whoever does I/O never touches the pool: a request may end at any
time, and its blocks go back at once, or with the step that copies to them. Without a host tier the host slots are
only the way to the disk, few of them. How many blocks one step copies is bounded from outside (`policy/copies.py`),
so that nobody waits for it; a reload takes as many steps as that needs. What a step costs here grows with the blocks
that it moves, and with nothing else: neither with what lies in tiers or the pool, nor with the reloads that are on
their way.

A block is queued when it is indexed, not when it is evicted: by then its copy is usually there. Where no host slot is
to be had, it stays queued; if it is evicted first, no copy is made. This file decides nothing and does no I/O: it
knows which key lies where, what is on its way, and who pins what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol, TypeAlias

from headway.core.errors import InvariantError
from headway.core.tiers import Backlog, Fault, TierLevel, TierName
from headway.memory.slots import Slots

#: Pairs of a block of the pool and a host slot.
Pairs: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """A read or a write that is over: the block of `key` between host slot and disk slot, in `ns`. With a `fault` the
    slot that was written holds nothing, and `words` say what was wrong."""

    what: Literal["write", "read"]
    key: bytes
    host: int
    disk: int
    ns: int = 1
    fault: Fault | None = None
    words: str = ""


class DiskPort(Protocol):
    """Moves blocks between host and disk slots, in the background and in the order in which it is told; reads may
    overtake."""

    def write(self, key: bytes, host: int, disk: int) -> None: ...

    def read(self, key: bytes, host: int, disk: int) -> None: ...

    def erase(self, disk: int) -> None:
        """What lies in this slot is not to be found again, not even after a restart."""
        ...

    def finished(self) -> Iterable[Moved]:
        """What is over and was not told yet. Never waits."""
        ...


#: How far one block of a reload is: on disk (`slot` of it pinned), perhaps being read; in a host slot (pinned); named
#: in the plan that runs; in the pool; or not to be had.
_At: TypeAlias = Literal["disk", "host", "copying", "loaded", "lost"]


@dataclass(slots=True, eq=False)
class _Part:
    reload: Reload
    key: bytes
    block: int
    tier: TierName
    at: _At
    slot: int


@dataclass(slots=True, eq=False)
class Reload:
    """Blocks of one request on their way into the pool, in the order of their positions. `loaded` and `lost` say how
    many of the first are there, and whether the one behind them cannot be had: then none behind it is of use."""

    parts: list[_Part]
    loaded: int = 0
    lost: bool = False
    copying: int = 0

    @property
    def over(self) -> bool:
        return not self.copying and (self.lost or self.loaded == len(self.parts))

    def come_from(self, tier: TierName) -> int:
        """Blocks that were loaded from there."""
        return sum(part.tier == tier for part in self.parts[: self.loaded])


@dataclass(slots=True)
class Happened:
    """What tiers did since it was last asked: blocks that came to each tier, faults and the last one's words, and the
    disk's reads."""

    offloaded: Counter[TierName] = field(default_factory=Counter)
    faults: Counter[tuple[TierName, Fault]] = field(default_factory=Counter)
    reads: list[int] = field(default_factory=list)  # nanoseconds of each
    words: str = ""

    def wrong(self, fault: Fault, words: str, count: int = 1) -> None:
        """Something is wrong with blocks on disk."""
        if count:
            self.faults["disk", fault] += count
            self.words = words


class Tiers:
    """The tiers of one pool. `most_copies` bounds what one step copies in each direction, whatever else bounds it;
    `staging` says that the host slots are no tier of their own. After `_MOST_FAILED` writes in a row that failed,
    none are tried any more: the disk is full, or gone."""

    _MOST_FAILED = 3

    def __init__(
        self,
        host: Slots,
        disk: Slots | None = None,
        port: DiskPort | None = None,
        *,
        most_copies: int = 64,
        staging: bool = False,
        slot_bytes: int = 0,
    ) -> None:
        if (disk is None) != (port is None) or (staging and disk is None):
            raise InvariantError("disk slots and what moves their blocks come together; staging leads to a disk")
        self.host, self.disk, self.staging, self.slot_bytes = host, disk, staging, slot_bytes
        self._port = port
        self._most_copies = most_copies
        self._queued: dict[int, bytes] = {}  # block to key: indexed, and no copy of it was made yet
        self._reloads: dict[Reload, None] = {}
        self._unread: dict[_Part, None] = {}  # on disk, and there was no host slot to read into
        self._expecting: dict[bytes, list[_Part]] = {}  # on disk, and by now on their way to a host slot
        self._copyable: dict[_Part, None] = {}  # in host slots
        self._copying: list[_Part] = []  # named in the plan that runs
        self._offloads: list[tuple[bytes, int, int]] = []  # so too: key, block, host slot
        self._moving: dict[bytes, Moved] = {}  # reads and writes; of one block there is one at most
        self._spoiled: set[bytes] = set()  # of those on their way to or from disk
        self._writing = 0  # of those, the writes
        self._wrote_ever = self._copied_ever = 0  # writes that ended, and blocks that came to host slots
        self._failed = 0
        self.happened = Happened()

    # -- offloading ------------------------------------------------------------------------------------------

    def indexed(self, block: int, key: bytes) -> None:
        """A block of the pool can be found under `key` from now on, or was of use again: it is queued to be copied,
        unless it has a copy."""
        if self.host.expects(key) or (self.disk is not None and self.disk.expects(key)):
            self.host.renew(key)
            if self.disk is not None:
                self.disk.renew(key)
        elif not (self.staging and self._stopped):
            self._queued[block] = key

    def gone(self, block: int) -> None:
        """The content of a block of the pool is gone."""
        self._queued.pop(block, None)

    def spoil(self, block: int, key: bytes) -> None:
        """The content of a block of the pool may be wrong, and so may its copies: they are not to be found again. One
        that moves is forgotten when it has: a host slot that is read into is nobody else's until then."""
        self.gone(block)
        moves = self._moving.get(key)
        if moves is None or moves.what == "write":  # then its host slot is pinned
            self.host.forget(key)
        if moves is not None:
            self._spoiled.add(key)
        elif self.disk is not None and key in self.disk:
            self._forget_on_disk(key)

    def name_offloads(self, most: int) -> None:
        """Choose what the next step copies to host slots, `most` blocks at most. Asked before the step takes any
        block: what it copies is read before anything is written."""
        most = min(most, self._most_copies)
        while self._queued and self.host.room and len(self._offloads) < most:
            block = next(iter(self._queued))
            key = self._queued.pop(block)
            if not self.host.expects(key):
                slot = self.host.claim(key)
                assert slot is not None
                self._offloads.append((key, block, slot))

    # -- reloading -------------------------------------------------------------------------------------------

    def found(self, keys: Sequence[bytes], *, coming: bool = False) -> list[bytes]:
        """The first of `keys` whose blocks lie in a tier, up to one that does not; with `coming` such count too as
        are on their way there."""
        found: list[bytes] = []
        for key in keys:
            if self._tier(key) is None and not (coming and self.host.expects(key)):
                break
            found.append(key)
        return found

    def count(self, keys: Iterable[bytes]) -> tuple[int, int]:
        """How many of them would come from host memory, and how many from disk. Those on their way to a tier count as
        its first."""
        first: TierName = "disk" if self.staging else "host"
        tiers = Counter(self._tier(key) or first for key in keys)
        return tiers["host"], tiers["disk"]

    def begin(self, keys: Sequence[bytes], blocks: Sequence[int]) -> Reload:
        """Bring the blocks of `keys`, which were `found`, into these blocks of the pool. From now on they stay where
        they are until they are there, or the reload ends."""
        reload = Reload([])
        for key, block in zip(keys, blocks, strict=True):
            tier = self._tier(key)
            if tier is None:
                raise InvariantError("a block is to be reloaded that lies in no tier")
            in_host = key in self.host
            slots = self.host if in_host else self.disk
            assert slots is not None
            part = _Part(reload, key, block, tier, "host" if in_host else "disk", slots.pin(key))
            reload.parts.append(part)
            (self._copyable if in_host else self._unread)[part] = None
        self._reloads[reload] = None
        self._read_on()
        return reload

    def end(self, reload: Reload | None) -> None:
        """It is over, or not wanted any more; no step that runs names its blocks. A second call does nothing."""
        if reload is None or reload not in self._reloads:
            return
        if reload.copying:
            raise InvariantError("a reload ends while a step copies its blocks")
        for part in reload.parts:
            self._let_go(part)
        del self._reloads[reload]
        self._read_on()

    # -- the step --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether there is something for a step to copy."""
        return bool(self._offloads or (self._queued and self.host.room) or self._copyable)

    @property
    def moving(self) -> bool:
        """Whether reads or writes are on their way."""
        return bool(self._moving)

    @property
    def backlog(self) -> Backlog | None:
        """What is to be written and no step can move: writes that the disk has, or blocks that find no host slot.
        Blocks that find none beside reloads wait as long as those, whose requests say what they wait for."""
        if not self._writing and (not self._queued or self.host.room or self._reloads):
            return None
        tier: TierName = "disk" if self._writing or self.staging else "host"
        moved = self._wrote_ever if self._writing else self._copied_ever
        return Backlog(tier, self._writing, len(self._queued), self.host.pinned, self.host.total, moved)

    @property
    def named(self) -> int:
        """How many blocks the next step copies to host slots."""
        return len(self._offloads)

    @property
    def loadable(self) -> int:
        """How many blocks a step could copy to the pool now."""
        return len(self._copyable)

    def name(self, most: int) -> tuple[Pairs, Pairs]:
        """What the step that is planned copies: (block, host slot) of offloads, (host slot, block) of reloads, `most`
        of these at most."""
        for part in list(islice(self._copyable, min(most, self._most_copies))):
            del self._copyable[part]
            self._copying.append(part)
            part.at = "copying"
            part.reload.copying += 1
        offloads = tuple((block, slot) for _, block, slot in self._offloads)
        return offloads, tuple((part.slot, part.block) for part in self._copying)

    def copied(self) -> None:
        """The step that was named is over."""
        for key, _, slot in self._offloads:
            self.host.written(key)
            self._write(key, slot)
            self._arrived(key)
            self._copied_ever += 1
            if not self.staging:
                self.happened.offloaded["host"] += 1
        self._offloads.clear()
        self._land("loaded")

    def failed(self) -> None:
        """The step that was named failed: what it copied is worth nothing."""
        for key, _, _ in self._offloads:
            self.host.forget(key)
            self._arrived(key)
        self._offloads.clear()
        self._land("lost")

    def collect(self) -> None:
        """Take in what the disk has done."""
        for moved in self._port.finished() if self._port is not None else ():
            del self._moving[moved.key]
            if moved.what == "write":
                self._wrote(moved)
            else:
                self._read(moved)
                self._arrived(moved.key)
        self._read_on()

    def levels(self) -> tuple[TierLevel, ...]:
        """How much each tier holds."""
        host = () if self.staging else (TierLevel("host", len(self.host), self.host.total, *self._more(self.host)),)
        if self.disk is None:
            return host
        return (*host, TierLevel("disk", len(self.disk), self.disk.total, *self._more(self.disk)))

    def check(self) -> None:
        """Raise InvariantError unless pins and moves add up. Changes nothing."""
        parts = [part for reload in self._reloads for part in reload.parts]
        writes = [move for move in self._moving.values() if move.what == "write"]
        reads = [move for move in self._moving.values() if move.what == "read"]
        if len(writes) != self._writing:
            raise InvariantError(f"{len(writes)} writes are on their way, {self._writing} are counted")
        self.host.check(
            [*(part.slot for part in parts if part.at in ("host", "copying")), *(move.host for move in writes)],
            [*(key for key, _, _ in self._offloads), *(move.key for move in reads)],
        )
        if self.disk is not None:
            self.disk.check(
                [*(part.slot for part in parts if part.at == "disk"), *(move.disk for move in reads)],
                [move.key for move in writes],
            )
        listed = [*self._unread, *self._copyable, *self._copying]
        listed += [part for expecting in self._expecting.values() for part in expecting]
        if set(listed) != {part for part in parts if part.at in ("disk", "host", "copying")}:
            raise InvariantError("a block that is to be reloaded is forgotten, or one is awaited that is not")

    # -- inside ----------------------------------------------------------------------------------------------

    def _more(self, slots: Slots) -> tuple[int, int]:
        return self.slot_bytes, slots.evictions

    def _tier(self, key: bytes) -> TierName | None:
        if key in self.host and not self.staging:
            return "host"
        return "disk" if key in self.host or (self.disk is not None and key in self.disk) else None

    def _land(self, at: Literal["loaded", "lost"]) -> None:
        """What a step copied to the pool is there, or not."""
        landed, self._copying = self._copying, []
        for part in landed:
            self.host.unpin(part.slot)
            part.at = at
            part.reload.copying -= 1
        for part in landed:
            self._advance(part.reload)
        self._read_on()

    def _advance(self, reload: Reload) -> None:
        """Count what is there of a reload; where the next block cannot be had, those behind it are of no use."""
        while reload.loaded < len(reload.parts) and reload.parts[reload.loaded].at == "loaded":
            reload.loaded += 1
        if reload.loaded < len(reload.parts) and reload.parts[reload.loaded].at == "lost" and not reload.lost:
            reload.lost = True
            for part in reload.parts[reload.loaded :]:
                if part.at != "copying":
                    self._let_go(part)

    def _read_on(self) -> None:
        """Have blocks of reloads that are on disk read, as long as there are host slots for them."""
        while self._unread and self.host.room:
            part = next(iter(self._unread))
            del self._unread[part]
            self._fetch(part)

    def _arrived(self, key: bytes) -> None:
        """A block that was on its way to a host slot is there, or it will not be."""
        for part in self._expecting.pop(key, ()):
            self._fetch(part)

    def _fetch(self, part: _Part) -> None:
        """Go on with a block that was on disk when its reload began: its host slot, or a read into one."""
        assert self.disk is not None and self._port is not None
        if part.key in self.host:
            self.disk.unpin(part.slot)
            part.at, part.slot = "host", self.host.pin(part.key)
            self._copyable[part] = None
        elif not self.host.expects(part.key) and part.key not in self.disk:  # what was read is not what it should be
            self.disk.unpin(part.slot)
            part.at = "lost"
            self._advance(part.reload)
        elif not self.host.expects(part.key) and not self.host.room:
            self._unread[part] = None
        else:
            self._expecting.setdefault(part.key, []).append(part)
            if not self.host.expects(part.key):
                slot = self.host.claim(part.key)
                assert slot is not None
                self._move("read", part.key, slot, self.disk.pin(part.key))

    def _let_go(self, part: _Part) -> None:
        """Nobody needs this block of a reload any more, however far it is."""
        if part.at == "disk":
            assert self.disk is not None
            self.disk.unpin(part.slot)
            self._unread.pop(part, None)
            if part.key in self._expecting:
                self._expecting[part.key] = [other for other in self._expecting[part.key] if other is not part]
        elif part.at == "host":
            self.host.unpin(part.slot)
            del self._copyable[part]
        part.at = "loaded" if part.at == "loaded" else "lost"

    def _move(self, what: Literal["write", "read"], key: bytes, host: int, disk: int) -> None:
        assert self._port is not None
        self._moving[key] = Moved(what, key, host, disk)
        (self._port.write if what == "write" else self._port.read)(key, host, disk)

    def _write(self, key: bytes, host: int) -> None:
        """Have a block that came to a host slot written to disk."""
        if self.disk is None or self.disk.expects(key) or self._stopped:
            return
        disk = self.disk.claim(key)
        if disk is not None:
            self.host.pin(key)
            self._move("write", key, host, disk)
            self._writing += 1

    @property
    def _stopped(self) -> bool:
        return self._failed >= self._MOST_FAILED

    def _wrote(self, moved: Moved) -> None:
        assert self.disk is not None
        self._writing -= 1
        self._wrote_ever += 1
        self.host.unpin(moved.host)
        self.disk.written(moved.key)
        if moved.fault is not None or moved.key in self._spoiled:
            self._forget_on_disk(moved.key)
        if moved.fault is None:
            self.happened.offloaded["disk"] += 1
            self._failed = 0
        else:
            self.happened.wrong(moved.fault, moved.words)
            self._failed += 1

    def _read(self, moved: Moved) -> None:
        assert self.disk is not None
        self.disk.unpin(moved.disk)
        if moved.fault is None and moved.key not in self._spoiled:
            self.host.written(moved.key)
            self.happened.reads.append(moved.ns)
            return
        self.host.forget(moved.key)
        self._forget_on_disk(moved.key)
        if moved.fault is not None:
            self.happened.wrong(moved.fault, moved.words)

    def _forget_on_disk(self, key: bytes) -> None:
        assert self.disk is not None and self._port is not None
        self._spoiled.discard(key)
        if key in self.disk:
            self._port.erase(self.disk.slot(key))
            self.disk.forget(key)
