"""Orders: deadlines that cannot be met are refused at once, and shares are fair among callers."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_server import fake_serving
from headway.artifacts.files import ModelFiles
from headway.core.events import Admitted
from headway.core.request import Request, Stage
from headway.core.verdict import Never
from headway.engine.line import _RUN as RUN
from headway.engine.line import CostedLine
from headway.policy import fair
from headway.policy.admit import LEAST_HISTORY
from headway.policy.deadline import FADES, Fastest, LeastWork, soonest_ns, too_late
from headway.policy.fair import MOST_IDLE, OUTPUT_WEIGHT, Counters
from headway.policy.order import deadline
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from world import World

# -- deadlines: the pure functions ----------------------------------------------------------------------------


def test_only_steps_that_are_at_least_half_full_tell_what_a_position_takes():
    fastest = Fastest().after(10_000, 1, 100)
    assert fastest == Fastest(10_000, 0.0)
    assert fastest.after(60_000, 50, 100) == Fastest(10_000 * FADES, 1_200.0)


def test_what_was_fastest_fades_so_that_a_slower_machine_is_believed_in_time():
    fastest = Fastest().after(1_000, 100, 100)
    for _ in range(500):
        fastest = fastest.after(50_000, 100, 100)
    assert fastest == Fastest(50_000, 500.0)


def test_the_estimate_is_the_prompts_ahead_and_its_own_then_a_step_for_each_further_token():
    fastest = Fastest(step_ns=1_000, unit_ns=100)
    assert soonest_ns(LeastWork(200, 9), 80, fastest, 64) == 280 * 100 + 9 * 1_000
    assert soonest_ns(LeastWork(200, 9), 0, Fastest(step_ns=10_000), 64) == 4 * 10_000 + 9 * 10_000
    assert soonest_ns(LeastWork(200, 9), 50, Fastest(), 64) == 0


def test_what_cannot_be_in_time_is_never_with_the_estimate_and_what_its_deadline_leaves():
    assert too_late(5_000_000, 5.0) is None
    assert too_late(5_400_000, 5.2) == Never("deadline", "ms", 6, 5, None)
    assert too_late(1, -3.0) == Never("deadline", "ms", 1, 0, None)


# -- deadlines in the engine ----------------------------------------------------------------------------------


def warmed(**options: object) -> World:
    """A world whose steps were measured: 1 ms, and 10 µs for each position."""
    world = World(policy="deadline", step_tokens=64, block_tokens=4, prefix_cache=False, **options)
    world.add("first", 200, max_tokens=3)
    world.run()
    return world


def test_before_anything_is_measured_nothing_is_refused():
    world = World(policy="deadline")
    assert world.add("a", 500, max_tokens=500, ignore_eos=True, deadline_ms=0.5).stage is Stage.WAITING


def test_what_is_hopeless_is_refused_at_once_and_why_says_what_it_would_take():
    world = warmed()
    request = world.add("late", 10, max_tokens=50, ignore_eos=True, deadline_ms=20)
    assert request.stage is Stage.REFUSED and isinstance(request.verdict, Never)
    assert (request.verdict.rule, request.verdict.unit, request.verdict.limit) == ("deadline", "ms", 20)
    need = request.verdict.need
    assert 49 <= need <= 52
    assert tell(request_view(world.story, world.story.record("late"), 0))[0] == (
        f"late was refused: it would be complete {need} ms after its arrival at the earliest, "
        "and its deadline is 20 ms."
    )
    assert world.add("short", 10, max_tokens=50, deadline_ms=20).stage is Stage.WAITING  # it may end by itself


def test_time_since_the_arrival_counts_against_the_deadline():
    world = warmed()
    arrived = world.clock.now_ns()
    fields = {"max_tokens": 10, "ignore_eos": True, "deadline_ms": 20, "received_at": arrived}
    assert world.add("in time", 10, **fields).stage is Stage.WAITING
    world.clock.advance(15_000_000)
    late = world.add("late", 10, **fields)
    assert late.stage is Stage.REFUSED and isinstance(late.verdict, Never)
    assert late.verdict.limit == 20 and 24 <= late.verdict.need <= 27  # 15 ms are over, and it takes some ten


def test_those_with_earlier_deadlines_count_and_those_with_later_ones_do_not():
    world = warmed(seats=1, blocks=1000)
    world.add("runs", 4, max_tokens=200, ignore_eos=True)
    world.step()

    def added(id: str, prompt: int, deadline_ms: float) -> Never | None:
        refusal = world.add(id, prompt, max_tokens=1, deadline_ms=deadline_ms).verdict
        assert refusal is None or isinstance(refusal, Never)
        return refusal

    assert added("later", 3000, 90_000) is None and added("never due", 3000, None) is None
    assert added("soon", 10, 5) is None and added("sooner", 3000, 80) is None and added("behind", 10, 81) is None
    each_ms = world.model.fastest.unit_ns / 1e6
    assert added("too much", 1000, 82) == Never("deadline", "ms", round(4020 * each_ms), 82, None)
    assert added("refused ones do not count", 100, 82) is None
    world.engine.cancel("sooner")
    assert added("nor cancelled ones", 2900, 82) is None
    assert added("too much", 1000, 82) == Never("deadline", "ms", round(4020 * each_ms), 82, None)


def test_once_answers_have_ended_their_length_is_expected():
    world = warmed()
    for _ in range(LEAST_HISTORY):
        world.model.answers.add(100)
    assert world.add("a", 10, max_tokens=400, deadline_ms=50).stage is Stage.REFUSED
    assert world.add("b", 10, max_tokens=20, deadline_ms=50).stage is Stage.WAITING


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 150), st.integers(1, 30), st.integers(1, 90)), min_size=1, max_size=6))
def test_whatever_is_refused_would_not_have_been_in_time(asked):
    """The same load is served by a twin that knows no rates: there the refused one is late."""
    world, twin = warmed(), World(policy="deadline", step_tokens=64, block_tokens=4, prefix_cache=False)
    twin.clock.advance(world.clock.now_ns())
    for i, (prompt, emits, due) in enumerate(asked):
        fields = {"max_tokens": emits, "ignore_eos": True, "deadline_ms": due}
        ours = world.add(f"r{i}", prompt, **fields)
        twin.add(f"r{i}", prompt, **fields)
        if ours.stage is Stage.REFUSED:
            twin.run()
            record = twin.story.record(f"r{i}")
            assert record.ended_at is not None and record.ended_at > record.deadline_at
            return
    world.run()


def test_a_deadline_that_cannot_be_met_is_a_422_with_the_estimate(smollm2: ModelFiles):
    with fake_serving(smollm2, policy="deadline") as server:
        assert server.complete("Hello", max_tokens=8).status_code == 200
        refused = server.complete("Hello", max_tokens=8, ignore_eos=True, deadline_ms=0.001)
        assert refused.status_code == 422 and "headway-ignored" not in refused.headers
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("deadline", "deadline_ms")
        assert "ms after the request's arrival at the earliest" in error["message"]
        assert server.sample('headway_requests_refused_total{reason="deadline"}') == 1
        assert server.complete("Hello", max_tokens=8, deadline_ms=60_000).status_code == 200
        assert server.complete("Hello", max_tokens=8, deadline_ms=0).status_code == 400


PLACES = st.tuples(
    st.sampled_from(["add", "remove", "ask"]), st.integers(0, 40), st.integers(0, 50), st.integers(0, 99)
)


@settings(max_examples=40, deadline=None)
@given(st.lists(PLACES, max_size=60), st.integers(1, 9), st.integers(0, 150))
def test_what_waits_ahead_of_a_place_costs_the_sum_of_all_who_do(moves, times, before):
    """Whatever came and went, with as many as fill several runs."""
    line, arrivals = CostedLine(deadline), count(1)

    def newcomer(due: int, cost: int) -> Request:
        arrival = next(arrivals)
        return Request(f"r{arrival}", "m", 0, arrival, positions=1, seats=1, deadline_at=due or None, cost=cost)

    there: list[Request] = []
    for i in range(before):
        there.append(newcomer(i * 7 % 41, i))
        line.add(there[-1])
    for move, due, cost, which in moves * times:
        if move == "add":
            there.append(newcomer(due, cost))
            line.add(there[-1])
        elif move == "remove" and there:
            line.remove(there.pop(which % len(there)))
        place = deadline(newcomer(due, cost))
        assert line.cost_before(place) == sum(other.cost for other in there if deadline(other) < place)
    assert list(line.upcoming()) == sorted(there, key=deadline)
    runs = [len(run) for run in line._runs]
    assert all(left + right > RUN for left, right in pairwise(runs)) and max(runs, default=0) <= 2 * RUN


def removed(order: str, length: int) -> list[int]:
    """Places, each of those that are still there, in some order."""
    seeded = Random(7)
    place = {
        "from the front": lambda left: 0,
        "from the back": lambda left: left - 1,
        "from the middle": lambda left: left // 2,
        "at random": lambda left: seeded.randrange(left),
    }[order]
    return [place(left) for left in range(length, 0, -1)]


@pytest.mark.parametrize("order", ["from the front", "from the back", "from the middle", "at random"])
def test_a_line_of_costs_that_empties_is_right_at_every_place_and_keeps_its_runs_few(order):
    line = CostedLine(deadline)
    there = [
        Request(f"r{i}", "m", 0, i, positions=1, seats=1, deadline_at=1000 + 7 * i % 401, cost=1 << (i % 60))
        for i in range(5 * RUN)
    ]
    for request in there:
        line.add(request)
    there.sort(key=deadline)
    for which in removed(order, len(there)):
        line.remove(there.pop(which))
        for place in (0, len(there) // 3, len(there) - 1):
            if there:
                assert line.cost_before(deadline(there[place])) == sum(each.cost for each in there[:place])
        assert line.cost_before((2,)) == sum(each.cost for each in there), "ahead of whoever comes after all"
        assert line.cost_before((0,)) == 0 and len(line) == len(there)
        runs = [len(run) for run in line._runs]
        assert all(left + right > RUN for left, right in pairwise(runs)) and max(runs, default=0) <= 2 * RUN


# -- fair shares ----------------------------------------------------------------------------------------------


def test_who_was_idle_starts_level_with_the_busy_caller_that_had_least():
    counters = Counters()
    for caller in ("a", "b"):
        counters.come(caller)
    counters.charge("a", 70)
    counters.charge("b", 50)
    counters.come("c")
    assert counters["c"] == 50
    counters.leave("b")
    counters.charge("c", 100)
    counters.come("b")
    assert counters["b"] == 70  # not what it saved by being away
    for caller in ("a", "b", "c"):
        counters.leave(caller)
    assert counters["a"] == counters["c"] == 0


class Plainly:
    """The counters as they are defined, each found by looking at all."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}
        self.live = Counter[str]()

    def come(self, caller: str) -> None:
        if not self.live[caller]:
            least = min((self.served[other] for other in +self.live), default=0)
            self.served[caller] = max(self.served.pop(caller, 0), least)
        self.live[caller] += 1

    def leave(self, caller: str, most_idle: int) -> None:
        self.live[caller] -= 1
        if not +self.live:
            self.served.clear()
        elif len(self.served) > len(+self.live) + most_idle:
            del self.served[next(other for other in self.served if not self.live[other])]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["come", "come", "leave", "charge"]), st.integers(0, 7), st.integers(0, 9))),
    st.integers(1, 4),
)
def test_counters_kept_in_heaps_are_those_that_are_found_by_looking_at_all(moves, times):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair, "MOST_IDLE", 2)
        patch.setattr(fair, "_LEFT_BEHIND", 1)
        counters, plainly = Counters(), Plainly()
        for move, who, tokens in moves * times:
            caller = f"c{who}"
            if move == "come":
                counters.come(caller)
                plainly.come(caller)
            elif plainly.live[caller] and move == "leave":
                counters.leave(caller)
                plainly.leave(caller, fair.MOST_IDLE)
            elif plainly.live[caller]:
                counters.charge(caller, tokens)
                plainly.served[caller] += tokens
            assert counters._served == plainly.served


def test_a_caller_that_comes_and_goes_leaves_nothing_behind_in_a_heap():
    counters = Counters()
    counters.come("stays")
    for _ in range(1000):
        counters.come("busy")
        counters.charge("busy", 5)
        counters.leave("busy")
    assert max(len(counters._least._heap), len(counters._idle._heap)) <= 2 + fair._LEFT_BEHIND + 2


def test_callers_that_come_once_are_not_remembered_for_ever():
    counters = Counters()
    counters.come("stays")
    for i in range(MOST_IDLE + 50):
        counters.come(f"c{i}")
        counters.leave(f"c{i}")
    assert len(counters._served) <= MOST_IDLE + 1


def admitted(world: World) -> list[str]:
    return [event.id for event in world.events if isinstance(event, Admitted) and not event.resumed]


def test_a_caller_that_sends_a_few_is_not_behind_all_of_one_that_sends_many():
    world = World(policy="fair", seats=1)
    for i in range(20):
        world.add(f"many{i}", 10, max_tokens=5, caller="m")
    for i in range(3):
        world.add(f"few{i}", 10, max_tokens=5, caller="f")
    world.run()
    assert sorted(id[0] for id in admitted(world)[:6]) == ["f", "f", "f", "m", "m", "m"]


@pytest.mark.parametrize("weight", [1, 3])
def test_shares_count_tokens_not_requests(weight):
    """Of two callers with as many requests, one gets answers `weight` times as long: it has a turn as much rarer."""
    world = World(policy="fair", seats=1)
    each = 40
    for i in range(12):
        world.add(f"a{i}", 1, max_tokens=each * weight, caller="long")
        world.add(f"b{i}", 1, max_tokens=each, caller="short")
    served = {"a": 0, "b": 0}
    while min(map(sum, ([id[0] == name for id in admitted(world)] for name in "ab"))) < 12 // weight:
        for emission in world.step():
            served[emission.id[0]] += OUTPUT_WEIGHT * len(emission.tokens)
    assert abs(served["a"] - served["b"]) <= OUTPUT_WEIGHT * each * weight + each


def test_a_blocked_request_is_overtaken_no_more_often_than_the_bound_whoever_had_less():
    """The large one is first when it comes, and does not fit beside those who run; others, who had less by then, come
    again and again."""
    world = World(policy="fair", blocks=10, block_tokens=4, seats=4, max_bypass=2, prefix_cache=False)
    world.add("holds", 15, max_tokens=20, caller="h")
    world.step()
    world.add("large", 30, max_tokens=2, caller="l")
    for i in range(8):
        world.add(f"small{i}", 3, max_tokens=4, caller=f"s{i}")
    world.run()
    order = admitted(world)
    assert sum(id.startswith("small") for id in order[: order.index("large")]) == 2


def test_a_callers_name_is_its_user_and_without_it_its_salt(smollm2: ModelFiles):
    with fake_serving(smollm2, policy="fair") as server:
        given = {"max_tokens": 1, "priority": 2}
        assert server.complete("a", user="u", **given).headers["headway-ignored"] == "priority"
        assert server.complete("a", cache_salt="s", max_tokens=1).status_code == 200
        assert server.complete("a", user=7, max_tokens=1).json()["error"]["param"] == "user"
    with fake_serving(smollm2, policy="fcfs") as server:
        assert server.complete("a", user={"any": 1}, max_tokens=1).headers["headway-ignored"] == "user"
