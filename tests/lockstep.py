"""The engine and the plain reference side by side: both are told the same, and must say the same after each move.

What the disk does, and when, is part of what they are told, so the reference is exact with tiers too.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.compute.fake import _EMPTY, _extend, expected_tokens
from headway.core import events as ev
from headway.core.plan import Draw, Sampling, StepPlan
from headway.core.request import Stage
from headway.core.tiers import Fault
from headway.memory.keys import KeyChain, Origin
from reference import Plain, Reference
from tier_reference import Name, Names, PlainTiers
from world import World

VOCAB = 5
#: Of positions, as `Counts` has them.
KINDS = ("reused", "regained", "prefilled", "decoded", "recomputed", "lost")


@dataclass(frozen=True)
class Setting:
    tiers: str
    admit: str
    policy: str
    cache: bool = True

    def __str__(self) -> str:
        return f"{self.tiers}, {self.admit}, {self.policy}{'' if self.cache else ', no cache'}"


#: Every two values of two of these occur together in one of `SETTINGS`.
VALUES = {
    "tiers": ("none", "host", "disk", "host+disk"),
    "admit": ("optimistic", "headroom", "reserve", "predict"),
    "policy": ("fcfs", "priority", "deadline", "fair"),
    "cache": (True, False),
}
SETTINGS = [
    Setting("none", "optimistic", "fcfs"),
    Setting("none", "headroom", "priority"),
    Setting("none", "reserve", "deadline", cache=False),
    Setting("none", "predict", "fair"),
    Setting("host", "optimistic", "priority"),
    Setting("host", "headroom", "fcfs"),
    Setting("host", "reserve", "fair"),
    Setting("host", "predict", "deadline", cache=False),
    Setting("disk", "optimistic", "deadline"),
    Setting("disk", "headroom", "fair", cache=False),
    Setting("disk", "reserve", "fcfs"),
    Setting("disk", "predict", "priority"),
    Setting("host+disk", "optimistic", "fair"),
    Setting("host+disk", "headroom", "deadline"),
    Setting("host+disk", "reserve", "priority"),
    Setting("host+disk", "predict", "fcfs"),
    Setting("host+disk", "optimistic", "priority", cache=False),
    Setting("host", "reserve", "fcfs", cache=False),
]


@dataclass(frozen=True)
class Machine:
    """`host` and `disk` are slots of tiers, as far as a setting has them; with a disk alone the host slots are the
    way to it. With `copy_ns` it is measured how long a block takes that is copied. `answers` ended before."""

    blocks: int = 4
    size: int = 2
    seats: int = 2
    budget: int = 6
    bypass: int = 1
    host: int = 4
    disk: int = 4
    copies: int = 64
    copy_ns: int = 0
    answers: tuple[int, ...] = ()


class Lockstep:
    """An engine under a setting on a machine, and its reference. `moves` is what the step spends that is planned."""

    def __init__(self, setting: Setting, machine: Machine) -> None:
        has_host, has_disk = "host" in setting.tiers, "disk" in setting.tiers
        host = machine.host if has_host or has_disk else 0
        disk = machine.disk if has_disk else 0
        staging = has_disk and not has_host
        self.machine = machine
        self.world = World(
            blocks=machine.blocks, block_tokens=machine.size, seats=machine.seats, step_tokens=machine.budget,
            max_bypass=machine.bypass, prefix_cache=setting.cache, policy=setting.policy, admit=setting.admit,
            vocab=VOCAB, host_slots=host, disk_slots=disk, most_copies=machine.copies, staging=staging,
            disk_delay=None, copy_ns=machine.copy_ns,
        )  # fmt: skip
        tiers = PlainTiers(machine.size, host, disk, machine.copies, staging)
        self.memory = Names(machine.blocks, machine.size, setting.cache, tiers)
        self.plain = Reference(
            machine.blocks, machine.size, machine.seats, machine.budget, machine.bypass, setting.policy,
            setting.admit, list(machine.answers), self.memory,
        )  # fmt: skip
        for tokens in machine.answers:
            self.world.model.answers.add(tokens)
        self.plan_: StepPlan | None = None
        self.moves: dict[str, int] = {}
        self.asked: dict[str, Plain] = {}
        self.names: dict[bytes, Name] = {}
        self.says: dict[int, tuple[int, ...]] = {}
        self._told = self._planned_at = 0

    # -- what both are told ----------------------------------------------------------------------------------

    def add(
        self, id: str, prompt: list[int], emits: int, *, priority: int = 0, due: float | None = None,
        caller: str = "", salt: str = "",
    ) -> bool:  # fmt: skip
        """Whether it is not refused."""
        request = self.world.add(id, prompt, max_tokens=emits, priority=priority, deadline_ms=due, caller=caller,
                                 cache_salt=salt)  # fmt: skip
        fits = -(-(len(prompt) + emits) // self.machine.size) <= self.machine.blocks
        assert (request.stage is not Stage.REFUSED) == fits
        if fits:
            tokens = (*prompt, *expected_tokens(prompt, Draw(0, 0, Sampling()), emits, VOCAB))
            plain = self.asked[id] = Plain(
                id, len(prompt), emits, priority, len(self.world.asked), due=request.deadline_at, caller=caller,
                tokens=tokens, salt=salt,
            )  # fmt: skip
            self.plain.add(plain)
            self._name(plain)
        self.agree()
        return fits

    def plan(self) -> bool:
        """Whether there is a step."""
        self.plain.now = self._planned_at = self.world.clock.now_ns()
        seen = len(self.world.steps())
        looks = not self.world.model.idle
        self.plan_ = self.world.engine.plan()
        self.world.note([])
        waits, self.moves = self.plain.step()
        assert (self.plan_ is not None) == self.plain.goes
        verdicts = {id: self.world.engine.requests[id].verdict for id in waits}
        for step in self.world.steps()[seen:]:
            verdicts |= step.waits
            assert {m.id: m.positions for m in step.members} == self.moves
            looks = True
        if looks:  # else the verdicts are those of the last look: only the disk could move anyone
            assert {id: (w.on, w.rule, w.need, w.have) for id, w in verdicts.items()} == waits
            assert all(w.short == w.need - w.have > 0 for w in verdicts.values())
        if self.plan_ is not None:
            slots, host, size = self.world.executor._slots, self.world.executor.host, self.machine.size
            read = [self.says[slots[(block + 1) * size - 1]] for block, _ in self.plan_.offloads]
            back = [self.says[host[slot][-1]] for slot, _ in self.plan_.reloads]
            assert {"offload": read, "reload": back} == {
                kind: [tokens for _, tokens in names] for kind, names in self.memory.tiers.last.items()
            }
        self.agree()
        return self.plan_ is not None

    def commit(self, spoils: int | None = None) -> None:
        """The planned step ran; the item at the place `spoils` of it is not finite."""
        plan, self.plan_ = self.plan_, None
        assert plan is not None
        world = self.world
        spoiled = [] if spoils is None else [list(self.moves)[spoils]]
        world.executor.spoils = lambda span: spoils is not None and span is plan.items[spoils]
        result = world.executor.run(plan)
        took = {spent.kind: spent.ns for spent in result.spent}
        self.plain.now = world.clock.now_ns()
        world.note(world.engine.commit(result))
        self.plain.commit(self.moves, spoiled, self.plain.now - self._planned_at, took)
        self.agree()

    def abort(self) -> None:
        """The planned step failed."""
        self.plan_ = None
        self.world.engine.abort("the machine broke")
        self.world.note([])
        self.plain.abort()
        self.agree()

    def cancel(self, id: str) -> None:
        self.world.engine.cancel(id)
        self.world.note([])
        self.plain.cancel(id)
        self.agree()

    def disk_ends(self, place: int, fault: Fault | None = None, ns: int = 1000) -> None:
        """One move of the disk is over; the books learn of it when they ask next."""
        self.world.disk.end(place, fault, ns)
        tiers = self.memory.tiers
        begun = [move for move in tiers.moving if all(move is not over for over, _, _ in tiers.over)]
        tiers.over.append((begun[place], fault, ns))

    def may_end(self) -> list[int]:
        """Which moves could end next: writes in their order, reads before them too."""
        kinds = [moved.what for moved in self.world.disk.pending] if self.world.disk else []
        return [place for place, kind in enumerate(kinds) if kind not in kinds[:place]]

    def step(self) -> bool:
        if self.plan():
            self.commit()
            return True
        return False

    def run(self) -> None:
        """Until nothing is alive, or moves, with a disk that does what it is told."""
        for _ in range(2000):
            if self.plan_ is not None:
                self.commit()
            while self.may_end():
                self.disk_ends(0)
            if not self.step() and not self.plain.alive:
                return self.ended()
        raise AssertionError(f"still alive: {list(self.world.engine.requests)}")

    # -- and what they say -----------------------------------------------------------------------------------

    def agree(self) -> None:
        self._agree_on_requests()
        self._agree_on_blocks()
        self._agree_on_happenings()

    def _agree_on_requests(self) -> None:
        alive = {id: request for id, request in self.world.engine.requests.items() if not request.ended}
        assert alive.keys() == {r.id for r in self.plain.alive}
        for r in self.plain.alive:
            request = alive[r.id]
            (sequence,) = request.progress.sequences
            assert (request.stage is Stage.RUNNING) == (r in self.plain.running)
            assert (request.preemptions, request.overtaken) == (r.preemptions, r.overtaken)
            assert (sequence.known, sequence.computed) == (r.known, r.computed)
            assert (len(sequence.state.blocks) if sequence.state else 0) == r.held
            assert tuple(sequence.tokens) == r.tokens[: r.known]
            assert [getattr(sequence.counts, kind) for kind in KINDS] == [r.counts[kind] for kind in KINDS]

        counters = self.world.model.queues._counters
        assert counters is None or all(counters[r.caller] == self.plain.served[r.caller] for r in self.plain.alive)

    def _agree_on_blocks(self) -> None:
        """The same lies in the pool and in each tier, and it is what its name says."""
        world, memory, size = self.world, self.memory, self.machine.size
        levels = world.engine.levels()
        assert (levels.free, levels.reusable) == (memory.free, len(memory.idle))
        assert (levels.seats_used, levels.evictions) == (len(self.plain.running), memory.evictions)
        named = {block.name for block in memory.all if block.name is not None}
        assert len(world.pool.index) == len(named)
        slots, tiers = world.executor._slots, memory.tiers
        for key, name in self.names.items():
            block = world.pool.index.get(key)
            assert (block is not None) == (name in named)
            assert block is None or self.says[slots[(block + 1) * size - 1]] == name[1]
        if world.tiers is None:
            return
        shelves = [(world.tiers.host, tiers.host, lambda slot: world.executor.host[slot])]
        if world.disk is not None:
            shelves.append((world.tiers.disk, tiers.disk, lambda slot: world.disk.slots[slot][1]))
            moving = [move for move in tiers.moving if all(move is not over for over, _, _ in tiers.over)]
            assert [(m.what, self.names[m.key]) for m in world.disk.pending] == [(m.what, m.name) for m in moving]
        for real, shelf, holds in shelves:
            there = {self.names[key]: real.slot(key) for key in self.names if key in real}
            assert there.keys() == {slot.name for slot in shelf.slots if slot.there}
            assert all(self.says[holds(slot)[-1]] == name[1] for name, slot in there.items())
            assert (len(real), real.evictions) == (len(shelf), shelf.evictions)

    def _agree_on_happenings(self) -> None:
        told, self._told = self.world.events[self._told :], len(self.world.events)
        mine, self.plain.told = self.plain.told, []
        assert [said for event in told if (said := happened(event))] == mine

    def ended(self) -> None:
        """Nothing is alive: nothing is held, and every record says what became of its positions, and of its time."""
        assert self.world.pool.live == 0 and not self.memory.tiers.reloads
        now = self.world.clock.now_ns()
        for id, r in self.asked.items():
            record = self.world.story.record(id)
            (sequence,) = record.sequences
            assert sum(interval.ns for interval in record.life(now)) == record.elapsed_ns(now)
            assert [getattr(sequence.counts, kind) for kind in KINDS] == [r.counts[kind] for kind in KINDS]
            if record.stage is Stage.FINISHED:
                assert tuple(self.world.said[id, 0]) == r.tokens[r.prompt :]

    def _name(self, r: Plain) -> None:
        """What is there under which key, and under which hash of the fake executor."""
        facts, size = self.world.executor.facts, self.machine.size
        chain = KeyChain(Origin(facts.revision, facts.weights_format, facts.state_format, salt=r.salt), size)
        for place, key in enumerate(chain.upto(list(r.tokens), len(r.tokens) // size), 1):
            self.names[key] = r.salt, r.tokens[: place * size]
        prefix = _EMPTY
        for place, token in enumerate(r.tokens, 1):
            prefix = _extend(prefix, token)
            self.says[prefix] = r.tokens[:place]


def happened(event: ev.AnyEvent) -> tuple | None:
    """What the reference would tell of it."""
    match event:
        case ev.Admitted(id=id, inherited=(found,), miss=miss):
            return "admitted", id, found, miss.why if miss.why in ("slower", "lost") else ""
        case ev.ReloadStarted(id=id, wait=wait):
            return "reloads", id, wait.need
        case ev.Reloaded(id=id, blocks=blocks):
            return "reloaded", id, blocks
        case ev.ReloadDropped(id=id, by=by):
            return "dropped", id, by
        case ev.Preempted(id=id, by=by):
            return "preempted", id, by
        case ev.Offloaded(blocks=blocks, faults=faults):
            return "offloaded", blocks, faults.get("disk", {})
        case ev.Failed(id=id):
            return "failed", id
        case ev.Finished(id=id):
            return "finished", id
    return None
