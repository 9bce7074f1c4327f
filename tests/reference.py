"""The whole waiting policy again, as plainly as it can be said, one sequence per request. The engine must agree with
it on every verdict and every position of every step.

Where state lies is asked of a memory. `Counts` is one without names and without a prefix cache: plain counts. One
with a prefix cache and tiers is in `tier_reference.py`.

`predict` is told the lengths of the answers that ended before, of which there must be 32; the likely length of an
answer is the lower median of the longer ones among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Plain:
    """`counts` are its positions by what became of them, `high` the most that ever had state. A memory with names
    knows what it says (`tokens`: the prompt and all of the answer that it will get, `salt`), keeps its blocks in
    `table`, and what is brought back for it in `reload`."""

    id: str
    prompt: int
    emits: int
    priority: int
    arrival: int
    known: int = 0
    computed: int = 0
    held: int = 0
    overtaken: int = 0
    due: int | None = None
    caller: str = ""
    admitted: bool = False
    over: bool = False
    preemptions: int = 0
    high: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    tokens: tuple[int, ...] = ()
    salt: str = ""
    table: list[Any] = field(default_factory=list)
    published: int = 0
    found: int = 0
    reload: Any = None

    def inherit(self, positions: int) -> None:
        """Their state was found, wherever it lay."""
        self.counts["regained" if self.preemptions else "reused"] += positions
        self.computed = positions
        self.high = max(self.high, positions)

    def evaluate(self, positions: int) -> None:
        for place in range(self.computed, self.computed + positions):
            kind = "recomputed" if place < self.high else "prefilled" if place < self.prompt else "decoded"
            self.counts[kind] += 1
        self.computed += positions
        self.high = max(self.high, self.computed)


@dataclass
class Offer:
    """What a request lacks of `have` blocks that it could get, and how many positions are not found. `stored` lie in
    tiers and are to be brought back first; `declined`: some do, and computing them is faster."""

    need: int
    have: int
    cost: int
    stored: tuple = ()
    declined: bool = False
    matched: tuple = ()
    begun: Any = None


class Counts:
    """Blocks of `size` positions as plain counts, and what a memory is asked."""

    def __init__(self, blocks: int, size: int) -> None:
        self.free, self.size = blocks, size

    @property
    def available(self) -> int:
        """Blocks that may be taken."""
        return self.free

    def offer(self, r: Plain) -> Offer:
        """For one who is to be admitted, or resumed. Changes nothing."""
        return Offer(self.blocks(r.known + 1), self.free, r.known)

    def take(self, r: Plain, offer: Offer) -> None:
        self.grow(r, offer.need)

    def grow(self, r: Plain, blocks: int) -> None:
        self.free -= blocks
        r.held += blocks

    def give_back(self, r: Plain, *, keep: bool = True) -> None:
        """Without `keep` nothing of what only it held is to be found again."""
        self.free += r.held
        r.held = 0

    def publish(self, r: Plain) -> None:
        """More of its positions have state."""

    def blocks(self, positions: int) -> int:
        return -(-positions // self.size)

    # What only a memory with tiers has to do.

    def open(self, now: int, room: int, every: int) -> None:
        """A step is about to be planned, whose copies may take `room`. Where others wait for it, there is one `every`
        so many ns."""

    def name(self, planned: bool) -> bool:
        """Whether the step has something to copy; if there is one, it is settled now what."""
        return False

    def copied(self, well: bool) -> None:
        """The step is over, and what it copied is there, or worth nothing."""

    def measure(self, now: int, spans: Iterable[int], ns: int, copied: dict[str, int]) -> None:
        """A step with these spans took `ns`, and of these the copies of each kind so many."""

    def collect(self, now: int) -> tuple[dict[str, int], dict[str, int]]:
        """What came to each tier since it was asked last, and what went wrong."""
        return {}, {}

    def awaited(self, r: Plain) -> tuple[int, int] | None:
        """Of how many blocks that are brought back how many are there; None once that is over."""
        return None

    def brought(self, r: Plain) -> dict[str, int]:
        """Blocks that were brought back, by the tier they came from."""
        return {}

    def found(self, r: Plain) -> tuple[int, str]:
        """Positions that one finds who is admitted now, and why no more were brought back: `lost` or nothing."""
        return 0, ""


class Reference:
    """`told` is what happened, in order. `now` is set by whoever drives it, where time is of account."""

    def __init__(
        self, blocks: int, size: int, seats: int, budget: int, bypass: int, policy: str = "fcfs",
        admit: str = "optimistic", answers: list[int] | None = None, memory: Counts | None = None,
    ) -> None:  # fmt: skip
        self.memory = Counts(blocks, size) if memory is None else memory
        self.size, self.seats, self.budget, self.bypass = size, seats, budget, bypass
        self.order = {
            "fcfs": lambda r: r.arrival,
            "priority": lambda r: (r.priority, r.arrival),
            "deadline": lambda r: (r.due is None, r.due or 0, r.arrival),
            "fair": lambda r: r.arrival,
        }[policy]
        self.fair = policy == "fair"
        self.served: dict[str, int] = {}
        self.first: Plain | None = None
        self.waiting: list[Plain] = []
        self.running: list[Plain] = []
        self.reloading: list[Plain] = []  # holding blocks and no seat: more of them are brought back
        self.returned: list[Plain] = []  # these are there
        self.flight: list[Plain] = []  # named by the step that runs
        self.admit, self.answers = admit, list(answers or [])
        self.now = 0
        self.goes = False
        self.latest: list[int] = []  # how long steps took that evaluated something
        self.told: list[tuple] = []

    @property
    def holding(self) -> list[Plain]:
        return self.reloading + self.returned

    @property
    def alive(self) -> list[Plain]:
        return self.waiting + self.running + self.holding

    def most(self, r: Plain, known: int, held: int) -> int:
        """Blocks that it may still take: the last token that it emits needs none."""
        return self.blocks(r.prompt + r.emits - 1) - held if r.prompt + r.emits - 1 > known else 0

    def kept(self, new: Plain, offer: Offer) -> int:
        """Blocks that are to be left when `new` is admitted."""
        need, others = self.blocks(new.known + 1), self.running + self.holding
        everyone = [(r, r.known, r.held, r.held - r.found) for r in others]
        everyone.append((new, new.known, need, need - len(offer.matched)))
        most = sum(max(0, self.most(*each[:3])) for each in everyone)
        if self.admit == "optimistic":
            return 0
        if self.admit == "reserve":
            return most
        if self.admit == "headroom" or len(self.answers) < 32:
            return len(others)
        left = []
        for r, known, held, frees in everyone:
            longer = sorted(a for a in self.answers if a > known - r.prompt)
            likely = min(r.emits, longer[(len(longer) - 1) // 2]) if longer else r.emits
            left.append((likely - (known - r.prompt), known, held, frees))
        fullest = 0.0
        for end, _, _, _ in left:  # just before this one ends
            grown = [(end - (held * self.size - known + 1)) / self.size + 1 for e, known, held, _ in left if e >= end]
            fullest = max(fullest, sum(grown) - sum(frees for e, _, _, frees in left if e < end))
        return min(most, int(fullest))

    def blocks(self, positions: int) -> int:
        return -(-positions // self.size)

    def next(self, judged: list[str]) -> Plain | None:
        """Who is looked at next. Under `fair` the caller that had least, but a blocked head stays the first."""
        left = [r for r in self.waiting if r.id not in judged]
        if self.fair and any(r is self.first for r in left):
            return self.first
        place = (lambda r: (self.served[r.caller], r.caller, r.arrival)) if self.fair else self.order
        return min(left, key=place, default=None)

    def add(self, request: Plain) -> None:
        alive = {r.caller for r in self.alive}
        self.served = self.served if alive else {}
        if request.caller not in alive:  # who was idle starts level with the one that had least
            least = min((self.served[caller] for caller in alive), default=0)
            self.served[request.caller] = max(self.served.get(request.caller, 0), least)
        request.known = request.prompt
        self.waiting.append(request)

    def cancel(self, id: str) -> None:
        """It goes at once, and its blocks too, unless the step that runs names them."""
        for r in [r for r in self.alive if r.id == id]:
            self.end(r)
            if r not in self.flight:
                self.memory.give_back(r)

    def end(self, r: Plain) -> None:
        for place in (self.waiting, self.running, self.reloading, self.returned):
            if r in place:
                place.remove(r)
        r.over = True

    def step(self) -> tuple[dict[str, tuple], dict[str, int]]:
        """(who waits and why: (on, rule, need, have), who moves by how many positions)"""
        self.collect()
        waits: dict[str, tuple] = {}
        moves: dict[str, int] = {}
        left = self.budget
        busy = self.running or self.returned
        shortest = min(self.latest, default=0)
        self.memory.open(self.now, *(min(10_000_000, shortest // 20), shortest) if busy else (10_000_000, 0))
        for r in sorted(self.running, key=self.order):
            while r in self.running and r.known - r.computed == 1 and self.lacks(r) > self.memory.available:
                self.lose(max(self.running + self.holding, key=self.order), by=r)
            if r in self.running and r.known - r.computed == 1:
                self.memory.grow(r, self.lacks(r))
                moves[r.id] = 1
                left -= 1
        for r in sorted(self.running, key=self.order):
            if r.id not in moves:
                if left == 0:
                    waits[r.id] = ("turn", "budget", 1, 0)
                else:
                    moves[r.id] = min(left, r.known - r.computed)
                    left -= moves[r.id]
        for r in sorted(self.returned, key=self.order):
            if len(self.running) == self.seats:
                waits[r.id] = ("turn", "seats", 1, 0)
            elif left == 0:
                waits[r.id] = ("turn", "budget", 1, 0)
            else:
                self.returned.remove(r)
                left -= self.start(r, moves, left)
        for r in self.reloading:
            awaited = self.memory.awaited(r)
            if awaited is not None:
                waits[r.id] = ("input", "reload", *awaited)
        head, behind = None, 0
        judged: list[str] = []
        while (r := self.next(judged)) is not None:
            judged.append(r.id)
            if head and (behind == self.bypass or head.overtaken == self.bypass):
                break
            behind += head is not None
            offer = self.memory.offer(r)
            seats = self.seats - len(self.running)
            if offer.stored and seats:  # no more bring blocks back than there are seats for
                seats = min(seats, self.seats - len(self.holding))
            if seats == 0:
                waits[r.id] = ("turn", "seats", 1, 0)
            elif offer.need > offer.have:
                waits[r.id] = ("space", "blocks", offer.need, offer.have)
            elif offer.need + self.kept(r, offer) > offer.have:
                waits[r.id] = ("space", "reservation", offer.need + self.kept(r, offer), offer.have)
            elif left == 0:
                waits[r.id] = ("turn", "budget", 1, 0)
            else:
                self.memory.take(r, offer)
                r.overtaken = 0
                self.first = None if self.first is r else self.first
                self.waiting.remove(r)
                if offer.stored:
                    self.reloading.append(r)
                    waits[r.id] = ("input", "reload", len(offer.stored), 0)
                    self.told.append(("reloads", r.id, len(offer.stored)))
                else:
                    left -= self.start(r, moves, left, "slower" if offer.declined else "")
                if head:
                    head.overtaken += 1
                continue
            head = self.first = head or r
            if left == 0 and waits[r.id][1] == "budget":
                break
        copies = self.memory.name(planned=bool(moves))
        self.goes = bool(moves) or copies
        by_id = {r.id: r for r in self.running}
        self.flight = [by_id[id] for id in moves] + [r for r in self.reloading if r.reload and r.reload.copying]
        return waits, moves

    def start(self, r: Plain, moves: dict[str, int], left: int, why: str = "") -> int:
        """It has its blocks and gets its seat. Returns what it spends."""
        found, lost = self.memory.found(r)
        r.inherit(found)
        self.served[r.caller] += 0 if r.admitted else r.known - found
        r.admitted = True
        self.running.append(r)
        moves[r.id] = min(left, r.known - found)
        self.told.append(("admitted", r.id, found, why or lost))
        return moves[r.id]

    def lacks(self, r: Plain) -> int:
        return max(0, self.blocks(r.known) - r.held)

    def lose(self, victim: Plain, by: Plain) -> None:
        """It loses its blocks, and its seat if it has one, and queues again."""
        self.memory.give_back(victim)
        self.waiting.append(victim)
        if victim in self.running:
            self.running.remove(victim)
            victim.counts["lost"] += victim.computed
            victim.computed = 0
            victim.preemptions += 1
            self.told.append(("preempted", victim.id, by.id))
        else:
            (self.reloading if victim in self.reloading else self.returned).remove(victim)
            self.told.append(("dropped", victim.id, by.id))

    def commit(
        self, moves: dict[str, int], spoiled: Iterable[str] = (), ns: int = 0, copied: dict[str, int] | None = None
    ) -> None:
        """What the step computed is there; it took `ns`, and of these the copies of each kind so many. Of those that
        are `spoiled` it is worth nothing."""
        flight, self.flight = self.flight, []
        self.latest = [*self.latest, ns][-31:] if moves else self.latest
        self.memory.copied(well=True)
        self.memory.measure(self.now, moves.values(), ns, copied or {})
        failed = [r for r in flight if r.id in spoiled]
        ended = [r for r in failed if not r.over]
        for r in ended:
            self.end(r)
        for r in (r for r in flight if r.id in moves):
            r.evaluate(moves[r.id])
            if not r.over and r.computed == r.known:
                r.known += 1
                self.served[r.caller] += 2
            self.memory.publish(r)
        for r in failed:
            self.memory.give_back(r, keep=False)
        finished = []
        for r in flight:
            if not r.over and r.known - r.prompt == r.emits:
                self.answers.append(r.emits)
                self.end(r)
                finished.append(r)
            if r.over:
                self.memory.give_back(r)
        self.told += [("failed", r.id) for r in ended] + [("finished", r.id) for r in finished]
        self.collect()

    def abort(self) -> None:
        """The step failed, and with it whoever is in it."""
        flight, self.flight = self.flight, []
        self.memory.copied(well=False)
        ended = [r for r in flight if not r.over]
        for r in ended:
            self.end(r)
        for r in flight:
            self.memory.give_back(r, keep=False)
        self.told += [("failed", r.id) for r in ended]

    def collect(self) -> None:
        """Blocks came to tiers and from there, beside the steps."""
        offloaded, faults = self.memory.collect(self.now)
        if offloaded or faults:
            self.told.append(("offloaded", offloaded, faults))
        for r in [r for r in self.reloading if self.memory.awaited(r) is None]:
            self.reloading.remove(r)
            self.returned.append(r)
            self.told.append(("reloaded", r.id, self.memory.brought(r)))
