"""What a model promised by deadline, where its pattern knows what is left of each request item by item. The decisions
are `policy/promises.py`'s; here is what they look at, and what stays between steps: who was promised, and the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from headway.core.events import Forecast
from headway.core.request import NewRequest, Request, Stage
from headway.core.verdict import Never, Wait
from headway.engine.pattern import AnyPattern
from headway.engine.queues import Queues
from headway.policy.durations import Durations, Stretch, Work
from headway.policy.promises import hold_on, pause, promise, too_late
from headway.policy.schedule import Course, Device, Plan, Schedule, first_item_done, next_step

#: Whoever comes behind so many that cannot join a step is not tried in it.
_MOST_TRIED = 8


class Promises:
    """Of one model. A step is opened before anyone is put into it and closed when it is planned; in between `hold`
    says who pauses. `durations` are as in the model."""

    def __init__(self, pattern: AnyPattern, queues: Queues, seats: int, durations: Durations) -> None:
        self._pattern, self._queues, self._seats, self._durations = pattern, queues, seats, durations
        self._promised: dict[int, Request] = {}
        self._plan: Plan = ()
        self._stretch = Stretch()
        self._opened_at = self._busy_until = 0
        self._expected_ns: int | None = None  # of the last step, by what was measured of its parts
        self._device = Device(0, 0, 0, self._takes)  # these four as the open step sees them
        self._courses: list[Course] = []
        self._schedule: Schedule | None = None  # None: nothing is promised
        self._held: dict[int, Wait] = {}

    # -- on arrival --------------------------------------------------------------------------------------------

    def refusal(self, request: Request, new: NewRequest, now: int) -> Never | None:
        """Promise a new request its deadline, or refuse it, when it cannot be complete in time beside what was
        promised before. Where nothing like it was measured yet, and where it may be late, it goes without a promise.
        Changes what is promised."""
        course = self._course(request, request.deadline_at)
        if course.due is None or not all(self._durations.knows(*run.work) for run in course.runs):
            return None
        device, requests = self._look(now)
        request.promised, self._promised[request.arrival] = True, request
        courses = self._in_order([*requests, request])
        schedule = promise(device, courses, self._plan)
        if schedule is not None:
            self._plan = schedule.plan
            return None
        request.promised = False
        del self._promised[request.arrival]
        if new.serve_late:
            return None
        assert new.deadline_ms is not None
        arrived = course.due - round(new.deadline_ms * 1e6)
        return too_late(device, courses, self._plan, course, arrived)

    # -- in a step ---------------------------------------------------------------------------------------------

    def open(self, now: int, *, continued: bool) -> None:
        """A step is planned now; `continued` without the model having been idle since the last one. Decides who of
        the running, and of the promised, pauses."""
        if continued and self._expected_ns:
            self._stretch.note((now - self._opened_at) / self._expected_ns)
        self._opened_at, self._schedule, self._held = now, None, {}
        self._promised = {arrival: each for arrival, each in self._promised.items() if not each.ended}
        if not self._promised:
            self._plan = ()
            return
        self._device, requests = self._look(now)
        self._courses = self._in_order(requests)
        self._schedule, late = hold_on(self._device, self._courses, self._plan)
        for course in late:
            del self._promised[course.arrival]
        if late:
            self._courses = self._in_order(requests)
        for course in self._courses:
            self._join(course)

    def hold(self, request: Request) -> Wait | None:
        """Why a request pauses, for which there are a seat and space; None when it moves in the open step."""
        if self._schedule is None:
            return None
        if all(course.arrival != request.arrival for course in self._courses):
            course = self._course(request, None)
            self._courses.append(course)
            self._join(course)
            if request.arrival in self._held:
                self._courses.pop()
        return self._held.get(request.arrival)

    def close(self, moving: Iterable[int]) -> tuple[Forecast, ...]:
        """The step is planned, with these in it. Returns what is expected of each of the running, and of the
        promised, that has a deadline."""
        if self._schedule is not None:
            self._plan = next_step(self._schedule)
        device, requests = self._look(self._opened_at)
        courses = {course.arrival: course for course in self._in_order(requests)}
        rows: dict[Work, int] = {}
        for arrival in moving:
            run = courses[arrival].runs[0]
            rows[run.work] = rows.get(run.work, 0) + run.rows
        self._busy_until = self._opened_at + sum(device.takes(work, count) for work, count in rows.items())
        measured = [self._durations.exactly(*work, count) for work, count in rows.items()]
        self._expected_ns = None if None in measured else sum(ns or 0 for ns in measured)
        due = [request for request in requests if request.deadline_at is not None]
        if not due:
            return ()
        schedule = self._schedule or device.follow([*courses.values()])
        return tuple(self._forecast(request.id, courses[request.arrival], schedule, rows) for request in due)

    # -- inside ------------------------------------------------------------------------------------------------

    def _join(self, course: Course) -> None:
        """Whoever is not in the next step by plan moves all the same, if that makes nobody late."""
        assert self._schedule is not None
        if course.arrival in self._schedule.moving:
            return
        if len(self._held) >= _MOST_TRIED:
            self._held[course.arrival] = next(reversed(self._held.values()))
            return
        joined = self._device.join(self._courses, self._schedule.plan, course.arrival)
        if joined.keeps(self._courses):
            self._schedule = joined
        else:
            names = {arrival: request.id for arrival, request in self._promised.items()}
            self._held[course.arrival] = pause(self._courses, course, self._schedule, joined, names)

    def _look(self, now: int) -> tuple[Device, list[Request]]:
        """What the model has to give at the next boundary, and the requests that are looked at: those that run, and
        the promised."""
        seats, free = self._seats - self._queues.seats_used, self._pattern.space.free
        flying = False
        requests = {request.arrival: request for request in self._queues.running} | self._promised
        for request in self._queues:
            if not request.in_flight:
                continue
            flying = True
            if request.ended or not self._course(request, None).runs:  # it is over with the step that runs
                seats += 0 if request.ended else request.seats
                free += self._pattern.holding(request)[0]
                requests.pop(request.arrival, None)
        begin = max(now, self._busy_until) if flying else now
        return Device(begin, seats, free, cache(self._takes)), [each for each in requests.values() if not each.ended]

    def _in_order(self, requests: Iterable[Request]) -> list[Course]:
        return [
            self._course(request, request.deadline_at if request.arrival in self._promised else None)
            for request in sorted(requests, key=self._queues.order)
        ]

    def _course(self, request: Request, due: int | None) -> Course:
        held, _ = self._pattern.holding(request)
        runs = self._pattern.runs(request)
        return Course(
            arrival=request.arrival,
            runs=first_item_done(runs) if request.in_flight else runs,
            due=due,
            seats=request.seats,
            space=held or self._pattern.quote(request, request.seats).ask.space,
            holds=request.stage is Stage.RUNNING,
        )

    def _forecast(self, id: str, course: Course, schedule: Schedule, rows: dict[Work, int]) -> Forecast:
        most = max(course.runs, key=lambda run: run.times)
        inside = course.arrival in schedule.moving and course.runs[0].work == most.work
        step_ns = self._takes(most.work, rows.get(most.work, 0) + (0 if inside else most.rows))
        last = course.runs[-1]
        return Forecast(id, step_ns, self._takes(last.work, last.rows), schedule.ready.get(course.arrival, 0))

    def _takes(self, work: Work, rows: int) -> int:
        """What rows take, by what was measured of them and of how much longer whole steps take. What was never
        measured counts nothing: it will be once it has run."""
        return round((self._durations.ns(*work, rows) or 0) * self._stretch.factor)
