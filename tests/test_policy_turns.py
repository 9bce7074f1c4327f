"""Who is next and who is preempted, seen from outside: the real engine in small worlds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.engine.planner
from headway.compute.fake import expected_tokens
from headway.core.errors import ConfigError, DuplicateRequest, InvalidRequest
from headway.core.events import Admitted, Finished, Preempted
from headway.core.plan import Draw
from headway.core.request import Stage, TextRequest
from headway.core.verdict import Never
from headway.engine.served import EngineOptions
from headway.policy.order import ORDERS, fcfs
from world import SAMPLED, World


def admitted(world: World) -> list[str]:
    return [event.id for event in world.events if isinstance(event, Admitted)]


# -- order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "abcd"), ("priority", "cbda")])
def test_requests_are_admitted_in_the_order_of_the_policy(policy, order):
    world = World(seats=1, policy=policy)
    for id, number in zip("abcd", (5, 0, -1, 0), strict=True):
        world.add(id, 4, max_tokens=2, priority=number)
    world.run()
    assert "".join(admitted(world)) == order


def test_a_later_request_of_lower_number_goes_first_but_takes_nothing_from_one_that_runs():
    world = World(seats=1, policy="priority")
    world.add("runs", 4, max_tokens=3, priority=9)
    world.step()
    world.add("later", 4, max_tokens=1, priority=5)
    world.add("last", 4, max_tokens=1, priority=1)
    world.run()
    assert admitted(world) == ["runs", "last", "later"]
    assert world.story.record("runs").preemptions == 0


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", ["old", "urgent", "due later", "due"]), ("priority", ["urgent", "old", "due later", "due"]),
     ("deadline", ["due", "due later", "old", "urgent"])],
)  # fmt: skip
def test_each_policy_serves_one_after_another_in_its_order(policy, order):
    world = World(seats=1, step_tokens=64, policy=policy)
    world.add("old", 4, max_tokens=1)
    world.add("urgent", 4, max_tokens=1, priority=-1)
    world.add("due later", 4, max_tokens=1, deadline_ms=200)
    world.add("due", 4, max_tokens=1, deadline_ms=100)
    world.run()
    assert [event.id for event in world.events if isinstance(event, Finished)] == order


def test_decodes_come_before_chunks_and_chunks_before_prompts():
    world = World(seats=4, step_tokens=10)
    world.add("decodes", 4, max_tokens=9)
    world.step()
    world.add("chunks", 15, max_tokens=2)
    world.step()
    world.add("arrives", 15, max_tokens=2)
    world.step()
    members = [(member.id, member.positions) for member in world.steps()[-1].members]
    assert members == [("decodes", 1), ("chunks", 6), ("arrives", 3)]


# -- waits, from the engine ---------------------------------------------------------------------------------


def test_a_request_with_more_sequences_than_free_seats_waits_for_all_of_them():
    world = World(seats=3)
    world.add("a", 4, n=2, max_tokens=9)
    world.add("b", 4, n=2, max_tokens=9)
    world.step()
    wait = world.wait("b")
    assert (wait.on, wait.rule, wait.unit, wait.need, wait.have, wait.short) == ("turn", "seats", "seats", 2, 1, 1)
    assert wait.holders == ()


def test_a_prompt_waits_for_the_budget_that_others_spend():
    world = World(step_tokens=8, seats=4)
    world.add("a", 20, max_tokens=2)
    world.add("b", 20, max_tokens=2)
    world.add("c", 20, max_tokens=2)
    world.step()
    wait = world.wait("b")
    assert (wait.on, wait.rule, wait.unit) == ("turn", "budget", "positions")
    assert (wait.need, wait.have, wait.short) == (1, 0, 1)
    assert world.wait("c").rule == "order"  # whoever is behind is not judged: nothing is left for anyone


def test_a_finished_sequence_gives_back_its_seat_before_its_request_ends():
    world = World(seats=2)
    prompt, second = tuple(range(3)), Draw(1, 0, SAMPLED)
    stop = expected_tokens(prompt, second, 3, world.vocab)[-1]  # ends the second sequence, not the first
    world.add("a", list(prompt), n=2, max_tokens=9, stop_ids=(stop,), sampling=SAMPLED)
    world.add("b", 3, max_tokens=1)
    for _ in range(3):
        world.step()
        assert world.story.record("b").stage is Stage.WAITING
    assert world.finish == {("a", 1): "stop"} and world.story.record("a").stage is Stage.RUNNING
    world.step()
    assert world.story.record("b").stage is Stage.FINISHED


# -- bypass ---------------------------------------------------------------------------------------------------


def blocked_head(max_bypass: int, small: int) -> World:
    """One request runs, a large one cannot join it, and `small` small ones stand behind."""
    world = World(blocks=20, block_tokens=4, seats=8, max_bypass=max_bypass)
    world.add("runs", 20, max_tokens=50)
    world.step()
    world.add("large", 60, max_tokens=1)  # 16 blocks; 14 are left
    for i in range(small):
        world.add(f"s{i}", 3, max_tokens=1)
    return world


@pytest.mark.parametrize("max_bypass", [0, 1, 3, 7])
def test_a_blocked_head_is_overtaken_at_most_max_bypass_times_then_nobody_passes(max_bypass):
    world = blocked_head(max_bypass, small=10)
    while world.story.record("large").stage is Stage.WAITING:
        world.step()
    before = admitted(world)[: admitted(world).index("large")]
    assert before == ["runs", *(f"s{i}" for i in range(max_bypass))]
    world.run()
    assert len(admitted(world)) == 12


def test_the_count_of_the_overtaken_stays_with_the_head_from_step_to_step():
    world = blocked_head(max_bypass=3, small=2)
    head = world.engine.requests["large"]
    world.step()
    assert head.overtaken == 2
    world.add("t0", 3, max_tokens=1)
    world.add("t1", 3, max_tokens=1)
    world.step()
    assert head.overtaken == 3
    world.step()
    assert head.overtaken == 3 and world.story.record("t1").stage is Stage.WAITING
    assert world.wait("t1").rule == "order"  # nothing is short for it but its turn
    assert world.wait("large").rule == "blocks"


def test_a_later_head_does_not_inherit_the_count_and_the_first_one_keeps_its():
    """Under priority a new head may come to stand before a blocked one."""
    world = World(blocks=20, block_tokens=4, seats=8, max_bypass=2, policy="priority")
    world.add("runs", 20, max_tokens=12, priority=0)
    world.step()
    world.add("old", 60, max_tokens=1, priority=5)
    world.add("s0", 3, max_tokens=1, priority=6)
    world.step()
    world.add("new", 60, max_tokens=1, priority=1)
    world.add("s1", 3, max_tokens=1, priority=6)
    world.step()
    requests = world.engine.requests
    assert (requests["old"].overtaken, requests["new"].overtaken) == (1, 1)
    assert world.steps()[-1].head == "new"
    world.run()
    assert admitted(world) == ["runs", "s0", "s1", "new", "old"]


def test_a_small_request_behind_several_blocked_ones_is_still_found():
    world = World(blocks=20, block_tokens=4, seats=8, max_bypass=3)
    world.add("runs", 20, max_tokens=50)
    world.step()
    for id in ("l0", "l1", "l2"):
        world.add(id, 60, max_tokens=1)
    world.add("small", 3, max_tokens=1)
    world.step()
    assert world.story.record("small").stage is Stage.FINISHED
    assert set(world.steps()[-1].waits) == {"l0", "l1", "l2"}
    assert [world.engine.requests[id].overtaken for id in ("l0", "l1", "l2")] == [1, 0, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 4), st.integers(6, 14), st.sampled_from(["fcfs", "priority"]),
    st.lists(st.tuples(st.integers(1, 22), st.integers(1, 8), st.integers(0, 1), st.integers(0, 2)),
             min_size=3, max_size=14),
)  # fmt: skip
def test_however_they_arrive_no_more_than_max_bypass_pass_a_head(max_bypass, blocks, policy, arrivals):
    """Counted from the story alone: admissions between a request's becoming the blocked head and its own."""
    world = World(blocks=blocks, block_tokens=2, seats=4, step_tokens=16, max_bypass=max_bypass, policy=policy)
    passed: dict[str, int] = {}
    orders: dict[str, tuple[int, ...]] = {}

    def step() -> None:
        told = len(world.events)
        world.step()
        if len(world.events) == told:
            return  # nothing was alive
        step = world.steps()[-1]
        joined = [event.id for event in world.events[told:] if isinstance(event, Admitted)]
        for id in joined:
            passed.pop(id, None)
        if step.head is not None:
            later = [id for id in joined if orders[id] > orders[step.head]]
            passed[step.head] = passed.get(step.head, 0) + len(later)
            assert passed[step.head] <= max_bypass

    for i, (prompt, emits, number, gap) in enumerate(arrivals):
        request = world.add(f"r{i}", prompt, max_tokens=emits, priority=number)
        orders[request.id] = world.model.queues.order(request)
        for _ in range(gap):
            step()
    while world.engine.requests:
        step()


def test_ten_thousand_waiting_requests_cost_a_step_nothing(monkeypatch):
    """What is counted is judgements, quotes and orders asked for, not time."""
    count = {"judge": 0, "quote": 0, "order": 0}
    judge = headway.engine.planner.judge

    def counted(*args):
        count["judge"] += 1
        return judge(*args)

    def order(request):
        count["order"] += 1
        return fcfs(request)

    monkeypatch.setattr(headway.engine.planner, "judge", counted)
    monkeypatch.setitem(ORDERS, "fcfs", order)
    world = World(blocks=20, block_tokens=4, seats=8, max_bypass=32)
    quote = world.model.pattern.memory.quote

    def quoted(sequences, **more):
        count["quote"] += 1
        return quote(sequences, **more)

    monkeypatch.setattr(world.model.pattern.memory, "quote", quoted)
    world.add("runs", 20, max_tokens=30)
    world.engine.step()
    for i in range(10_000):
        world.engine.add(TextRequest(id=f"w{i}", prompt=tuple(range(60)), max_tokens=1))
    for _ in range(3):
        count.update(judge=0, quote=0, order=0)
        world.engine.step()
        assert count == {"judge": 33, "quote": 33, "order": 1}  # the head and 32 behind it; the one that runs
        step = world.steps()[-1]
        assert len(step.waits) == 33 and step.waiting == 10_000
    assert world.wait("w33").rule == world.wait("w9999").rule == "order"
    assert world.story.ahead(world.story.record("w9999")) == 9_999


# -- preemption -----------------------------------------------------------------------------------------------


def crowd(numbers: dict[str, int], **options: object) -> World:
    """Each of these holds two of the pool's blocks, all full but for one position; the next step is short."""
    world = World(blocks=2 * len(numbers), block_tokens=4, seats=8, prefix_cache=False, **options)
    for id, number in numbers.items():
        world.add(id, 7, max_tokens=9, priority=number)
    world.step()
    world.step()
    assert world.pool.free == 0
    return world


def preempted(world: World) -> list[tuple[str, str]]:
    """Who was, and by whom."""
    return [(event.id, event.by) for event in world.events if isinstance(event, Preempted)]


def test_under_priority_the_victim_has_the_largest_number():
    world = crowd({"a": 1, "b": 9, "c": 0}, policy="priority")
    world.step()
    assert preempted(world) == [("b", "c")]


def test_under_fcfs_the_victim_is_the_newest_whatever_its_number():
    world = crowd({"a": 1, "b": 9, "c": 0}, policy="fcfs")
    world.step()
    assert preempted(world) == [("c", "a")]


def test_among_equals_the_victim_is_the_newest():
    world = crowd({"a": 1, "b": 1, "c": 1})
    world.step()
    assert preempted(world) == [("c", "a")]


def test_the_last_in_order_that_lacks_a_block_is_preempted_itself():
    world = World(blocks=4, block_tokens=4, seats=8, prefix_cache=False)
    world.add("old", 4, max_tokens=9)
    world.add("new", 7, max_tokens=9)
    world.step()
    world.step()
    assert world.pool.free == 0
    world.step()  # old has room in its second block; new needs a third
    assert preempted(world) == [("new", "new")]
    assert world.spent(3, "old") == 1
    world.run()
    assert world.said["new", 0] == world.expected("new", 0, 9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(8, 20), st.booleans(), st.sampled_from(["fcfs", "priority"]),
    st.lists(st.tuples(st.integers(1, 10), st.integers(2, 12), st.integers(0, 2), st.integers(0, 2)),
             min_size=2, max_size=8),
)  # fmt: skip
def test_a_request_never_preempts_one_before_it_and_the_first_keeps_what_it_has(blocks, cache, policy, asks):
    """Under fcfs the older one is before, whatever its number; under priority the one of the smaller number, then the
    older one. So of a chain of preemptions in one step, each takes the last that still runs."""
    world = World(blocks=blocks, block_tokens=2, seats=4, step_tokens=16, prefix_cache=cache, policy=policy)
    places: dict[str, tuple[int, int]] = {}
    running: set[str] = set()
    seen = 0

    def step() -> None:
        nonlocal seen
        world.step()
        for event in world.events[seen:]:
            match event:
                case Admitted():
                    running.add(event.id)
                case Finished():
                    running.discard(event.id)
                case Preempted():
                    assert places[event.id] >= places[event.by]
                    assert event.id == max(running, key=places.__getitem__)
                    assert len(running) > 1, "the only one that runs was preempted"
                    running.discard(event.id)
        seen = len(world.events)

    for i, (prompt, emits, number, gap) in enumerate(asks):
        places[f"r{i}"] = (number if policy == "priority" else 0, i)
        world.add(f"r{i}", prompt, max_tokens=emits, priority=number)
        for _ in range(gap):
            step()
    while world.engine.requests:
        step()


def test_a_preempted_request_returns_to_its_old_place_in_the_queue():
    world = crowd({"a": 0, "b": 0, "c": 0})
    world.add("later", 7, max_tokens=2)
    world.step()
    assert preempted(world)[0][0] == "c"
    assert [request.id for request in world.model.queues.waiting.upcoming()] == ["c", "later"]
    world.run()
    assert all(world.said[id, 0] == world.expected(id) for id in ("a", "b", "c", "later"))


def test_what_a_victim_loses_is_told_and_counted():
    world = crowd({"a": 0, "b": 0, "c": 0})
    victim = world.engine.requests["c"]
    world.step()
    event = next(event for event in world.events if isinstance(event, Preempted))
    assert sum(event.lost) == victim.progress.sequences[0].counts.lost == 8


# -- never, from the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "verdict"),
    [
        ({"n": 3, "max_tokens": 2}, Never("seats", "seats", 3, 2, "--seats")),
        ({"max_tokens": 91}, Never("context", "positions", 101, 100, "--max-context")),
        ({"max_tokens": 31}, Never("pool", "blocks", 11, 10, "--memory")),
        ({"n": 2, "max_tokens": 17}, Never("pool", "blocks", 12, 10, "--memory")),
    ],
)
def test_the_engine_refuses_at_once_what_can_never_be_served(ask, verdict):
    world = World(blocks=10, block_tokens=4, seats=2, max_context=100)
    request = world.add("a", 10, **ask)
    assert request.stage is Stage.REFUSED and request.verdict == verdict
    assert not world.engine.requests and world.story.record("a").verdict == verdict


@pytest.mark.parametrize("ask", [{"max_tokens": 30}, {"n": 2, "max_tokens": 14}, {"n": 2}, {}])
def test_and_serves_what_just_fits_to_its_last_token(ask):
    world = World(blocks=10, block_tokens=4, seats=2, max_context=100)
    request = world.add("a", 10, **ask)
    world.run()
    assert request.stage is Stage.FINISHED
    assert all(sequence.emitted == request.progress.max_tokens for sequence in request.progress.sequences)
    assert request.progress.max_tokens == (14 if "n" in ask else 30)  # without max_tokens: what fits


def test_without_max_tokens_the_context_bounds_the_answer_too():
    world = World(blocks=100, block_tokens=4, max_context=50)
    request = world.add("a", 10)
    world.run()
    assert request.progress.sequences[0].emitted == 40 and request.progress.sequences[0].finish == "length"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"prompt": ()}, "prompt", "at least one token is required"),
        ({"prompt": (0, 10)}, "prompt", "token ids must be from 0 to 9; .*prompt has 0 to 10"),
        ({"prompt": (-1, 3)}, "prompt", "token ids must be from 0 to 9; .*prompt has -1 to 3"),
        ({"n": 0}, "n", "n is 0; it must be from 1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be from 1"),
    ],
)
def test_what_means_nothing_is_told_by_its_field_and_leaves_no_trace(fields, field, words):
    world = World(vocab=10)
    with pytest.raises(InvalidRequest, match=words) as raised:
        world.engine.add(TextRequest(**{"id": "a", "prompt": (0, 9), **fields}))
    assert raised.value.field == field
    assert not world.events and not world.engine.requests


def test_a_live_id_is_not_given_twice_and_an_ended_one_may_come_back():
    world = World()
    world.add("a", 4, max_tokens=1)
    with pytest.raises(DuplicateRequest):
        world.engine.add(TextRequest(id="a", prompt=(1,)))
    world.run()
    world.add("a", 4, max_tokens=1)
    world.run()
    assert world.story.record("a").stage is Stage.FINISHED


def test_an_engine_with_more_seats_than_positions_is_refused_as_every_sequence_decodes_one_in_each_step():
    with pytest.raises(ConfigError, match="--seats: 9 seats need as many positions; a step has 8"):
        EngineOptions(seats=9, step_tokens=8)
    world = World(seats=8, step_tokens=8)
    world.add("a", 3, n=8, max_tokens=4, sampling=SAMPLED)
    world.run()
    assert [sum(member.positions for member in step.members) for step in world.steps()] == [3, 8, 8, 8]
