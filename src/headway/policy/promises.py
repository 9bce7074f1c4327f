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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headway.core.request import MOST
from headway.core.verdict import Never, Wait
from headway.policy.durations import Work

#: Who moves in the next so many steps, by arrival, and then, and so on. Whoever is left moves behind these.
Plan: TypeAlias = Sequence[tuple[frozenset[int], int]]
#: What so many rows of one kind and size take together, in ns.
Takes: TypeAlias = Callable[[Work, int], int]

#: How many plans are tried before a deadline is refused, and how many of them let one request join less.
_MOST_TRIES, _CAPS = 64, 8
_MS = 1_000_000


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
        """How long before it is due (ns) one with a promise is complete."""
        assert course.due is not None
        return course.due - self.ready.get(course.arrival, MOST * course.due)

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

    def behind(self, courses: Sequence[Course], plan: Plan, course: Course) -> int:
        """When one more is complete that makes none of `courses` later than their plan can spare."""
        schedule = self.follow(courses, plan)
        placed = _Draft(self, courses, schedule).place(course, MOST)
        end = max((schedule.begin, *schedule.ready.values()))
        return end + self.alone(course) if placed is None else placed.ready[course.arrival]

    def alone(self, course: Course) -> int:
        """How long what is left of one takes by itself."""
        return sum(self.takes(run.work, run.rows) * run.times for run in course.runs)

    # -- plans -------------------------------------------------------------------------------------------------

    def promise(self, courses: Sequence[Course], plan: Plan) -> Schedule | None:
        """A schedule that keeps all that is promised to `courses`, where `plan` keeps what was promised before; None
        where none was found."""
        together = self.follow(courses)
        if together.keeps(courses):
            return together
        due = sorted((course for course in courses if course.due is not None), key=lambda course: course.due or 0)
        planned = {arrival for who, _ in plan for arrival in who}
        new = [course for course in due if course.arrival not in planned]
        if any(self.begin + self.alone(course) > (course.due or 0) for course in new):
            return None
        others = [course for course in courses if course not in new]
        holding = [course for course in courses if course.due is None and course.holds]
        for placed, base, order in (
            ([], Schedule(self.begin, self.takes), due),
            (holding, self.follow(holding), due),
            (others, self.follow(others, plan), new),
        ):
            found = self._place(placed, base, order) or self._place_otherwise(placed, base, order)
            if found is not None and found.keeps(courses):
                return found
        return None

    def hold_on(self, courses: Sequence[Course], plan: Plan) -> tuple[Schedule, list[Course]]:
        """The schedule from here on, and whose promise cannot be kept any more: steps took longer than measured."""
        together = self.follow(courses)
        if together.keeps(courses):
            return together, []
        kept = self.follow(courses, plan)
        if kept.keeps(courses):
            return kept, []
        late = [course for course in courses if course.due is not None and kept.spare(course) < 0]
        others = [course for course in courses if course not in late]
        found = self.promise(courses, plan)
        return (self.follow(courses, self.follow(others, plan).plan), late) if found is None else (found, [])

    def _place(
        self, placed: Sequence[Course], schedule: Schedule, order: Iterable[Course], caps: Mapping[int, int] = {}
    ) -> Schedule | None:
        """One after the other; None as soon as one cannot be complete in time. Who has a cap joins others in no more
        steps than that."""
        placed = [*placed]
        for course in order:
            found = _Draft(self, placed, schedule).place(course, caps.get(course.arrival, MOST))
            placed.append(course)
            if found is None or not found.keeps(placed):
                return None
            schedule = found
        return schedule

    def _place_otherwise(
        self, placed: Sequence[Course], schedule: Schedule, order: Sequence[Course]
    ) -> Schedule | None:
        """What one joins less, another may join more, and has longer to go."""
        tries = 0
        for course in order[:-1]:
            times = max(run.times for run in course.runs)
            for cap in range(0, times, max(1, times // _CAPS)):
                found = self._place(placed, schedule, order, {course.arrival: cap})
                tries += 1
                if found is not None or tries == _MOST_TRIES:
                    return found
        return None


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


# -- verdicts --------------------------------------------------------------------------------------------------


def pause(
    courses: Iterable[Course], course: Course, paused: Schedule, joined: Schedule, names: Mapping[int, str]
) -> Wait:
    """Why one pauses at the boundary of an update: if it moved on, one with less slack (`by`) would be complete
    `need` ms later, which can spare `have`. The pause costs it `price` ms itself."""
    late = min((each for each in courses if each.due is not None), key=joined.spare)
    have = max(0, paused.spare(late) // _MS)
    need = max(have + 1, -(-(joined.ready[late.arrival] - paused.ready[late.arrival]) // _MS))
    costs = paused.ready.get(course.arrival, 0) - joined.ready[course.arrival]
    return Wait(
        on="turn",
        rule="deadline",
        unit="ms",
        need=need,
        have=have,
        short=need - have,
        by=names[late.arrival],
        price=max(0, -(-costs // _MS)),
    )


def too_late(device: Device, courses: Sequence[Course], plan: Plan, course: Course, arrived: int) -> Never:
    """The refusal of one of `courses` that cannot be complete when it is due: when it would be, beside what was
    promised to others and `alone`, all counted from its arrival."""
    assert course.due is not None
    others = [each for each in courses if each.arrival != course.arrival]
    ready = device.behind(others, plan, course)
    limit = (course.due - arrived) // _MS
    need = max(limit + 1, -(-(ready - arrived) // _MS))
    alone = -(-(device.begin + device.alone(course) - arrived) // _MS)
    return Never(rule="deadline", unit="ms", need=need, limit=limit, option=None, alone=alone)


class _Draft:
    """A schedule into which one more request is placed."""

    def __init__(self, device: Device, placed: Sequence[Course], schedule: Schedule) -> None:
        self._device, self._placed = device, placed
        self._schedule = schedule
        self._batches = [*schedule.batches]

    def place(self, course: Course, most: int) -> Schedule | None:
        """What comes before its updates as early as can be; these in steps of others, at most `most` and as late as
        can be; what comes between and behind them where that leaves it. None: it never has a seat or space."""
        works = [run.work for run in course.runs]
        work = max(course.runs, key=lambda run: run.times).work
        first, behind = works.index(work), len(works) - works[::-1].index(work)
        inner, done = [], 0
        for run in course.runs[first:behind]:
            if run.work == work:
                done += run.times
            else:
                inner.append((done, run))
        at = self._room_from(course)
        if at is None:
            return None
        for run in course.runs[:first]:
            for _ in range(run.times):
                at = self._single(course, run, at)
        reserved = sum(self._device.takes(run.work, run.rows) * run.times for _, run in inner)
        at = self._many(course, Run(work, course.runs[first].rows, done), at, most, reserved)
        for count, run in inner:
            at += self._between(course, work, count, run)
        for run in course.runs[behind:]:
            for _ in range(run.times):
                at = self._single(course, run, at)
        return self._settled()

    def _room_from(self, course: Course) -> int | None:
        """The batch from which on there are always a seat and space for it; None: not even behind all."""
        seats, space, place = self._device.seats, self._device.space, 0
        if course.holds:
            return 0
        for batch in range(len(self._batches)):
            for other in self._placed:
                if not other.holds and self._schedule.first.get(other.arrival) == batch:
                    seats, space = seats - other.seats, space - other.space
            if course.seats > seats or course.space > space:
                place = batch + 1
            for other in self._placed:
                if self._schedule.last.get(other.arrival) == batch:
                    seats, space = seats + other.seats, space + other.space
        return place if course.seats <= seats and course.space <= space else None

    def _settled(self) -> Schedule:
        self._schedule = Schedule(self._device.begin, self._device.takes, self._batches)
        return self._schedule

    def _spares(self) -> list[int]:
        """By batch, what those can spare who end with it."""
        schedule, spares = self._settled(), [MOST * MOST] * len(self._batches)
        for course in self._placed:
            if course.due is not None:
                place = schedule.last[course.arrival]
                spares[place] = min(spares[place], schedule.spare(course))
        return spares

    def _more(self, batch: Batch, work: Work, rows: int) -> int | None:
        """How much longer a step of it takes with so many rows more; None where it has nothing alike."""
        beside = batch.rows().get(work)
        return None if beside is None else self._device.takes(work, beside + rows) - self._device.takes(work, beside)

    def _single(self, course: Course, run: Run, at: int) -> int:
        """One item beside others that are alike, or in a step of its own, as soon as those behind can spare the time.
        Returns the batch after it."""
        spares = self._spares()
        alone = self._device.takes(run.work, run.rows)
        for place in range(at, len(self._batches)):
            room = min(spares[place:])
            more = self._more(self._batches[place], run.work, run.rows)
            if more is not None and more <= room:
                self._share(place, course, run.work, run.rows, 1, last=False)
                return place + 1
            if alone <= room:
                self._batches.insert(place, Batch({course.arrival: run[:2]}, 1))
                return place + 1
        self._batches.append(Batch({course.arrival: run[:2]}, 1))
        return len(self._batches)

    def _many(self, course: Course, run: Run, at: int, most: int, reserved: int) -> int:
        """Items in the last steps of others that are alike, as far as those can spare the time and `reserved` beside,
        the others behind all. Returns the batch after them."""
        work, rows, times = run
        spares, room, end = self._spares(), MOST * MOST, at
        for place in range(len(self._batches) - 1, at - 1, -1):
            room = min(room, spares[place] - reserved)
            more = self._more(self._batches[place], work, rows)
            if more is None or room < more:
                continue
            steps = min(times, most, self._batches[place].steps, room // more if more else MOST)
            if not steps:
                break
            room, times, most = room - steps * more, times - steps, most - steps
            added = self._share(place, course, work, rows, steps, last=True)
            end = place + added if end == at else end + added - 1
        if times:
            self._batches.append(Batch({course.arrival: (work, rows)}, times))
            end = len(self._batches)
        return end

    def _between(self, course: Course, work: Work, count: int, run: Run) -> int:
        """A run in steps of its own, once `count` other items of the same request are done. Returns how many batches
        there are more."""
        own = Batch({course.arrival: run[:2]}, run.times)
        for place, batch in enumerate(self._batches):
            if batch.items.get(course.arrival, (None,))[0] != work:
                continue
            if batch.steps > count:
                parts = [batch._replace(steps=count), own, batch._replace(steps=batch.steps - count)]
                self._batches[place : place + 1] = [part for part in parts if part.steps]
                return 2 if count else 1
            count -= batch.steps
        raise AssertionError("what comes between updates has some behind it")

    def _share(self, place: int, course: Course, work: Work, rows: int, steps: int, *, last: bool) -> int:
        """It joins the first or `last` so many steps of a batch. Returns in how many batches that are now."""
        batch = self._batches[place]
        joined = Batch({**batch.items, course.arrival: (work, rows)}, steps)
        rest = [batch._replace(steps=batch.steps - steps)] if batch.steps > steps else []
        self._batches[place : place + 1] = [*rest, joined] if last else [joined, *rest]
        return 1 + len(rest)
