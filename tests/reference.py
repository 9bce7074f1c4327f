"""The whole waiting policy again, as plainly as it can be said: plain counts, no blocks with names, no prefix cache,
one sequence per request. The engine must agree with it on every verdict and every position of every step.

`predict` is told the lengths of the answers that ended before, of which there must be 32; the likely length of an
answer is the lower median of the longer ones among them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Plain:
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


class Reference:
    def __init__(
        self, blocks: int, size: int, seats: int, budget: int, bypass: int, policy: str = "fcfs",
        admit: str = "optimistic", answers: list[int] | None = None,
    ) -> None:  # fmt: skip
        self.free, self.size, self.seats, self.budget, self.bypass = blocks, size, seats, budget, bypass
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
        self.admit, self.answers = admit, list(answers or [])

    def most(self, r: Plain, known: int, held: int) -> int:
        """Blocks that it may still take: the last token that it emits needs none."""
        return self.blocks(r.prompt + r.emits - 1) - held if r.prompt + r.emits - 1 > known else 0

    def kept(self, new: Plain) -> int:
        """Blocks that are to be left when `new` is admitted."""
        need = self.blocks(new.known + 1)
        everyone = [(r, r.known, r.held) for r in self.running] + [(new, new.known, need)]
        most = sum(max(0, self.most(*each)) for each in everyone)
        if self.admit == "optimistic":
            return 0
        if self.admit == "reserve":
            return most
        if self.admit == "headroom" or len(self.answers) < 32:
            return len(self.running)
        left = []
        for r, known, held in everyone:
            longer = sorted(a for a in self.answers if a > known - r.prompt)
            likely = min(r.emits, longer[(len(longer) - 1) // 2]) if longer else r.emits
            left.append((likely - (known - r.prompt), known, held))
        fullest = 0.0
        for end, _, _ in left:  # just before this one ends
            grown = [(end - (held * self.size - known + 1)) / self.size + 1 for e, known, held in left if e >= end]
            fullest = max(fullest, sum(grown) - sum(held for e, _, held in left if e < end))
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
        alive = {r.caller for r in self.waiting + self.running}
        self.served = self.served if alive else {}
        if request.caller not in alive:  # who was idle starts level with the one that had least
            least = min((self.served[caller] for caller in alive), default=0)
            self.served[request.caller] = max(self.served.get(request.caller, 0), least)
        request.known = request.prompt
        self.waiting.append(request)

    def cancel(self, id: str) -> None:
        for r in [r for r in self.running if r.id == id]:
            self.free += r.held
        self.waiting = [r for r in self.waiting if r.id != id]
        self.running = [r for r in self.running if r.id != id]

    def step(self) -> tuple[dict[str, tuple], dict[str, int]]:
        """(who waits and why: (on, rule, need, have), who moves by how many positions)"""
        waits: dict[str, tuple] = {}
        moves: dict[str, int] = {}
        left = self.budget
        for r in sorted(self.running, key=self.order):
            while r in self.running and r.known - r.computed == 1 and self.blocks(r.known) - r.held > self.free:
                victim = max(self.running, key=self.order)
                self.free += victim.held
                victim.held = victim.computed = 0
                self.running.remove(victim)
                self.waiting.append(victim)
            if r in self.running and r.known - r.computed == 1:
                grown = max(0, self.blocks(r.known) - r.held)
                self.free -= grown
                r.held += grown
                moves[r.id] = 1
                left -= 1
        for r in sorted(self.running, key=self.order):
            if r.id not in moves:
                if left == 0:
                    waits[r.id] = ("turn", "budget", 1, 0)
                else:
                    moves[r.id] = min(left, r.known - r.computed)
                    left -= moves[r.id]
        head, behind = None, 0
        judged: list[str] = []
        while (r := self.next(judged)) is not None:
            judged.append(r.id)
            if head and (behind == self.bypass or head.overtaken == self.bypass):
                break
            behind += head is not None
            need = self.blocks(r.known + 1)
            if len(self.running) == self.seats:
                waits[r.id] = ("turn", "seats", 1, 0)
            elif need > self.free:
                waits[r.id] = ("space", "blocks", need, self.free)
            elif need + self.kept(r) > self.free:
                waits[r.id] = ("space", "reservation", need + self.kept(r), self.free)
            elif left == 0:
                waits[r.id] = ("turn", "budget", 1, 0)
            else:
                self.free -= need
                r.held = need
                r.overtaken = 0
                self.served[r.caller] += 0 if r.admitted else r.known
                r.admitted = True
                self.first = None if self.first is r else self.first
                self.waiting.remove(r)
                self.running.append(r)
                moves[r.id] = min(left, r.known)
                left -= moves[r.id]
                if head:
                    head.overtaken += 1
                continue
            head = self.first = head or r
            if left == 0 and waits[r.id][1] == "budget":
                break
        return waits, moves

    def commit(self, moves: dict[str, int]) -> None:
        for r in [r for r in self.running if r.id in moves]:
            r.computed += moves[r.id]
            self.served[r.caller] += 2 * (r.computed == r.known)
            r.known += r.computed == r.known
            if r.known - r.prompt == r.emits:
                self.answers.append(r.emits)
                self.free += r.held
                self.running.remove(r)
