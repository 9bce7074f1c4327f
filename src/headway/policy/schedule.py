"""What comes of it when requests whose work is known item by item move together: which batches there are, and when
each request is complete, by what steps were measured to take (`policy/durations.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headway.core.request import MOST
from headway.policy.durations import Work

#: Who moves in the next so many steps, by arrival, and then, and so on. Whoever is left moves behind these.
Plan: TypeAlias = Sequence[tuple[frozenset[int], int]]
#: What so many rows of one kind and size take together, in ns.
Takes: TypeAlias = Callable[[Work, int], int]


class Run(NamedTuple):
    """`times` items of one kind in a row, with `rows` rows each."""

    work: Work
    rows: int
    times: int


@dataclass(frozen=True, slots=True)
class Course:
    """One request as far as its deadline is concerned.

    runs     what is left of it
    due      when it must be complete (ns), where that was promised
    seats, space   what it holds, or, where it `holds` nothing yet, takes when it starts
    """

    arrival: int
    runs: tuple[Run, ...]
    due: int | None = None
    seats: int = 1
    space: int = 0
    holds: bool = False


class Batch(NamedTuple):
    """What moves together for so many `steps`: an item of one work with its rows for each, by arrival."""

    items: Mapping[int, tuple[Work, int]]
    steps: int

    def rows(self) -> dict[Work, int]:
        """What is alike is evaluated together."""
        rows: dict[Work, int] = {}
        for work, count in self.items.values():
            rows[work] = rows.get(work, 0) + count
        return rows


class Schedule:
    """Batches one after the other, from `begin` (ns) on. `ready` tells when each request is complete, and `first` and
    `last` the batches that it begins and ends with."""

    def __init__(self, begin: int, takes: Takes, batches: Iterable[Batch] = ()) -> None:
        self.begin, self.takes = begin, takes
        self.batches = tuple(batches)
        self.ready: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        now = begin
        for place, batch in enumerate(self.batches):
            now += batch.steps * sum(takes(work, rows) for work, rows in batch.rows().items())
            for arrival in batch.items:
                self.ready[arrival] = now
                self.first.setdefault(arrival, place)
                self.last[arrival] = place

    @property
    def plan(self) -> Plan:
        return tuple((frozenset(batch.items), batch.steps) for batch in self.batches)

    @property
    def moving(self) -> frozenset[int]:
        """Who is in the next step."""
        return frozenset(self.batches[0].items) if self.batches else frozenset()

    def spare(self, course: Course) -> int:
        """How long before it is due (ns) one with a promise is complete; less than nothing where it never is."""
        assert course.due is not None
        return course.due - self.ready.get(course.arrival, course.due + MOST)

    def keeps(self, courses: Iterable[Course]) -> bool:
        """Whether each is complete when that was promised."""
        return all(self.spare(course) >= 0 for course in courses if course.due is not None)


@dataclass(frozen=True, slots=True)
class Device:
    """What a model has to give from `begin` (ns) on: free seats and space, and how long work takes."""

    begin: int
    seats: int
    space: int
    takes: Takes

    def follow(self, courses: Sequence[Course], plan: Plan = ()) -> Schedule:
        """What comes of a plan for `courses`, which are in the order in which they are admitted; behind it, and
        without one, all move who find a seat and space. Costs in proportion to the changes of the batch, not to its
        steps. Who could never start is not in it."""
        seats, space = self.seats, self.space
        left = {course.arrival: [*course.runs] for course in courses}
        outside = [course for course in courses if not course.holds]
        batches: list[Batch] = []
        for who, steps in (*plan, (frozenset(left), MOST)):
            while steps:
                for course in tuple(outside):
                    if course.arrival in who and course.seats <= seats and course.space <= space:
                        seats, space = seats - course.seats, space - course.space
                        outside.remove(course)
                entered = [each for each in courses if each.arrival in who and each not in outside]
                moving = [course for course in entered if left[course.arrival]]
                if not moving:
                    break
                runs = {course.arrival: left[course.arrival][0] for course in moving}
                together = min(steps, *(run.times for run in runs.values()))
                batches.append(Batch({arrival: run[:2] for arrival, run in runs.items()}, together))
                steps -= together
                for course in moving:
                    own = left[course.arrival]
                    own[:1] = [own[0]._replace(times=own[0].times - together)] if own[0].times > together else []
                    if not own:
                        seats, space = seats + course.seats, space + course.space
        return Schedule(self.begin, self.takes, batches)

    def join(self, courses: Sequence[Course], plan: Plan, arrival: int) -> Schedule:
        """What comes of a plan where one more moves from now on to its end."""
        return self.follow(courses, [(who | {arrival}, steps) for who, steps in plan])

    def alone(self, course: Course) -> int:
        """How long what is left of one takes by itself."""
        return sum(self.takes(run.work, run.rows) * run.times for run in course.runs)


def next_step(schedule: Schedule) -> Plan:
    """The plan that is left once its next step has been."""
    if not schedule.plan:
        return ()
    (who, steps), *rest = schedule.plan
    return ((who, steps - 1), *rest) if steps > 1 else tuple(rest)


def first_item_done(runs: Sequence[Run]) -> tuple[Run, ...]:
    """What is left behind the next item."""
    first, *rest = runs
    return (first._replace(times=first.times - 1), *rest) if first.times > 1 else tuple(rest)
