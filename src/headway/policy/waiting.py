"""Who waits, and why. The rule is all here.

A request is admitted, and resumed after a preemption, whole: all its seats and all the space that its pattern asks
for (for text, blocks for the known positions and one more), or nothing. `judge` answers for one request;
`look_further` says how far behind a blocked head the step may look. The questions are asked in one order, the slowest
cause to pass first:

1. a seat for each of its parts?                  else Wait(turn, seats)
2. the space that it asks for?                    else Wait(space, blocks or latent)
   and beside it what admission keeps for growth? else Wait(space, reservation) (`policy/admit.py`)
3. something left of this step's budget?          else Wait(turn, budget)

Everyone who is not judged shares the value `BEHIND`, Wait(turn, order); while another model's step runs, those whom
the next step of their own would look at share `AWAITS_MODEL`. A request that awaits something from outside
the step is not in the queue: it blocks nobody. One whose grammar is being compiled queues at its place when that is
there. One whose blocks are being reloaded was judged before, and holds its space: when they are there it needs a seat
only, and is asked before the queue. A reload is begun only while these need fewer seats than there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.core.verdict import Ask, Go, Holder, Never, SpaceRule, Unit, Wait, Worst
from headway.policy.admit import NOTHING_KEPT, Kept
from headway.policy.budget import granted

#: Names who holds the blocks: (at most five holders, how many more there are). Asked only when space is short.
Holders = Callable[[], tuple[tuple[Holder, ...], int]]
#: Says what must be left when the request is admitted. Asked only when what it needs now is there.
Keep = Callable[[], Kept]


#: What is awaited from outside the step, and from the models that share the device.
AWAITS_GRAMMAR = Wait(on="input", rule="grammar", unit="grammars", need=1, have=0, short=1)
AWAITS_MODEL = Wait(on="turn", rule="model", unit="steps", need=1, have=0, short=1)


def awaits_reload(need: int, have: int) -> Wait:
    """Of `need` blocks that are brought back from tiers, `have` are there."""
    return Wait(on="input", rule="reload", unit="blocks", need=need, have=have, short=need - have)


@dataclass(frozen=True, slots=True)
class Room:
    """What a model has to give at this point of the step.

    budget     what the step may still spend, in the pattern's unit (`cost_unit`)
    untouched  nothing is in the step yet
    by         the option by which the budget was cut, with its value; "" if it was not
    """

    seats: int
    free: int
    reusable: int
    budget: int
    untouched: bool = False
    space_rule: SpaceRule = "blocks"
    space_unit: Unit = "blocks"
    cost_unit: Unit = "positions"
    by: str = ""


def keep_nothing() -> Kept:
    """Admission is optimistic."""
    return NOTHING_KEPT


def judge(ask: Ask, room: Room, holders: Holders, keep: Keep = keep_nothing) -> Go | Wait:
    """Whether a waiting request goes now, and what is short if it does not. Pure."""
    if ask.seats > room.seats:
        return Wait(
            on="turn",
            rule="seats",
            unit="seats",
            need=ask.seats,
            have=room.seats,
            short=ask.seats - room.seats,
            free=room.free,
            reusable=room.reusable,
        )
    have = room.free + room.reusable - ask.revived
    if ask.space > have:
        named, others = holders()
        return Wait(
            on="space",
            rule=room.space_rule,
            unit=room.space_unit,
            need=ask.space,
            have=have,
            short=ask.space - have,
            free=room.free,
            reusable=room.reusable,
            holders=named,
            others=others,
        )
    kept = keep()
    need = ask.space + kept.space
    if need > have:
        named, others = holders()
        return Wait(
            on="space",
            rule="reservation",
            unit=room.space_unit,
            need=need,
            have=have,
            short=need - have,
            free=room.free,
            reusable=room.reusable,
            holders=named,
            others=others,
            kept=kept.space,
            by=kept.by,
            seen=kept.seen,
            least=kept.least,
        )
    spends = granted(ask.cost, room.budget, whole=ask.whole, untouched=room.untouched)
    return Go(positions=spends) if spends else no_budget(ask.cost if ask.whole else 1, room)


def no_budget(need: int, room: Room) -> Wait:
    """The step has no `need` left: for a waiting request, or for a running one that has more to do."""
    return Wait(
        on="turn",
        rule="budget",
        unit=room.cost_unit,
        need=need,
        have=room.budget,
        short=need - room.budget,
        free=room.free,
        reusable=room.reusable,
        by=room.by,
    )


def look_further(behind: int, overtaken: int, max_bypass: int) -> bool:
    """May the step judge one more request behind a blocked head?

    `behind` requests behind it were judged in this step; `overtaken` have passed it since it became the head. Both
    are bounded, so a blocked head is passed at most `max_bypass` times, and a long queue costs a step nothing.
    """
    return behind < max_bypass and overtaken < max_bypass


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that any request of a model could ever get; `space` counts as in `Room`. The model itself has
    `model_context` positions, and `context` may be fewer."""

    context: int
    model_context: int
    space: int
    seats: int
    space_unit: Unit = "blocks"


def never(worst: Worst, limits: Limits) -> Never | None:
    """The refusal of a request that could not be served even alone, or None when it could."""
    if worst.seats > limits.seats:
        return Never(rule="seats", unit="seats", need=worst.seats, limit=limits.seats, option="--seats")
    if worst.context > limits.context:
        option = "--max-context" if limits.context < limits.model_context else None
        return Never(rule="context", unit="positions", need=worst.context, limit=limits.context, option=option)
    if worst.space > limits.space:
        return Never(rule="pool", unit=limits.space_unit, need=worst.space, limit=limits.space, option="--memory")
    return None
