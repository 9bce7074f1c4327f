"""Several models of several patterns on one device, as plainly as it can be said: plain counts, from the design.

The engine must agree with it on whose step it is, on every verdict, and on what every request spends.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Asked:
    """`parts` is what each item costs: a text's prompt, an encoder's inputs, 1 for each item of an image. `place` is
    the arrival, for an encoder's later by up to `bypass`, in proportion to its share of a step."""

    id: str
    arrival: int
    parts: list[int]
    emits: int = 0
    known: int = 0
    computed: int = 0
    held: int = 0
    overtaken: int = 0
    last: tuple | None = None
    place: int = 0


@dataclass
class Model:
    """`space` is what is left of it: blocks of `size` positions, or bytes of which an image takes `size`."""

    kind: str
    space: int
    size: int
    seats: int
    budget: int
    bypass: int
    weight: float = 1.0
    device: float = 0.0
    waiting: list[Asked] = field(default_factory=list)
    running: list[Asked] = field(default_factory=list)
    moves: dict[str, int] = field(default_factory=dict)
    waits: dict[str, tuple] = field(default_factory=dict)
    left: int = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> None:
        before = self.moves if self.kind == "embed" and self.waiting else {}
        self.moves, self.waits, self.left = {}, {}, self.budget
        order = sorted(self.running, key=lambda r: (r.place, r.arrival))
        for r in order:
            if r in self.running and (self.kind != "text" or r.known - r.computed == 1) and r.id not in before:
                self.whole(r)
        for r in order:
            if r in self.running and self.kind == "text" and r.known - r.computed > 1:
                self.spend(r, min(self.left, r.known - r.computed)) if self.left else self.wait(r, "budget", 1)
        self.admit()
        for r in order:
            if r.id in before:
                self.whole(r)

    def whole(self, r: Asked) -> None:
        """What cannot be divided: the newest position, inputs, one item of an image."""
        if self.kind == "text":
            while r in self.running and self.up(r.known) - r.held > self.space:
                self.preempt(max(self.running, key=lambda v: v.arrival))
            if r in self.running:
                self.take(r, max(0, self.up(r.known) - r.held))
                self.spend(r, 1)
            return
        for cost in list(r.parts[: 1 if self.kind == "image" else None]):
            if not self.goes(cost):
                break
            self.spend(r, cost)
        if r.id not in self.moves:
            self.wait(r, "budget", r.parts[0])

    def admit(self) -> None:
        head, behind = None, 0
        for r in sorted(self.waiting, key=lambda r: (r.place, r.arrival)):
            if head and (behind == self.bypass or head.overtaken == self.bypass):
                break
            behind += head is not None
            need = {"text": self.up(r.known + 1), "image": self.size, "embed": 0}[self.kind]
            if len(self.running) == self.seats:
                self.wait(r, "seats", 1)
            elif need > self.space:
                self.wait(r, "blocks" if self.kind == "text" else "latent", need)
            elif self.kind == "text" and not self.left:
                self.wait(r, "budget", 1)
            elif self.kind != "text" and not self.goes(r.parts[0]):
                self.wait(r, "budget", r.parts[0])
            else:
                self.take(r, need)
                r.overtaken = 0
                self.waiting.remove(r)
                self.running.append(r)
                if self.kind == "text":
                    self.spend(r, min(self.left, r.known))
                elif self.kind == "image":
                    self.spend(r, 1)
                else:
                    first = True
                    for cost in list(r.parts):
                        if not (first or cost <= self.left):
                            break
                        self.spend(r, cost)
                        first = False
                if head:
                    head.overtaken += 1
                continue
            head = head or r
            if self.waits[r.id][1] == "budget":
                break

    def goes(self, cost: int) -> bool:
        return cost <= self.left or not self.moves

    def spend(self, r: Asked, cost: int) -> None:
        self.moves[r.id] = self.moves.get(r.id, 0) + cost
        self.left = max(0, self.left - cost)
        r.last = None

    def wait(self, r: Asked, rule: str, need: int) -> None:
        have = {"seats": self.seats - len(self.running), "budget": self.left}.get(rule, self.space)
        on = "turn" if rule in ("seats", "budget") else "space"
        self.waits[r.id] = r.last = (on, rule, need, have)

    def take(self, r: Asked, need: int) -> None:
        self.space -= need
        r.held += need

    def preempt(self, victim: Asked) -> None:
        self.space += victim.held
        victim.held = victim.computed = 0
        self.running.remove(victim)
        self.waiting.append(victim)

    def up(self, positions: int) -> int:
        return -(-positions // self.size)

    def commit(self) -> None:
        for r in list(self.running):
            spent = self.moves.get(r.id, 0)
            if self.kind == "text":
                r.computed += spent
                r.known += bool(spent) and r.computed == r.known
                over = r.known - r.parts[0] == r.emits
            else:
                while spent:
                    spent -= r.parts.pop(0)
                over = not r.parts
            if over:
                self.space += r.held
                self.running.remove(r)

    def pass_turn(self) -> None:
        """Another model's step runs."""
        queue = sorted(self.waiting, key=lambda r: (r.place, r.arrival))[: self.bypass + 1]
        stuck = [r for r in queue if r.last and r.last[1] in ("seats", "blocks", "latent")]
        self.waits = {r.id: ("turn", "model", 1, 0) for r in [*self.running, *queue] if r not in stuck}
        for r in [*self.running, *queue]:
            r.last = r.last if r in stuck else ("turn", "model", 1, 0)


class Device:
    """Models that take turns."""

    def __init__(self, models: dict[str, Model]) -> None:
        self.models = models

    def add(self, name: str, asked: Asked) -> None:
        model = self.models[name]
        if not model.busy:
            others = [m.device / m.weight for m in self.models.values() if m.busy]
            model.device = max(model.device, min(others, default=0.0) * model.weight)
        asked.known = asked.parts[0]
        share = min(1, sum(asked.parts) / model.budget) if model.kind == "embed" else 0
        asked.place = asked.arrival + int(share * model.bypass)
        model.waiting.append(asked)

    def step(self) -> tuple[str, dict[str, tuple], dict[str, int]] | None:
        """(whose step, who waits and why, who moves by how much); None when nobody is alive."""
        busy = {name: model for name, model in self.models.items() if model.busy}
        if not busy:
            return None
        name = min(busy, key=lambda name: busy[name].device / busy[name].weight)
        busy[name].step()
        waits = dict(busy[name].waits)
        for other, model in busy.items():
            if other != name:
                model.pass_turn()
                waits |= model.waits
        return name, waits, dict(busy[name].moves)
