"""Who waits, and why. The rule is all here.

A request is admitted, and resumed after a preemption, whole: all its seats and all the blocks for its known
positions and one more, or nothing. `judge` answers for one request; `look_further` says how far behind a blocked
head the step may look. The questions are asked in one order, the slowest cause to pass first:

1. a seat for each of its sequences?           else Wait(turn, seats)
2. blocks for every known position and one?    else Wait(space, blocks)
3. a position left in this step's budget?      else Wait(turn, budget)

Everyone who is not judged shares the value `BEHIND`, Wait(turn, order). A request whose grammar is still being
compiled is not in the queue: it gets `AWAITS_GRAMMAR` once, blocks nobody, and queues at its place when the grammar
is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.verdict import Go, Holder, Never, Wait

#: Names who holds the blocks: (at most five holders, how many more there are). Asked only when space is short.
Holders = Callable[[], tuple[tuple[Holder, ...], int]]


AWAITS_GRAMMAR = Wait(on="input", rule="grammar", unit="grammars", need=1, have=0, short=1)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a waiting request needs to go now.

    `blocks` are those beyond the matched ones; `revived` of the matched ones are reusable now, so they cannot be
    counted as available as well; `positions` are the ones it would still have to evaluate.
    """

    seats: int
    blocks: int
    revived: int
    positions: int


@dataclass(frozen=True, slots=True)
class Room:
    """What the replica has to give at this point of the step."""

    seats: int
    free: int
    reusable: int
    positions: int


def judge(ask: Ask, room: Room, holders: Holders) -> Go | Wait:
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
    if ask.blocks > have:
        named, others = holders()
        return Wait(
            on="space",
            rule="blocks",
            unit="blocks",
            need=ask.blocks,
            have=have,
            short=ask.blocks - have,
            free=room.free,
            reusable=room.reusable,
            holders=named,
            others=others,
        )
    if room.positions < 1:
        return no_budget(room)
    return Go(positions=min(ask.positions, room.positions))


def no_budget(room: Room) -> Wait:
    """The step's positions are spent: for a waiting request, or for a running one between two chunks."""
    return Wait(
        on="turn",
        rule="budget",
        unit="positions",
        need=1,
        have=room.positions,
        short=1 - room.positions,
        free=room.free,
        reusable=room.reusable,
    )


def look_further(behind: int, overtaken: int, max_bypass: int) -> bool:
    """May the step judge one more request behind a blocked head?

    `behind` requests behind it were judged in this step; `overtaken` have passed it since it became the head. Both
    are bounded, so a blocked head is passed at most `max_bypass` times, and a long queue costs a step nothing.
    """
    return behind < max_bypass and overtaken < max_bypass


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that any request could ever get. The model itself has `model_context` positions, and `context` may be
    fewer."""

    context: int
    model_context: int
    pool_blocks: int
    seats: int


def never(*, seats: int, positions: int, blocks: int, limits: Limits) -> Never | None:
    """The refusal of a request that could not be served even alone, or None when it could.

    `positions` and `blocks` are its worst case: prompt and every token it may emit.
    """
    if seats > limits.seats:
        return Never(rule="seats", unit="seats", need=seats, limit=limits.seats, option="--seats")
    if positions > limits.context:
        option = "--max-context" if limits.context < limits.model_context else None
        return Never(rule="context", unit="positions", need=positions, limit=limits.context, option=option)
    if blocks > limits.pool_blocks:
        return Never(rule="pool", unit="blocks", need=blocks, limit=limits.pool_blocks, option="--memory")
    return None
