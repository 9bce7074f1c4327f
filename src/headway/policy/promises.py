"""Deadlines of work whose length is known, as an image's is: what was promised is kept.

What is left of each request is known item by item, and what a step takes with so many rows is measured
(`policy/durations.py`), so a plan, who moves in each step to come, tells when each is complete. A deadline is
promised only where a plan keeps it and all that was promised before. Everyone together keeps them where
deadline − now − remaining × t(batch + 1) − t(decode) ≥ 0 for each; where that does not hold, some pause.

A plan that keeps what was promised goes on doing so while steps take what they were measured to take, whoever leaves:
a step without them is no longer. So a plan is given up only for one that keeps everything too.

The earliest deadline is placed first (EDF, Liu and Layland 1973). Each of the others joins the steps of those before
it, as often as they can spare the time and as late, so that what they can spare lasts, and has its other items
behind. So it is those with the most slack that pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headway.core.request import MOST
from headway.core.verdict import Never, Wait
from headway.policy.placing import place
from headway.policy.schedule import Course, Device, Plan, Schedule

#: How many more plans are tried before a deadline is refused, and how many of them for each request.
_MOST_TRIES, _CAPS = 64, 8
_MS = 1_000_000


def behind(device: Device, courses: Sequence[Course], plan: Plan, course: Course) -> int:
    """When one more is complete that makes none of `courses` later than their plan can spare."""
    schedule = device.follow(courses, plan)
    placed = place(device, courses, schedule, course)
    end = max((schedule.begin, *schedule.ready.values()))
    return end + device.alone(course) if placed is None else placed.ready[course.arrival]


def promise(device: Device, courses: Sequence[Course], plan: Plan) -> Schedule | None:
    """A schedule that keeps all that is promised to `courses`, where `plan` keeps what was promised before; None
    where none was found. Finding the best one is a hard problem, so some that could be kept are missed: with a few
    requests hardly any."""
    together = device.follow(courses)
    if together.keeps(courses):
        return together
    due = sorted((course for course in courses if course.due is not None), key=lambda course: course.due or 0)
    planned = {arrival for who, _ in plan for arrival in who}
    new = [course for course in due if course.arrival not in planned]
    if any(device.begin + device.alone(course) > (course.due or 0) for course in new):
        return None
    others = [course for course in courses if course not in new]
    holding = [course for course in courses if course.due is None and course.holds]
    for placed, base, order in (
        ([], Schedule(device.begin, device.takes), due),
        (holding, device.follow(holding), due),
        (others, device.follow(others, plan), new),
    ):
        found = _place_all(device, placed, base, order) or _place_otherwise(device, placed, base, order)
        if found is not None and found.keeps(courses):
            return found
    return None


def hold_on(device: Device, courses: Sequence[Course], plan: Plan) -> tuple[Schedule, list[Course]]:
    """The schedule from here on, and whose promise cannot be kept any more: steps took longer than measured."""
    together = device.follow(courses)
    if together.keeps(courses):
        return together, []
    kept = device.follow(courses, plan)
    if kept.keeps(courses):
        return kept, []
    late = [course for course in courses if course.due is not None and kept.spare(course) < 0]
    others = [course for course in courses if course not in late]
    found = promise(device, courses, plan)
    return (device.follow(courses, device.follow(others, plan).plan), late) if found is None else (found, [])


def _place_all(
    device: Device,
    placed: Sequence[Course],
    schedule: Schedule,
    order: Iterable[Course],
    caps: Mapping[int, int] = {},
) -> Schedule | None:
    """One after the other; None as soon as one cannot be complete in time. Who has a cap joins others in no more
    steps than that."""
    placed = [*placed]
    for course in order:
        found = place(device, placed, schedule, course, caps.get(course.arrival, MOST))
        placed.append(course)
        if found is None or not found.keeps(placed):
            return None
        schedule = found
    return schedule


def _place_otherwise(
    device: Device, placed: Sequence[Course], schedule: Schedule, order: Sequence[Course]
) -> Schedule | None:
    """With one of them joining the others less: another, that has longer to go, may then join more."""
    tries = 0
    for course in order[:-1]:
        times = max(run.times for run in course.runs)
        for cap in range(0, times, max(1, times // _CAPS)):
            found = _place_all(device, placed, schedule, order, {course.arrival: cap})
            tries += 1
            if found is not None or tries == _MOST_TRIES:
                return found
    return None


# -- verdicts --------------------------------------------------------------------------------------------------


def pause(
    courses: Iterable[Course], course: Course, paused: Schedule, joined: Schedule, names: Mapping[int, str]
) -> Wait:
    """Why one pauses at the boundary of an update: if it moved on, one with less slack (`by`) would be complete
    `need` ms later, which can spare `have`. The pause costs it `price` ms itself."""
    late = min((each for each in courses if each.due is not None), key=joined.spare)
    have = max(0, paused.spare(late) // _MS)
    need = max(have + 1, -(-(paused.spare(late) - joined.spare(late)) // _MS))
    costs = paused.ready.get(course.arrival, 0) - joined.ready.get(course.arrival, 0)
    return Wait(
        on="turn",
        rule="deadline",
        unit="ms",
        need=need,
        have=have,
        short=need - have,
        by=names[late.arrival],
        price_ms=max(0, -(-costs // _MS)),
    )


def too_late(device: Device, courses: Sequence[Course], plan: Plan, course: Course, arrived: int) -> Never:
    """The refusal of one of `courses` that cannot be complete when it is due: when it would be, beside what was
    promised to others and `alone`, all counted from its arrival."""
    assert course.due is not None
    others = [each for each in courses if each.arrival != course.arrival]
    ready = behind(device, others, plan, course)
    limit = (course.due - arrived) // _MS
    need = max(limit + 1, -(-(ready - arrived) // _MS))
    alone = -(-(device.begin + device.alone(course) - arrived) // _MS)
    return Never(rule="deadline", unit="ms", need=need, limit=limit, option=None, alone=alone)
