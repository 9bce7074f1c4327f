"""The answer to "why not now": a value with numbers, from the rule that produced it to the user, unchanged.

A verdict is one of three. `Go` says what was granted. `Wait` says what is awaited (`on`), which rule said so,
and how much is missing. `Never` says that waiting would not help, and which limit is exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

On: TypeAlias = Literal["space", "turn", "input"]
SpaceRule: TypeAlias = Literal["blocks", "reservation", "latent"]
TurnRule: TypeAlias = Literal["seats", "budget", "order", "model", "deadline"]
#: What may be awaited from outside the step.
Input: TypeAlias = Literal["reload", "grammar"]
WaitRule: TypeAlias = SpaceRule | TurnRule | Input
Unit: TypeAlias = Literal["blocks", "seats", "positions", "updates", "steps", "requests", "grammars", "bytes", "ms"]
NeverRule: TypeAlias = Literal["pool", "context", "seats", "deadline"]

#: Which answer each waiting rule belongs to; the closed list of the public contract.
RULES: dict[WaitRule, On] = {
    "blocks": "space",
    "reservation": "space",
    "latent": "space",
    "seats": "turn",
    "budget": "turn",
    "order": "turn",
    "model": "turn",
    "deadline": "turn",
    "reload": "input",
    "grammar": "input",
}
ONS: tuple[On, ...] = ("space", "turn", "input")


@dataclass(frozen=True, slots=True)
class Worst:
    """The most that a request could ever need: seats, positions of context, and space."""

    seats: int
    context: int
    space: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request needs to be admitted, or resumed, now.

    space     beyond what it was found to have; `revived` of that is reusable now, so it cannot be counted as
              available as well
    cost      what it would still spend of steps, in its pattern's unit
    whole     the cost cannot be divided
    """

    seats: int
    space: int
    revived: int
    cost: int
    whole: bool = False


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A request that holds what another one lacks.

    `blocks` would become available if it left now; `shared` more are referenced by others too and would stay.
    """

    id: str
    blocks: int
    shared: int


class Go(msgspec.Struct, frozen=True, gc=False, tag="go", tag_field="kind"):
    """The request moves in this step, by `positions` of its own."""

    positions: int


class Wait(msgspec.Struct, frozen=True, gc=False, tag="wait", tag_field="kind"):
    """The request does not move in this step.

    `need`, `have` and `short` count `unit`s. `have` = `free` + `reusable` less the reusable blocks that the
    request itself matched (they cannot be counted twice). `others` = holders beyond the five that are named. Where
    the rule is `reservation`, what it needs now is there, and `kept` of its need are to be left for growth: `by` is
    the admission that says so (`--admit`), or "recovery" while a recovery loop has admission cut; a prediction
    without enough history is `headroom`, and then `seen` of the `least` answers that it needs have ended. Where it is
    `budget`, `by` is the option that cut the step's budget, if one did (`--gap-ms 150`). Where it is `deadline`, `by`
    is the request that would be late if this one moved: that costs it `need` ms, and it can spare `have`; the
    pause makes this one `price_ms` later.
    """

    on: On
    rule: WaitRule
    unit: Unit
    need: int
    have: int
    short: int
    free: int = 0
    reusable: int = 0
    holders: tuple[Holder, ...] = ()
    others: int = 0
    kept: int = 0
    by: str = ""
    price_ms: int = 0
    seen: int = 0
    least: int = 0


class Never(msgspec.Struct, frozen=True, gc=False, tag="never", tag_field="kind", omit_defaults=True):
    """The request cannot be served even alone, or not in time: it needs `need` `unit`s and `limit` is all there is.

    `option` is the command-line option that raises the limit; None: it is the model's own. Where others were promised
    their deadlines before, `alone` is what it would need without them.
    """

    rule: NeverRule
    unit: Unit
    need: int
    limit: int
    option: str | None
    alone: int | None = None


Verdict: TypeAlias = Go | Wait | Never

#: What everyone behind the judged head of the queue shares; how many are ahead is computed when asked.
BEHIND = Wait(on="turn", rule="order", unit="requests", need=0, have=0, short=0)


def change_key(verdict: Verdict | None) -> tuple[object, ...]:
    """Two verdicts are the same wait, with one common beginning, when their keys are equal."""
    match verdict:
        case Wait(on=on, rule=rule, need=need):
            return ("wait", on, rule, need)
        case Never(rule=rule, need=need):
            return ("never", None, rule, need)
        case Go():
            return ("go", None, None, None)
        case None:
            return ()


def awaits_input(verdict: Verdict | None) -> bool:
    """Whether something outside the step is awaited: such a request stands in nobody's way."""
    return isinstance(verdict, Wait) and verdict.on == "input"
