"""Plans that keep deadlines: what a plan comes to, that it stays good, and that what is refused cannot be kept."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from deadline_oracle import possible
from headway.policy.durations import Stretch
from headway.policy.promises import behind, hold_on, pause, promise, too_late
from headway.policy.schedule import Course, Device, Run, Schedule, first_item_done, next_step

ENCODE = ("encode", ())
STEP = {"encode": 100, "update": 1000, "decode_pixels": 400}
ROW = {"encode": 100, "update": 500, "decode_pixels": 300}


def takes(work: tuple[str, tuple[int, ...]], rows: int) -> int:
    """A beginning that is shared, and more for each row; four times as much for an image of 128 x 128."""
    return (STEP[work[0]] + ROW[work[0]] * rows) * (4 if work[1][:1] == (128,) else 1)


def image(arrival: int, updates: int, due: int | None, rows: int = 1, side: int = 64, previews: int = 0, **own: int):
    update, pixels = Run(("update", (side, side)), rows, updates), Run(("decode_pixels", (side, side)), 1, 1)
    runs = (update, pixels)
    if previews and updates > 1:
        half = updates // 2
        runs = (update._replace(times=half), pixels, update._replace(times=updates - half), pixels)
    return Course(arrival, (Run(ENCODE, rows, 1), *runs), due, **own)


def device(seats: int = 99, space: int = 10**9, begin: int = 0) -> Device:
    return Device(begin, seats, space, takes)


def items(course: Course) -> list[tuple[object, int]]:
    return [run[:2] for run in course.runs for _ in range(run.times)]


def stepwise(courses, plan, at: Device) -> dict[int, int]:
    """When each is complete, one step after the other, as plainly as it can be said."""
    now, seats, space = at.begin, at.seats, at.space
    left = {course.arrival: items(course) for course in courses}
    inside = {course.arrival for course in courses if course.holds}
    ready: dict[int, int] = {}
    for who in [*(who for who, steps in plan for _ in range(steps)), *[set(left)] * 10_000]:
        rows: dict[object, int] = {}
        moving = []
        for course in courses:
            arrival = course.arrival
            if arrival not in who or not left[arrival]:
                continue
            if arrival not in inside:
                if course.seats > seats or course.space > space:
                    continue
                inside.add(arrival)
                seats, space = seats - course.seats, space - course.space
            moving.append(course)
            work, count = left[arrival].pop(0)
            rows[work] = rows.get(work, 0) + count
        now += sum(takes(work, count) for work, count in rows.items())
        for course in moving:
            if not left[course.arrival]:
                ready[course.arrival] = now
                seats, space = seats + course.seats, space + course.space
    return ready


@st.composite
def crowds(draw, most: int = 5, previews: bool = True):
    """Requests with deadlines that are hard to keep, in order of these; some without."""
    courses = []
    for arrival in range(draw(st.integers(1, most))):
        rows, side = draw(st.sampled_from([1, 2])), draw(st.sampled_from([64, 64, 128]))
        shown = draw(st.booleans()) if previews else 0
        course = image(arrival, draw(st.integers(1, 8)), None, rows, side, shown, space=draw(st.integers(1, 3)))
        room = draw(st.none() | st.integers(10, 60))
        due = None if room is None else device().alone(course) * room // 10
        courses.append(replace(course, due=due, holds=draw(st.booleans())))
    return sorted(courses, key=lambda course: (course.due is None, course.due or 0, course.arrival))


# -- what a plan comes to -------------------------------------------------------------------------------------


def test_everyone_together_is_complete_when_the_arithmetic_says() -> None:
    """Deadline - now - remaining x t(batch) - t(decode): two images, the second of which has longer to go."""
    first, second = image(0, 3, 0), image(1, 5, 0)
    found = device(begin=7).follow([first, second])
    both, one, pixels = 1000 + 2 * 500, 1000 + 500, 400 + 300
    after_first = 7 + (100 + 200) + 3 * both + (one + pixels)  # while it is decoded the other is updated
    assert found.ready == {0: after_first, 1: after_first + one + pixels}


@settings(max_examples=60, deadline=None)
@given(
    crowds(), st.lists(st.tuples(st.frozensets(st.integers(0, 4)), st.integers(1, 5)), max_size=6), st.integers(1, 6)
)
def test_a_plan_comes_to_what_its_steps_come_to_one_by_one(courses, plan, room) -> None:
    seats, space = room, 2 * room
    for at in (device(seats=seats, space=space, begin=11),):
        assert at.follow(courses, plan).ready == stepwise(courses, plan, at)


@settings(max_examples=100, deadline=None)
@given(crowds())
def test_what_is_promised_is_complete_in_time_with_every_item_in_its_order(courses) -> None:
    schedule = promise(device(), courses, ())
    if schedule is None:
        return
    assert schedule.keeps(courses)
    for course in courses:
        mine = [
            b.items[course.arrival] for b in schedule.batches for _ in range(b.steps) if course.arrival in b.items
        ]
        assert mine == items(course) or (course.due is None and not mine)
    again = device().follow(courses, schedule.plan)
    assert all(again.ready[course.arrival] == schedule.ready[course.arrival] for course in courses if course.due)


@settings(max_examples=100, deadline=None)
@given(crowds(), st.frozensets(st.integers(0, 4)), st.integers(0, 12), st.integers(2, 5))
def test_a_plan_stays_good_whoever_leaves_and_however_far_it_is(courses, leave, steps, room) -> None:
    """After so many steps some leave; everyone else is still complete in time by what is left of the plan."""
    at = device(seats=room, space=3 * room)
    courses = [replace(course, holds=False) for course in courses]
    schedule = promise(at, courses, ())
    if schedule is None:
        return
    for _ in range(steps):
        if not schedule.batches:
            return
        moving, plan = schedule.moving, next_step(schedule)
        now = at.begin + sum(takes(work, rows) for work, rows in schedule.batches[0].rows().items())
        before = {course.arrival: course for course in courses}
        courses = [
            replace(c, runs=first_item_done(c.runs), holds=True) if c.arrival in moving else c for c in courses
        ]
        holding = [course for course in courses if course.runs and course.holds]
        seats, space = room - len(holding), 3 * room - sum(course.space for course in holding)
        assert all(now <= (before[c.arrival].due or now) for c in courses if not c.runs)
        courses = [course for course in courses if course.runs]
        at = device(seats=seats, space=space, begin=now)
        schedule = at.follow(courses, plan)
        assert schedule.keeps(courses)
    stay = [course for course in courses if course.arrival not in leave]
    freed = [course for course in courses if course.arrival in leave and course.holds]
    at = replace(at, seats=at.seats + len(freed), space=at.space + sum(course.space for course in freed))
    assert at.follow(stay, schedule.plan).keeps(stay)


# -- what is refused ------------------------------------------------------------------------------------------


def test_what_is_refused_could_be_kept_by_no_order_of_steps() -> None:
    """Of these 500 crowds some 120 are refused. To find the order of steps that keeps the most is a hard problem; a
    plan that looks no further than `policy/promises.py` does misses one in a hundred at most."""
    found = random.Random(4)
    refused = wrong = 0
    for _ in range(500):
        courses = []
        for arrival in range(found.randint(2, 4)):
            side = found.choice([64, 64, 64, 128])
            course = image(arrival, found.randint(1, 8), None, found.choice([1, 2]), side)
            courses.append(replace(course, due=int(device().alone(course) * found.uniform(1, 3.5))))
        courses.sort(key=lambda course: course.due or 0)
        if promise(device(), courses, ()) is None:
            refused += 1
            wrong += possible([(items(course), course.due) for course in courses], 0, takes)
    assert refused > 80 and wrong <= refused // 100


def test_a_refusal_says_when_it_would_be_complete_and_when_it_would_alone() -> None:
    first, second = image(0, 5, 9_000_000), image(1, 4, 9_500_000)
    slow = Device(0, 9, 99, lambda work, rows: takes(work, rows) * 1000)
    courses = [first, second]
    assert promise(slow, [first], ()) is not None and promise(slow, courses, ()) is None
    plan = slow.follow([first]).plan
    refusal = too_late(slow, courses, plan, second, arrived=-500_000)
    assert (refusal.rule, refusal.unit, refusal.limit, refusal.alone) == ("deadline", "ms", 10, 8)
    ready = behind(slow, [first], plan, second)
    assert refusal.need == -(-(ready + 500_000) // 1_000_000) == 15  # after the first, which can spare one update
    assert promise(slow, [first, replace(second, due=ready)], plan) is not None


# -- pauses ---------------------------------------------------------------------------------------------------


def test_under_pressure_the_one_with_the_most_slack_pauses_and_the_verdict_has_its_price() -> None:
    alone = device().alone(image(0, 4, None))
    tight, lax = image(0, 4, alone + 1100), image(1, 4, 10 * alone)
    slow = Device(0, 9, 99, lambda work, rows: takes(work, rows) * 1000)
    courses = [replace(tight, due=(alone + 1100) * 1000), replace(lax, due=10 * alone * 1000)]
    schedule = promise(slow, courses, ())
    assert schedule is not None
    paused = [who for who, steps in schedule.plan for _ in range(steps) if 1 not in who]
    together = [who for who, steps in schedule.plan for _ in range(steps) if who == {0, 1}]
    assert len(together) == 3 and len(paused) >= 3  # the encoding and two updates are what the first can spare
    started = slow.follow(courses, [(frozenset({0, 1}), 1), (frozenset({0}), 99)])
    wait = pause(courses, courses[1], started, slow.follow(courses), {0: "tight", 1: "lax"})
    assert (wait.on, wait.rule, wait.unit, wait.by) == ("turn", "deadline", "ms", "tight")
    assert (wait.need, wait.have, wait.short) == (3, 1, 2)  # four updates of 0.5 ms, and 0.3 ms of decoding, of 1 ms
    assert wait.price_ms > 0


def test_an_update_of_another_kind_saves_nothing_and_waits_behind() -> None:
    alone = device().alone(image(0, 4, None))
    schedule = promise(device(), [image(0, 4, alone), image(1, 2, 10**9, side=128)], ())
    assert schedule is not None and schedule.ready[0] == alone
    assert schedule.first[1] > schedule.last[0]


def test_who_lacks_a_seat_or_space_starts_when_one_is_free() -> None:
    holder = image(0, 3, None, seats=1, space=5, holds=True)
    waits = image(1, 1, None, seats=1, space=5)
    alone = device().alone(holder)
    for at in (device(seats=0, space=5), device(seats=1, space=4)):
        assert promise(at, [replace(waits, due=alone + device().alone(waits)), holder], ()) is not None
        assert promise(at, [replace(waits, due=alone + device().alone(waits) - 1), holder], ()) is None


def test_a_promise_that_steps_were_too_slow_for_does_not_cost_the_others_theirs() -> None:
    late, fine = image(0, 4, 10, holds=True), image(1, 4, 40_000, holds=True)
    schedule, lost = hold_on(device(), [late, fine], [(frozenset({0, 1}), 20)])
    assert lost == [late] and schedule.spare(fine) >= 0


def test_an_empty_schedule_is_one() -> None:
    assert Schedule(3, takes).plan == () and not Schedule(3, takes).moving and next_step(Schedule(3, takes)) == ()


# -- steps that take longer than their parts ------------------------------------------------------------------


def test_a_steps_length_beside_other_models_is_learned_with_room_for_what_varies() -> None:
    stretch = Stretch()
    for _ in range(20):
        stretch.note(1.0)
    assert stretch.factor == 1.0
    for _ in range(60):
        stretch.note(2.0)
    steady = stretch.factor
    assert 1.99 < steady < 2.01
    for ratio in (1.5, 2.5) * 30:
        stretch.note(ratio)
    assert stretch.factor > 2.3
