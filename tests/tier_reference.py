"""Prefix cache and state tiers again, as plainly as they can be said: no keys, no indexes, everything is looked for.

What a block holds is named by itself: the salt, and all tokens up to its last one. A block that was given back half
full has a name as well. `Names` is a memory for `reference.Reference`; what lies outside the pool is in `PlainTiers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from reference import Counts, Offer, Plain

#: (salt, tokens)
Name = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class Block:
    """Live with `users`, reusable with a name and no users, else free."""

    name: Name | None = None
    users: int = 0


class Names(Counts):
    """A pool with a prefix cache, if `cache`, and `tiers`, if there are any."""

    def __init__(self, blocks: int, size: int, cache: bool = True, tiers: PlainTiers | None = None) -> None:
        self.size, self.cache, self.evictions = size, cache, 0
        self.all = [Block() for _ in range(blocks)]
        self.idle: list[Block] = []  # reusable, the least recently used first
        self.tiers = tiers or PlainTiers(size)

    @property
    def free(self) -> int:
        return sum(not block.users and block.name is None for block in self.all)

    @property
    def available(self) -> int:
        return self.free + len(self.idle)

    def find(self, name: Name) -> Block | None:
        return next((block for block in self.all if block.name == name), None)

    def named(self, r: Plain, whole: int) -> Name:
        """What the last of its first `whole` blocks holds."""
        return r.salt, r.tokens[: whole * self.size]

    # -- what is found ---------------------------------------------------------------------------------------

    def offer(self, r: Plain) -> Offer:
        """The last position is always computed; what is behind a gap is of no use."""
        most = (r.known - 1) // self.size if self.cache else 0
        matched: list[Block] = []
        while len(matched) < most and (block := self.find(self.named(r, len(matched) + 1))):
            matched.append(block)
        stored: list[Name] = []
        while len(matched) + len(stored) < most:
            name = self.named(r, len(matched) + len(stored) + 1)
            if self.tiers.where(name) is None:
                break
            stored.append(name)
        declined = bool(stored) and not self.tiers.worth(stored)
        stored = [] if declined else stored
        found = (len(matched) + len(stored)) * self.size
        begun, agreeing = self.begun(r, found) if self.cache and not stored else (None, 0)
        return Offer(
            need=self.blocks(r.known + 1) - len(matched),
            have=self.available - sum(not block.users for block in matched),
            cost=r.known - found - agreeing,
            stored=tuple(stored),
            declined=declined,
            matched=tuple(matched),
            begun=(begun, agreeing),
        )

    def begun(self, r: Plain, found: int) -> tuple[Block | None, int]:
        """The block that goes on behind `found` positions as this one does for longest, and for how long; of several
        the last in order before what is wanted, else the first behind that."""
        wanted = r.tokens[found : min(found + self.size, r.known)]
        agree = {}
        for block in self.all:
            if block.name and block.name[0] == r.salt and block.name[1][:found] == r.tokens[:found]:
                goes_on = block.name[1][found:]
                if 0 < len(goes_on) <= self.size:
                    same = [a == b for a, b in zip(goes_on, wanted, strict=False)]
                    agree[block] = [*same, False].index(False)
        longest = max(agree.values(), default=0)
        best = sorted((block for block in agree if agree[block] == longest), key=lambda block: block.name)
        before = [block for block in best if block.name[1][found:] < wanted]
        positions = min(longest, r.known - 1 - found)
        return ((before[-1:] or best)[0], positions) if positions > 0 else (None, 0)

    # -- taking and giving back ------------------------------------------------------------------------------

    def take(self, r: Plain, offer: Offer) -> None:
        for block in offer.matched:
            if not block.users:
                self.idle.remove(block)
            block.users += 1
            self.tiers.indexed(block)
        begun, r.begun = offer.begun
        if begun in self.idle:
            self.idle.remove(begun)
            self.idle.append(begun)
        r.table, r.published, r.found = list(offer.matched), len(offer.matched), len(offer.matched)
        self.grow(r, offer.need)
        if offer.stored:
            r.reload = self.tiers.begin(offer.stored)

    def grow(self, r: Plain, blocks: int) -> None:
        for _ in range(blocks):
            block = next((block for block in self.all if not block.users and block.name is None), None)
            if block is None:
                block = self.idle.pop(0)
                self.tiers.gone(block)
                block.name = None
                self.evictions += 1
            block.users = 1
            r.table.append(block)
        r.held = len(r.table)

    def found(self, r: Plain) -> tuple[int, str]:
        """Positions that one finds who is admitted now, and `lost` where not all could be brought back."""
        reload, r.reload = r.reload, None
        if reload is None:
            return len(r.table[: r.found]) * self.size + r.begun, ""
        self.tiers.end(reload)
        return (r.found + reload.loaded) * self.size, "lost" if reload.loaded < len(reload.parts) else ""

    def publish(self, r: Plain) -> None:
        """Whole blocks with state can be found, unless another one holds the same already."""
        for place in range(r.published, r.computed // self.size if self.cache else 0):
            block, name = r.table[place], self.named(r, place + 1)
            if block.name is None and self.find(name) is None:
                block.name = name
                self.tiers.indexed(block)
            r.published = place + 1

    def give_back(self, r: Plain, *, keep: bool = True) -> None:
        """The last block first."""
        self.tiers.end(r.reload)
        r.reload = None
        if keep and self.cache and r.computed % self.size and r.table:
            block, name = r.table[r.computed // self.size], (r.salt, r.tokens[: r.computed])
            if block.name is None and self.find(name) is None:
                block.name = name
        for block in reversed(r.table):
            block.users -= 1
            if not block.users and block.name is not None:
                if keep:
                    self.idle.append(block)
                else:
                    self.tiers.spoil(block)
                    block.name = None
        r.table, r.held = [], 0

    # -- tiers -----------------------------------------------------------------------------------------------

    def open(self, now: int, room: int, every: int) -> None:
        self.tiers.now, self.tiers.room, self.tiers.every = now, room, every
        self.tiers.choose_offloads()

    def name(self, planned: bool) -> bool:
        return self.tiers.name(planned)

    def copied(self, well: bool) -> None:
        self.tiers.copied(well)

    def measure(self, now: int, spans: Iterable[int], ns: int, copied: dict[str, int]) -> None:
        spans = list(spans)
        for each, took in copied.items():
            blocks = len(self.tiers.last[each])
            if blocks:
                self.tiers.rates[each].note(now, blocks * self.size, took)
                ns -= took
        if 2 * sum(span for span in spans if span >= self.size) > sum(spans):
            self.tiers.rates["prefill"].note(now, sum(spans), ns)

    def collect(self, now: int) -> tuple[dict[str, int], dict[str, int]]:
        return self.tiers.collect(now)

    def awaited(self, r: Plain) -> tuple[int, int] | None:
        return None if r.reload.over else (len(r.reload.parts), r.reload.loaded)

    def brought(self, r: Plain) -> dict[str, int]:
        return dict(Counter(part.tier for part in r.reload.parts[: r.reload.loaded]))


@dataclass(eq=False)
class Slot:
    """A place in a tier. Nothing is `there` while it is written to; who pins it keeps others from getting it."""

    name: Name | None = None
    there: bool = False
    pins: int = 0


class Shelf:
    """The slots of one tier, the least recently used first."""

    def __init__(self, total: int) -> None:
        self.slots = [Slot() for _ in range(total)]
        self.evictions = 0

    def __len__(self) -> int:
        return sum(slot.there for slot in self.slots)

    def find(self, name: Name, coming: bool = False) -> Slot | None:
        """Where it lies, or, with `coming`, where it is on its way to."""
        return next((slot for slot in self.slots if slot.name == name and (slot.there or coming)), None)

    @property
    def next(self) -> Slot | None:
        """The slot that the next block would get."""
        unpinned = [slot for slot in self.slots if not slot.pins]
        idle = [slot for slot in unpinned if slot.there]
        return next((slot for slot in unpinned if slot.name is None), idle[0] if idle else None)

    def claim(self, name: Name) -> Slot | None:
        slot = self.next
        if slot is not None:
            self.evictions += slot.there
            slot.name, slot.there = name, False
        return slot

    def used(self, slot: Slot | None) -> None:
        if slot is not None:
            self.slots.remove(slot)
            self.slots.append(slot)

    def arrived(self, name: Name) -> None:
        slot = self.find(name, coming=True)
        slot.there = True
        self.used(slot)

    def forget(self, name: Name) -> None:
        slot = self.find(name, coming=True)
        if slot is not None:
            slot.name, slot.there = None, False

    def unpin(self, slot: Slot) -> None:
        slot.pins -= 1
        if not slot.pins:
            self.used(slot)


@dataclass(eq=False)
class Move:
    """Between the two slots, one of which is written: `write` to disk, `read` from there."""

    what: str
    name: Name
    host: Slot
    disk: Slot


@dataclass(eq=False)
class BroughtBack:
    """One block of a reload: pinned on `disk`, pinned in `host`, named by the step that runs (`copying`), `loaded`,
    or `lost`."""

    name: Name
    tier: str
    at: str
    slot: Slot


@dataclass(eq=False)
class PlainReload:
    parts: list[BroughtBack]

    @property
    def loaded(self) -> int:
        """Those behind one that is not there are of no use."""
        return [*(part.at == "loaded" for part in self.parts), False].index(False)

    @property
    def lost(self) -> bool:
        return self.loaded < len(self.parts) and self.parts[self.loaded].at == "lost"

    @property
    def copying(self) -> bool:
        return any(part.at == "copying" for part in self.parts)

    @property
    def over(self) -> bool:
        return not self.copying and (self.lost or self.loaded == len(self.parts))


@dataclass
class Measurements:
    """How long positions took: the latest 64 measurements of the last minute, none of which took longer than that."""

    notes: list[tuple[int, int, int]] = field(default_factory=list)

    def note(self, at: int, positions: int, ns: int) -> None:
        if 0 < ns <= 60 * 10**9:
            self.notes = [*self.notes, (at, positions, ns)][-64:]

    def ns_each(self, now: int) -> Fraction | None:
        fresh = [(positions, ns) for at, positions, ns in self.notes if 0 <= now - at <= 60 * 10**9]
        return Fraction(sum(ns for _, ns in fresh), sum(positions for positions, _ in fresh)) if fresh else None

    def typical_ns(self, now: int) -> Fraction | None:
        """Half of them are as fast."""
        fresh = [(positions, ns) for at, positions, ns in self.notes if 0 <= now - at <= 60 * 10**9]
        return sorted(Fraction(ns, positions) for positions, ns in fresh)[(len(fresh) - 1) // 2] if fresh else None


class PlainTiers:
    """`host` slots beside the pool and `disk` slots; with `staging` the host slots are only the way to the disk. One
    step copies `copies` blocks at most in each direction, and one at least, but no more than `room` has time for.
    `moving` is what the disk does; `over` is told by whoever plays the disk: moves that ended, and what was wrong.
    """

    def __init__(self, size: int, host: int = 0, disk: int = 0, copies: int = 64, staging: bool = False) -> None:
        self.size, self.copies, self.staging = size, copies, staging
        self.host, self.disk = Shelf(host), Shelf(disk)
        self.queue: list[Block] = []
        self.offloads: list[tuple[Name, Slot]] = []
        self.reloads: list[PlainReload] = []
        self.unread: list[BroughtBack] = []  # on disk, and no host slot is to be had
        self.awaiting: list[BroughtBack] = []  # on disk, and on the way to a host slot
        self.copyable: list[BroughtBack] = []  # in host slots
        self.copying: list[BroughtBack] = []
        self.moving: list[Move] = []
        self.over: list[tuple[Move, str | None, int]] = []
        self.spoiled: list[Name] = []
        self.failed = 0
        self.came: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.last: dict[str, list[Name]] = {"offload": [], "reload": []}
        self.rates = {kind: Measurements() for kind in ("prefill", "offload", "reload", "read")}
        self.now = self.room = self.every = 0

    @property
    def gives_up(self) -> bool:
        """Three writes in a row failed."""
        return self.failed >= 3

    # -- out -------------------------------------------------------------------------------------------------

    def indexed(self, block: Block) -> None:
        """It can be found, or was of use: it is to be copied, unless it has a copy, which is then of use too."""
        if len(block.name[1]) % self.size or not self.host.slots:
            return
        if any(shelf.find(block.name, coming=True) for shelf in (self.host, self.disk)):
            for shelf in (self.host, self.disk):
                shelf.used(shelf.find(block.name))
        elif block not in self.queue and not (self.staging and self.gives_up):
            self.queue.append(block)

    def gone(self, block: Block) -> None:
        if block in self.queue:
            self.queue.remove(block)

    def spoil(self, block: Block) -> None:
        """No copy of it is to be found again; one that moves is forgotten when it has."""
        self.gone(block)
        moves = [move for move in self.moving if move.name == block.name]
        if not any(move.what == "read" for move in moves):
            self.host.forget(block.name)
        if moves:
            self.spoiled.append(block.name)
        else:
            self.disk.forget(block.name)

    def block_ns(self, kind: str) -> Fraction:
        """How long a block takes that is copied: as measured, or as measured the other way, or a ns for each of the 8
        bytes of a position."""
        other = "reload" if kind == "offload" else "offload"
        return self.size * (self.rates[kind].typical_ns(self.now) or self.rates[other].typical_ns(self.now) or 8)

    def fit(self, ns: Fraction, kind: str) -> int:
        return min(self.copies, max(1, int(max(0, ns) / self.block_ns(kind))))

    def choose_offloads(self) -> None:
        most = self.fit(Fraction(self.room // 2 if self.copyable else self.room), "offload")
        while self.queue and self.host.next and len(self.offloads) < most:
            block = self.queue.pop(0)
            if not self.host.find(block.name, coming=True):
                self.offloads.append((block.name, self.host.claim(block.name)))

    def write(self, slot: Slot) -> None:
        """What came to a host slot goes on to disk, where there is one, and place on it."""
        if not self.disk.find(slot.name, coming=True) and not self.gives_up and (to := self.disk.claim(slot.name)):
            slot.pins += 1
            self.moving.append(Move("write", slot.name, slot, to))

    # -- back ------------------------------------------------------------------------------------------------

    def where(self, name: Name) -> str | None:
        if self.host.find(name):
            return "disk" if self.staging else "host"
        return "disk" if self.disk.find(name) else None

    def worth(self, stored: list[Name]) -> bool:
        """Whether a position comes back faster than it is computed; yes, as long as that is not known."""
        prefill, read = (self.rates[kind].ns_each(self.now) for kind in ("prefill", "read"))
        reload, offload = (self.rates[kind].typical_ns(self.now) for kind in ("reload", "offload"))
        copy = reload or offload
        on_disk = sum(self.where(name) == "disk" for name in stored)
        if prefill is None or copy is None or (on_disk and read is None):
            return True
        if self.every:  # so many come with each step
            copy += Fraction(self.every, self.size * max(1, int(self.room / (self.size * copy))))
        return copy + (Fraction(on_disk, len(stored)) * read if on_disk else 0) <= prefill

    def begin(self, stored: Iterable[Name]) -> PlainReload:
        reload = PlainReload([])
        for name in stored:
            tier = self.where(name)
            at = "host" if self.host.find(name) else "disk"
            slot = (self.host if at == "host" else self.disk).find(name)
            slot.pins += 1
            part = BroughtBack(name, tier, at, slot)
            reload.parts.append(part)
            (self.copyable if at == "host" else self.unread).append(part)
        self.reloads.append(reload)
        self.read_on()
        return reload

    def end(self, reload: PlainReload | None) -> None:
        if reload is not None:
            self.reloads.remove(reload)
            self.let_go(reload)
            self.read_on()

    def let_go(self, reload: PlainReload) -> None:
        """Nobody needs what is not in the pool yet of it."""
        for part in reload.parts:
            if part.at in ("disk", "host"):
                (self.disk if part.at == "disk" else self.host).unpin(part.slot)
                part.at = "lost"
        for places in (self.unread, self.awaiting, self.copyable):
            places[:] = [part for part in places if part.at != "lost"]

    def let_go_if_lost(self, part: BroughtBack) -> None:
        for reload in self.reloads:
            if part in reload.parts and reload.lost:
                self.let_go(reload)

    def read_on(self) -> None:
        while self.unread and self.host.next:
            self.fetch(self.unread.pop(0))

    def fetch(self, part: BroughtBack) -> None:
        """One step on for a block on disk: it is in a host slot by now, or comes to one, or is to be read."""
        there, coming = self.host.find(part.name), self.host.find(part.name, coming=True)
        if there:
            self.disk.unpin(part.slot)
            part.at, part.slot = "host", there
            there.pins += 1
            self.copyable.append(part)
        elif coming:
            self.awaiting.append(part)
        elif not self.disk.find(part.name):
            self.disk.unpin(part.slot)
            part.at = "lost"
            self.let_go_if_lost(part)
        elif self.host.next:
            self.awaiting.append(part)
            part.slot.pins += 1
            self.moving.append(Move("read", part.name, self.host.claim(part.name), part.slot))
        else:
            self.unread.append(part)

    def settled(self, name: Name) -> None:
        """What was on its way to a host slot is there, or will not be."""
        awaited = [part for part in self.awaiting if part.name == name]
        self.awaiting = [part for part in self.awaiting if part.name != name]
        for part in awaited:
            if part.at == "disk":
                self.fetch(part)

    # -- the step --------------------------------------------------------------------------------------------

    def name(self, planned: bool) -> bool:
        """A step is due for copies alone, too."""
        due = bool(self.offloads or (self.queue and self.host.next) or self.copyable)
        if planned or due:
            left = self.room - len(self.offloads) * self.block_ns("offload")
            most = self.fit(left, "reload")
            self.copying, self.copyable = self.copyable[:most], self.copyable[most:]
            for part in self.copying:
                part.at = "copying"
            self.last = {
                "offload": [name for name, _ in self.offloads],
                "reload": [part.name for part in self.copying],
            }
        return due

    def copied(self, well: bool) -> None:
        offloads, self.offloads = self.offloads, []
        for name, slot in offloads:
            if well:
                self.host.arrived(name)
                self.came["host"] += not self.staging
                self.write(slot)
            else:
                self.host.forget(name)
            self.settled(name)
        landed, self.copying = self.copying, []
        for part in landed:
            self.host.unpin(part.slot)
            part.at = "loaded" if well else "lost"
        for part in landed:
            self.let_go_if_lost(part)
        self.read_on()

    def collect(self, now: int) -> tuple[dict[str, int], dict[str, int]]:
        over, self.over = self.over, []
        for move, fault, ns in over:
            self.moving.remove(move)
            good = fault is None and move.name not in self.spoiled
            if fault is not None:
                self.wrong[fault] += 1
            if move.what == "write":
                self.host.unpin(move.host)
                self.disk.arrived(move.name)
                self.came["disk"] += fault is None
                self.failed = 0 if fault is None else self.failed + 1
            else:
                self.disk.unpin(move.disk)
                if good:
                    self.host.arrived(move.name)
                    self.rates["read"].note(now, self.size, ns)
                else:
                    self.host.forget(move.name)
            if not good:
                self.disk.forget(move.name)
                self.spoiled = [name for name in self.spoiled if name != move.name]
            if move.what == "read":
                self.settled(move.name)
        self.read_on()
        came, self.came = dict(+self.came), Counter()
        wrong, self.wrong = dict(self.wrong), Counter()
        return came, wrong
