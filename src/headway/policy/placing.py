"""Where one more request goes in a schedule: in steps that others have anyway, which costs least."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.request import MOST
from headway.policy.durations import Work
from headway.policy.schedule import Batch, Course, Device, Run, Schedule

#: What may be spared where nobody is due.
_ANY = MOST * MOST


def place(
    device: Device, placed: Sequence[Course], schedule: Schedule, course: Course, most: int = MOST
) -> Schedule | None:
    """The schedule of those that are `placed` with one more, that makes none of them late: what comes before its
    updates as early as can be; these in steps of others, at most `most` and as late as can be, so that what those can
    spare lasts; what comes between and behind them where that leaves it. None: it never has a seat or space."""
    return _Draft(device, placed, schedule).place(course, most)


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
        schedule, spares = self._settled(), [_ANY] * len(self._batches)
        for course in self._placed:
            if course.due is not None and course.arrival in schedule.last:
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
        spares, room, end = self._spares(), _ANY, at
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
