"""A log in which everything happens that an event can tell, made by the real engine in no time."""

from __future__ import annotations

from headway.core import events as ev
from headway.core.plan import Grammar
from headway.core.recovery import Demand, Rates
from headway.core.request import Pause
from headway.policy.progress import APART_NS
from world import Allowing, Guessing, World


class Pausing(Guessing):
    """Guesses what was said last, is mostly wrong, and says so."""

    def __init__(self) -> None:
        super().__init__(lambda tokens: tokens[-2:])

    def verified(self, drafted: int, accepted: int) -> Pause | None:
        return None if accepted else Pause(drafted, accepted, 8)


#: Events that an engine alone does not tell; `delivered` adds them.
OF_A_FRONT = {ev.Loaded, ev.TurnedAway, ev.Received, ev.Prompted, ev.Delivered}


def log() -> list[ev.AnyEvent]:
    """Of everything something: preemptions, siblings, known prefixes, drafts, grammars, a cancellation in the middle
    of a step, refusals, a step that fails, waits of all kinds."""
    world = World(
        blocks=26,
        seats=4,
        step_tokens=64,
        max_bypass=2,
        drafters=lambda new: Pausing(),
        model_context=8000,
        host_slots=4,
        disk_slots=200,
        disk_delay=30,
        staging=True,
    )
    prompt = [7 * i % 97 for i in range(96)]
    world.add("a", 150, max_tokens=60)
    world.add("b", [*prompt, 1], max_tokens=30, n=2)
    world.add("c", 90, max_tokens=30)
    world.add("huge", 5000, max_tokens=1)
    world.add("endless", 9000, max_tokens=1)
    world.add("strict", 20, max_tokens=4, grammar=Grammar("regex", "x"))
    world.add("loose", 20, max_tokens=4, grammar=Grammar("regex", "y"))
    for _ in range(12):
        world.step()
    rates = Rates(10, 20_000, 40_000, 60), Rates(0, 0, 20_000, 100)
    for phase, kept_out in (("began", 0.0), ("lasts", 2.5), ("over", 0.0)):
        told = {"phase": phase, "cut": phase != "over", "rejected": Demand(kept_out, 5000), "clean": 1, "needed": 2}
        world._emit(ev.Recovery(at=world.clock.now_ns(), step=12, model="fake", now=rates[0], best=rates[1], **told))
        world.step()
    world.engine.supply("strict", "grammar", [Allowing(world.vocab)])
    world.engine.fail("loose", "it means nothing")
    for name in "defg":
        world.add(name, [*prompt, ord(name)], max_tokens=12)
    for _ in range(25):
        world.step()
    plan = world.engine.plan()
    assert plan is not None
    world.engine.cancel("a")
    world.note(world.engine.commit(world.executor.run(plan)))
    world.engine.plan()
    world.engine.abort("the step was told to fail")
    world.add("last", [*prompt, 3], max_tokens=20)
    world.run()
    reloads(world, [5 * i % 89 for i in range(96)])
    return world.events


def reloads(world: World, prompt: list[int]) -> None:
    """A prefix comes back from disk, once in the end, and once so slowly that its blocks go to one that grows."""
    world.add("first", [*prompt, 2], max_tokens=1)
    world.run()
    while world.engine.awaiting or not world.engine.idle:
        world.step()
    world.add("filler", 400, max_tokens=1)
    world.run()
    world.add("grows", 300, max_tokens=20)
    world.step()
    world.add("again", [*prompt, 3], max_tokens=5)
    while not isinstance(world.events[-1], ev.ReloadStarted):
        world.step()
    for _ in range(3):  # a disk that hangs for a minute, and then goes on
        world.clock.advance(APART_NS)
        world.engine.collect()
    world.run()
    writes_hang(world)


def writes_hang(world: World) -> None:
    """The disk takes nothing for a minute, and then goes on."""
    while world.engine.awaiting or not world.engine.idle:
        world.step()
    assert world.disk is not None
    world.disk.delay = 1 << 30
    world.add("unwritten", 300, max_tokens=1)
    world.run()
    for _ in range(3):
        world.clock.advance(APART_NS)
        world.step()
    world.disk.hurry()
    world.step()


def delivered(events: list[ev.AnyEvent]) -> list[ev.AnyEvent]:
    """The same as a front tells it: who comes is received, who is over is delivered a moment later."""
    loaded = ev.Loaded(at=0, model="fake", blocks=26, block_tokens=16, block_bytes=1, seats=4, step_tokens=64,
                       threads=1, weights="fp32")  # fmt: skip
    told: list[ev.AnyEvent] = [loaded]
    for event in events:
        if isinstance(event, ev.Arrived):
            told += [ev.Received(at=event.at - 500, id=event.id), ev.TurnedAway(at=event.at, counts={"queue": 1})]
            told.append(ev.Prompted(at=event.at, id=event.id, text="what it says"))
        told.append(event)
        if isinstance(event, ev.Finished | ev.Cancelled | ev.Failed | ev.Refused):
            told.append(ev.Delivered(at=event.at + 700, id=event.id))
    return told
