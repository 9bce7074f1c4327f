"""All lessons, in order."""

from __future__ import annotations

from headway.core.errors import ConfigError
from headway.lessons import (
    bigger_batch,
    fed_back,
    lost_state,
    one_set_of_weights,
    recovery_loop,
    same_prompt,
    space_or_turn,
    step_budget,
    three_prices,
)
from headway.lessons.lesson import Lesson

LESSONS: tuple[Lesson, ...] = (
    one_set_of_weights.LESSON,
    fed_back.LESSON,
    step_budget.LESSON,
    same_prompt.LESSON,
    space_or_turn.LESSON,
    lost_state.LESSON,
    bigger_batch.LESSON,
    recovery_loop.LESSON,
    three_prices.LESSON,
)


def lesson(number: int) -> Lesson:
    """Raises ConfigError for a number that no lesson has."""
    for each in LESSONS:
        if each.number == number:
            return each
    raise ConfigError("N", f"there are lessons 1 to {len(LESSONS)}, none has the number {number}")
