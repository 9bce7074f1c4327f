"""A clock that jumps: forwards by hours, as when a process is stopped and goes on, and backwards, which the monotonic
clock never should. No answer changes, nothing is counted as negative or divided by nothing, and what was measured
across the jump is forgotten, or outweighed, soon: each claim says how soon."""

from __future__ import annotations

import msgspec
import pytest

from headway.core.events import Committed, NoProgress, Outcome, Preempted
from headway.core.recovery import Rates
from headway.core.request import TextRequest
from headway.core.tiers import Backlog
from headway.core.verdict import Wait
from headway.engine.loop import Engine
from headway.front.departures import OVER_S, UNKNOWN_S, Departures
from headway.policy.copies import MOST_NS, CopyBudget
from headway.policy.deadline import FADES, Fastest, LeastWork, soonest_ns
from headway.policy.durations import Durations, Stretch
from headway.policy.progress import APART_NS, TIMES, Repeats, Writes
from headway.policy.recovery import Watch
from headway.policy.reload import BlockSize, Measured, Rate, choose
from headway.story.reduce.recovery import Recovery
from headway.story.sinks.metrics import _Share
from test_known_loops import HANGS, pass_time, reloading, told
from world import World

BLOCK = BlockSize(8, 1)

S, HOUR = 10**9, 3600 * 10**9
JUMPS = pytest.mark.parametrize("jump_ns", [HOUR, 5 * HOUR + 7, -HOUR, -1], ids=["1 h", "5 h", "-1 h", "-1 ns"])


def jump(world: World, ns: int) -> None:
    world.clock._now_ns += ns


def started(**options: object) -> World:
    """A world whose clock can go back by hours without being negative."""
    world = World(**options)
    world.clock.advance(100 * HOUR)
    return world


# -- all of it together ---------------------------------------------------------------------------------------


@JUMPS
@pytest.mark.parametrize("when", ["between steps", "while a step runs"])
def test_whatever_jumps_everyone_is_answered_and_every_account_adds_up(jump_ns, when):
    """`World` checks the identities of space, positions and time after each step."""
    world = started(blocks=20, block_tokens=4, policy="deadline", recovery="auto", host_slots=8, disk_slots=30)
    for i in range(12):
        world.add(f"r{i}", 10 + i, max_tokens=14, deadline_ms=None if i % 3 else 1e9)
        plan = world.engine.plan()
        if when == "while a step runs":
            jump(world, jump_ns)
        world.note(world.engine.commit(world.executor.run(plan)))
        if when == "between steps":
            jump(world, jump_ns)
    world.run()
    assert all(world.said[f"r{i}", 0] == world.expected(f"r{i}", 0, 14) for i in range(12))
    assert any(isinstance(event, Preempted) for event in world.events)


# -- recovery loops -------------------------------------------------------------------------------------------

WELL, LOOPS = Rates(0, 0, 400, 100), Rates(5, 200, 400, 60)


def judged(jumps: dict[int, int]) -> list[object]:
    """Windows without a loop and windows in one, a step each second; before some seconds the clock jumps."""
    watch, news, ahead = Watch(auto=True), [], 100 * HOUR
    for second, rates in enumerate([WELL] * 25 + [LOOPS] * 35 + [WELL] * 40):
        ahead += jumps.get(second, 0)
        prefilled, recomputed = int(rates.prompt - rates.recomputed), int(rates.recomputed)
        told = watch.worked(
            ahead + second * S, prefilled=prefilled, recomputed=recomputed, emitted=int(rates.goodput)
        )
        watch.preempted(int(rates.preempted))
        watch.arrived(400)
        news.append(told)
    return news


@JUMPS
def test_a_recovery_loop_is_judged_by_busy_seconds_so_a_jump_changes_neither_when_nor_what_is_told(jump_ns):
    ns = jump_ns if abs(jump_ns) > S else -HOUR  # within a second, it is the same second
    usual = judged({})
    assert [news.phase for news in usual if news] == ["began", "lasts", "lasts", "lasts", "over"]
    assert judged({7: ns, 31: ns, 32: -ns, 66: ns}) == usual


@JUMPS
def test_rates_and_shares_of_lost_work_are_of_the_latest_seconds_whatever_the_clock_did_before(jump_ns):
    recovery, share, at = Recovery(), _Share(), 100 * HOUR
    for second in range(200):
        at += S + (jump_ns if second == 100 else 0)
        lost = 30 if second < 100 else 0
        outcome = Outcome("a", 0, prefilled=10, decoded=0, recomputed=lost, rejected=0, emitted=1, held=1)
        recovery.fold(Committed(at=at, step=second, model="m", outcomes=(outcome,), forks=(), levels=None))
        share.add(at, lost, 10 + lost)
        if second == 99:
            assert recovery.rates("m") == Rates(0, 30, 40, 1) and share.at(at) == 0.75
    assert recovery.rates("m") == Rates(0, 0, 10, 1) and share.at(at) == 0.0
    assert len(share._seconds) <= 61


# -- no progress ----------------------------------------------------------------------------------------------

SPACE = Wait(on="input", rule="reload", unit="blocks", need=8, have=2, short=6)


def test_of_looks_that_must_be_apart_a_jump_forwards_is_one_and_after_one_backwards_they_are_counted_from_there():
    repeats = Repeats()
    looks = [100, 100 + HOUR, 101 + HOUR, 99 + HOUR + APART_NS, 100 + HOUR + APART_NS]
    assert [repeats.note("a", "a", SPACE, at, APART_NS) for at in looks] == [1, 2, 0, 0, 3]
    repeats = Repeats()
    looks = [HOUR, 100, 99 + APART_NS, 100 + APART_NS, 100 + 2 * APART_NS]
    assert [repeats.note("a", "a", SPACE, at, APART_NS) for at in looks] == [1, 0, 0, 2, 3]


@pytest.mark.parametrize("jump_ns", [HOUR, -HOUR], ids=["1 h", "-1 h"])
def test_a_transfer_that_hangs_is_told_within_a_minute_after_the_jump_and_not_by_the_jump(jump_ns):
    world = reloading(HANGS)
    world.clock.advance(2 * HOUR)
    world.step()  # one jump already, which was one look
    before = len(told(world))
    jump(world, jump_ns if jump_ns < 0 else 0)
    pass_time(world, 28)
    assert not before and not told(world)
    pass_time(world, 34)
    (event,) = told(world)
    assert isinstance(event, NoProgress) and event.times == TIMES


@pytest.mark.parametrize("jump_ns", [HOUR, -HOUR], ids=["1 h", "-1 h"])
def test_a_disk_that_takes_nothing_is_told_within_a_minute_after_the_jump_and_not_by_the_jump(jump_ns):
    writes, at = Writes(), 10 * HOUR
    standing = Backlog("disk", writing=2, queued=3, pinned=2, slots=2, moved=7)
    assert not writes.note(standing, at)
    at += jump_ns
    assert not writes.note(standing, at) and not writes.stuck
    turned = [writes.note(standing, at + second * S) for second in range(1, 62)]
    assert turned.count(True) == 1 and writes.stuck
    assert writes.note(msgspec.structs.replace(standing, moved=8), at - 9 * HOUR) and not writes.stuck


# -- the break-even of reloading --------------------------------------------------------------------------------


@JUMPS
def test_a_step_in_which_the_clock_jumps_measures_no_prefill_and_leaves_the_break_even_as_it_was(jump_ns):
    prompts = {id: list(range(place * 64, place * 64 + 64)) for place, id in enumerate(("a", "b"))}
    world = started(host_slots=40)
    measured = world.model.pattern.tiering._measured
    world.add("a", prompts["a"], max_tokens=1)
    world.run()
    usual = measured.prefill.per_second(world.clock.now_ns())
    world.add("b", prompts["b"], max_tokens=1)
    plan = world.engine.plan()
    result = world.executor.run(plan)
    jump(world, jump_ns if jump_ns > 0 else jump_ns - S)
    world.note(world.engine.commit(result))
    assert usual == pytest.approx(64 / 1.64e-3) and len(measured.prefill._measured) == 1
    if jump_ns > 0:  # an hour later nothing is known, and blocks are reloaded until it is
        assert measured.prefill.per_second(world.clock.now_ns()) is None
        assert choose(4, 0, BLOCK, measured, world.clock.now_ns(), CopyBudget(MOST_NS)).reload


def test_after_a_jump_rates_are_of_what_was_measured_since_then():
    for jump_ns in (HOUR, -HOUR):
        rate, at = Rate(), 10 * HOUR
        for _ in range(9):
            rate.note(at, 1000, S)
        at += jump_ns
        assert rate.per_second(at) is None
        rate.note(at, 30, S)
        assert rate.per_second(at) == pytest.approx(30)
    known = Measured()
    known.reload.note(0, 10, 61 * S)  # the process was stopped while it copied
    assert choose(4, 0, BLOCK, known, 0, CopyBudget(MOST_NS)).bandwidth is None


# -- Retry-After ----------------------------------------------------------------------------------------------


def leave(departures: Departures, from_s: float, seconds: int) -> float:
    """Two requests of ten positions in each second. Returns when that was over."""
    for half in range(2 * seconds):
        departures.leave(from_s + half / 2, 10)
    return from_s + seconds


@pytest.mark.parametrize("jump_s", [3600.0, 20_000.0, -3600.0, -10.0, -1.0])
def test_retry_after_is_right_again_once_thirty_seconds_were_counted_and_never_absurd_before(jump_s):
    departures = Departures()
    now_s = leave(departures, 50_000.0, 60)
    assert departures.wait_s(now_s, requests=20, positions=200) == 10
    now_s += jump_s
    for second in range(OVER_S + 1):
        wait_s = departures.wait_s(now_s, requests=20, positions=200)
        told = f"{wait_s} s, {second} s after the jump"
        assert wait_s == UNKNOWN_S or 10 <= wait_s <= 20 * OVER_S / 2, told
        if jump_s < 0 and second > 1:
            assert wait_s <= 1 + 10 * OVER_S / (OVER_S + max(jump_s, -20)), told
        now_s = leave(departures, now_s, 1)
    assert departures.wait_s(now_s, requests=20, positions=200) == 10
    assert len(departures._seconds) <= OVER_S + 1, "nothing of the future is kept"


def test_a_clock_that_goes_back_before_the_first_departure_measures_from_there():
    departures = Departures()
    departures.leave(9000.0, 10)
    now_s = leave(departures, 100.0, 4)
    assert departures._first_s == 100.0 and departures.wait_s(now_s, requests=20) == 10


# -- deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ns", [-HOUR, -1, 0])
def test_a_step_of_no_time_or_less_is_not_the_fastest(step_ns):
    usual = Fastest().after(10_000, 1, 100).after(60_000, 50, 100)
    assert usual.after(step_ns, 50, 100) == usual and usual.after(step_ns, 1, 100) == usual
    assert Fastest().after(step_ns, 100, 100) == Fastest()


def test_a_first_step_of_hours_is_none_and_one_of_seconds_is_outweighed_by_the_next_even_if_none_is_half_full():
    """Else every request with a deadline would be refused, and no full step would ever come to measure it again."""
    assert Fastest().after(HOUR, 100, 100) == Fastest()
    stopped = Fastest().after(50 * S, 100, 100)
    assert soonest_ns(LeastWork(10, 1), 0, stopped, 100) > 50 * S
    after = stopped.after(20_000, 1, 100)
    assert after == Fastest(20_000, 20_000)
    assert soonest_ns(LeastWork(10, 1), 0, after, 100) == 220_000
    usual = Fastest().after(60_000, 50, 100)
    assert usual.after(60_000, 49, 100) == Fastest(60_000, 1_200.0), "a small step says nothing that a full one did"
    assert usual.after(60_000, 50, 100) == Fastest(60_000, 1_200.0) == Fastest(60_000, min(1_200.0 * FADES, 1_200.0))


@JUMPS
def test_after_a_jump_deadlines_are_refused_and_taken_as_without(jump_ns):
    def asked(jump_ns: int) -> list[str]:
        world = started(policy="deadline", step_tokens=64)
        world.add("before", 64, max_tokens=4)
        plan = world.engine.plan()
        result = world.executor.run(plan)
        jump(world, jump_ns)
        world.note(world.engine.commit(result))
        world.run()
        refused = []
        for place, deadline_ms in enumerate((1, 2, 4, 8, 16, 1000)):
            request = world.add(f"r{place}", 64, max_tokens=8, deadline_ms=deadline_ms)
            refused.append(request.stage.value)
        world.run()
        return refused

    assert asked(jump_ns) == asked(0)
    assert {"refused", "waiting"} <= set(asked(0))


def test_what_arrived_after_now_by_a_clock_that_went_back_has_spent_nothing_yet():
    world = started(policy="deadline", step_tokens=64)
    world.add("before", 64, max_tokens=4)
    world.run()
    late = world.add("late", 64, max_tokens=8, deadline_ms=1, received_at=world.clock.now_ns() + HOUR)
    assert late.stage.value == "refused", "an hour in the future is no hour more to answer in"


@pytest.mark.parametrize("ratio", [1e7, -1e7])
def test_of_how_much_longer_steps_take_one_jump_says_little_and_is_forgotten_within_twenty_steps(ratio):
    stretch = Stretch()
    stretch.note(ratio)
    assert 1 <= stretch.factor < 2.2
    for _ in range(20):
        stretch.note(1.0)
    assert stretch.factor < 1.1
    for _ in range(100):
        stretch.note(40.0)
    assert stretch.factor > 39, "what lasts is learned"


def test_of_what_a_part_of_a_step_takes_one_jump_says_little_and_what_lasts_is_learned():
    durations = Durations()
    for ns in [10_000_000] * 20 + [HOUR]:
        durations.note("update", (64, 64), 2, ns)
    assert durations.ns("update", (64, 64), 2) < 12_000_000
    for _ in range(60):
        durations.note("update", (64, 64), 2, 100_000_000)
    assert durations.ns("update", (64, 64), 2) > 90_000_000
    durations = Durations()
    for ns in (HOUR, 10_000_000):
        durations.note("update", (64, 64), 2, ns)
    assert durations.ns("update", (64, 64), 2) == 10_000_000, "of the first two it is the shorter"


# -- turns of models --------------------------------------------------------------------------------------------


@JUMPS
def test_a_model_in_whose_step_the_clock_jumps_waits_a_minute_for_its_turn_at_most_and_gets_no_more_than_it_is_due(
    jump_ns,
):
    first, other = World(), World()
    first.model.name, other.model.name = "a", "b"
    engine = Engine([first.model, other.model], first.clock)
    other.executor._clock = first.clock
    first.clock.advance(100 * HOUR)
    for world in (first, other):
        world.executor._cost_ns = lambda plan: S
        for i in range(4):
            world.asked[f"{world.model.name}{i}"] = engine.add(
                msgspec.structs.replace(request(f"{world.model.name}{i}"), model=world.model.name)
            )
    plan = engine.plan()
    stepped = engine._flight.model
    result = stepped.executor.run(plan)
    jump(first, jump_ns)
    engine.commit(result)
    turns = [_model_of_step(engine) for _ in range(200)]
    own = [place for place, model in enumerate(turns) if model is stepped]
    assert own[0] <= 61, "it waits a minute of the other's device time"
    late = turns[120:]
    assert abs(late.count(stepped) - len(late) / 2) <= 1


def test_a_model_s_pace_is_that_of_steps_that_took_time_and_its_last_step_was_never_in_the_future():
    """Else others' steps would be as large as the jump allows, or too small, until its steps are forgotten."""
    model = World().model
    for _ in range(5):
        model.spent(10_000_000, 40, 10 * HOUR)
    usual = model.pace(10 * HOUR)
    model.spent(-HOUR, 40, 9 * HOUR)
    assert model.pace(9 * HOUR) == usual
    assert model.pace(8 * HOUR).since_ns == 0


def request(id: str) -> TextRequest:
    return TextRequest(id=id, prompt=(1, 2, 3), max_tokens=500, ignore_eos=True)


def _model_of_step(engine: Engine):
    plan = engine.plan()
    model = engine._flight.model
    engine.commit(model.executor.run(plan))
    engine.check()
    return model
