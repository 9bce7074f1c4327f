"""Lesson 5: space or turn."""

from __future__ import annotations

from headway.compute.fake import linear_cost
from headway.core.verdict import Wait
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import modelled, prompt, waits
from headway.sim.pair import Pair, PairOptions

A_PROMPT, B_PROMPT, TOKENS, BLOCK = 40, 100, 8, 16
MANY, FEW = 100, 8
COST_NS = linear_cost(step_ns=1_000_000, position_ns=10_000)


def measure(model: Model) -> Measured:
    """The same two requests with one seat, then with few blocks."""
    prompts = {"A": prompt(A_PROMPT), "B": prompt(B_PROMPT, first=500)}
    seat, seat_story = modelled(prompts, TOKENS, PairOptions(seats=1), blocks=MANY, cost_ns=COST_NS)
    few, few_story = modelled(prompts, TOKENS, PairOptions(seats=2), blocks=FEW, cost_ns=COST_NS)
    turn, space = waits(seat, "B")[0], waits(few, "B")[0]
    held = ", ".join(f"{holder.id} holds {holder.blocks}" for holder in space.holders)
    return Measured(
        answer=space.short,
        counts={"one_seat": _row(turn, seat), "few_blocks": _row(space, few)},
        story=(
            f"One seat, {MANY} blocks:", *seat_story,
            "", f"Two seats, {FEW} blocks:", *few_story,
        ),
        why=(
            f"With one seat B waited for a {turn.on} ({turn.rule}): it needed {turn.need}, {turn.have} were free. "
            "There was memory for both; more of it would not have helped.",
            f"With {FEW} blocks B waited for {space.on} ({space.rule}). To begin it needs state for its {B_PROMPT} "
            f"positions and one more: {space.need} blocks. {space.free} were free and {space.reusable} reusable, so "
            f"it was {space.short} short; {held}. There was a seat; more seats would not have helped.",
            "The queue looks the same in both. Which option to raise, --seats or --memory, shows only in the "
            "verdict.",
        ),
    )  # fmt: skip


def _row(wait: Wait, pair: Pair) -> dict[str, int | str]:
    return {
        "waits_on": wait.on, "rule": wait.rule, "need": wait.need, "have": wait.have, "short": wait.short,
        "steps_waited": len(waits(pair, "B")),
    }  # fmt: skip


LESSON = Lesson(
    number=5,
    slug="space-or-turn",
    title="Space or turn",
    runs_on="The real engine over the fake executor. Time is modelled: a step costs 1 ms and 10 µs for each "
    "position.",
    question=Question(
        f"A pool has {FEW} blocks of {BLOCK} positions. A, with {A_PROMPT} prompt positions, was admitted; each "
        f"request is admitted with blocks for its prompt and one more position. B comes, with {B_PROMPT} prompt "
        "positions, and a seat is free. How many blocks is B short?",
        unit="blocks",
    ),
    measure=measure,
    code=(
        Code("policy/waiting.py", "judge"),
        Code("memory/reserve.py", "StateMemory.quote"),
        Code("engine/planner.py", "Planner.admissions"),
    ),
)
