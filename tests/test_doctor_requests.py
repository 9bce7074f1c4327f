"""What `headway doctor` finds about requests: work that was spared nowhere, refusals, and time beside the steps."""

from __future__ import annotations

import pytest

from headway.compute.fake import expected_tokens
from headway.core.events import Arrived, TurnedAway
from headway.core.plan import Draw, Grammar, Sampling
from headway.patterns.text import begin
from headway.story.diagnose.findings import duration, named, size
from headway.story.diagnose.findings.callers import REFUSALS
from headway.story.diagnose.observations import Observations
from headway.story.sinks.metrics import REFUSALS as REASONS
from served import MS, Served, one_by_one, only, served
from test_story_records import Hopeless

# -- prefixes and drafts --------------------------------------------------------------------------------------

SYSTEM = list(range(150))


def test_prompts_that_begin_alike_with_reuse_off():
    prompts = [[*range(80), 500 + i, 3] for i in range(6)]
    found = only(one_by_one(Served(prefix_cache=False), prompts))
    assert found.says == (
        "Prefix caching is off, and 5 prompts began like an earlier one: at least 320 of 492 prompt positions were "
        "computed again."
    )
    assert found.next == "serve without --no-prefix-cache"
    apart = [[*range(80 * i, 80 * i + 80)] for i in range(6)]
    assert one_by_one(Served(prefix_cache=False), apart).findings() == {}
    assert one_by_one(Served(), prompts).findings() == {}


def test_prefixes_that_were_evicted():
    prompts = [list(range(200 * (i % 3), 200 * (i % 3) + 150)) for i in range(9)]
    found = only(one_by_one(Served(blocks=12), prompts))
    assert found.says == (
        "6 prompts began with a prefix that had been evicted: up to 894 of 1350 prompt positions were computed "
        "again. 78 blocks were evicted from a pool of 12."
    )
    assert found.next == "raise --memory (now 12 blocks) so that prefixes stay cached"
    assert one_by_one(Served(blocks=40), prompts).findings() == {}


def test_a_date_in_the_system_prompt_that_keeps_the_rest_from_being_reused():
    dated = [[*SYSTEM[:17], 600 + i, *SYSTEM[18:]] for i in range(6)]
    found = only(one_by_one(Served(), dated))
    assert found.says == (
        "5 prompts differ from an earlier one in a few tokens, 5 of them at position 17, and then continue like it: "
        "up to 660 of 815 prompt positions were computed again."
    )
    assert found.next == "move what changes (a date, a name, an id at position 17) after what stays the same"
    assert found.but == "More --memory would not help: nothing was evicted."


def test_prompts_that_go_on_differently_are_not_asked_to_move_anything():
    questions = [[*SYSTEM[:17], *range(200 + 100 * i, 300 + 100 * i)] for i in range(6)]
    world = one_by_one(Served(), questions)
    assert world.story.record("r3").miss.why == "differs"
    assert world.findings() == {}


def test_a_salt_for_every_request():
    found = only(one_by_one(Served(), [SYSTEM] * 6, salt=lambda i: f"s{i}"))
    assert found.says == (
        "6 of 6 requests had a cache_salt of their own, so none of them could reuse a prefix that another one "
        "computed. The cost is not known: prompts are not compared across salts."
    )
    assert found.next.startswith("send one cache_salt for all requests that may share")
    assert one_by_one(Served(), [SYSTEM] * 6, salt=lambda i: "tenant").findings() == {}


def test_drafts_that_are_wrong():
    world = Served(drafters=lambda new: Hopeless())
    for i in range(3):
        world.add(f"r{i}", 10, max_tokens=30)
    world.run()
    found = only(world)
    counts = world.seen().counts
    drafted = counts["accepted"] + counts["rejected"]
    assert found.name == "drafts" and drafted > 64
    assert found.says == (
        f"{counts['accepted']} of {drafted} drafted tokens were accepted ({counts['accepted'] / drafted:.0%}); "
        f"{counts['rejected']} positions were evaluated for nothing, and drafts paused {drafted} times."
    )
    assert found.next == 'serve with --draft none, or send "draft": "none" with such requests'


def test_drafts_that_are_right():
    prompt = list(range(10))
    answer = [*prompt, *expected_tokens(prompt, Draw(0, 0, Sampling()), 90, 997)]
    world = Served(drafter=lambda tokens: answer[len(tokens) : len(tokens) + 3])
    world.add("a", prompt, max_tokens=90)
    world.run()
    assert world.seen().counts["accepted"] >= 64
    assert world.findings() == {}


# -- callers --------------------------------------------------------------------------------------------------


def test_every_reason_to_refuse_has_its_words():
    assert REFUSALS.keys() == set(REASONS)


@pytest.mark.parametrize("reason", [*REASONS, "something new"])
def test_requests_that_were_turned_away(reason):
    world = served(1, 5, 3)
    world._emit(TurnedAway(at=world.clock.now_ns(), counts={reason: 4}))
    found = only(world)
    why, next = REFUSALS.get(reason, (reason, "read the errors: each says what was wrong"))
    assert (found.says, found.next) == (f"4 requests were refused: 4 because {why}.", next)
    assert found.lost == 4 and found.evidence == {reason: 4}
    assert bool(found.but) == (reason == "queue")
    if reason == "queue":
        assert found.but.startswith("A longer queue (--max-waiting) would not help if requests arrive faster than ")


def test_requests_that_the_engine_refuses_are_counted_with_them():
    world = served(1, 5, 3, blocks=10)
    world.add("large", 400)
    assert only(world).says == "1 request was refused: 1 because they could never fit in the pool (400)."


@pytest.mark.parametrize(("limit", "next"), [
    ({"model_context": 100}, "send shorter prompts, or ask for fewer max_tokens"),
    ({"max_context": 100}, "raise --max-context, or send shorter prompts, or ask for fewer max_tokens"),
])  # fmt: skip
def test_an_option_is_named_only_where_it_raises_the_context(limit, next):
    world = served(1, 5, 3, **limit)
    world.add("large", 400)
    assert only(world).says == "1 request was refused: 1 because they exceeded the maximum context length (400)."
    assert only(world).next == next


def test_grammars_that_fail_are_told_from_other_failures():
    world = Served()
    world.add("bad", 5, grammar=Grammar("json"))
    world.engine.fail("bad", "the schema has no type.")
    found = only(world)
    assert found.says == "1 request failed because of its grammar (bad); once: the schema has no type."
    assert found.next == "correct that schema or grammar" and found.lost == 1
    world.add("too", 5, grammar=Grammar("json"))
    world.engine.fail("too", "the schema has no type.")
    assert only(world).says == "2 requests failed because of their grammar (bad, too); twice: the schema has no type."
    world.add("left", 5, max_tokens=9)
    world.step()
    world.engine.cancel("left", by="grammar")
    assert only(world).evidence["messages"] == {
        "the schema has no type.": 2, "its answer could not be continued within the grammar": 1
    }  # fmt: skip


def test_requests_that_fail():
    world = Served()
    for id in ("a", "b"):
        world.add(id, 5, max_tokens=3)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    found = only(world)
    assert found.says == "2 requests failed (a, b); twice: RuntimeError: the machine broke."
    assert found.next == "check the server's log around that time" and found.lost == 2


def test_requests_whose_numbers_are_not_finite_are_told_from_other_failures():
    world = Served()
    for id in ("a", "b"):
        world.add(id, 5, max_tokens=3)
    world.executor.spoils = lambda span: True
    world.step()
    found = only(world)
    assert (found.name, found.lost) == ("not_finite", 2)
    assert found.says.startswith("2 requests failed because the model computed NaN or infinity")
    assert found.evidence["requests"] == ["a", "b"]


def visited(**late: object) -> Served:
    world = Served()
    for name, value in late.items():
        setattr(world, name, value)
    return one_by_one(world, [list(range(40 * i, 40 * i + 30)) for i in range(5)], 4)


def test_time_before_the_replica_knew_of_requests():
    found = only(visited(front_ms=2.0))
    assert found.says == (
        "5 requests took 10.0 ms in total (median 2.0 ms) from their headers to the replica, for prompts of 30 "
        "positions (median)."
    )
    assert found.next.startswith("check how clients send: ")
    assert found.but == "No step option would help: the replica had not received these requests yet."


def test_time_between_front_and_replica():
    found = only(visited(queue_ms=2.0))
    assert found.says == (
        "5 requests waited 10.0 ms in total (median 2.0 ms) between front and replica, not counting the step that "
        "was running."
    )
    assert found.next.endswith("lower --threads (now 2)")
    assert found.but == "Raising a server limit would not help: these requests waited for neither space nor a turn."


def test_a_step_that_runs_while_requests_come_is_not_taken_for_a_slow_queue():
    world = Served(seats=16)
    world.add("a", 10, max_tokens=12)
    while world.engine.requests:
        plan = world.engine.plan()
        world.queue_ms = 1.0  # they arrive while the step runs; its commit takes them in
        if world.engine.steps < 6:
            world.add(f"b{world.engine.steps}", 10, max_tokens=3)
        world.note(world.engine.commit(world.executor.run(plan)))
    assert world.seen().lives_ns() > 20 * MS and sum(r.queue_ns for r in world.seen().requests.values()) == 0
    assert "front_queue" not in world.findings()


def test_clients_that_take_their_answers_slowly():
    found = only(visited(delivery_ms={"r1": 900.0}))
    assert found.says == (
        "Slow clients: 1 answer waited 0.90 s in total for the client to read the last byte (r1), where 0.0 ms is "
        "typical."
    )
    assert found.next.startswith("check those clients and the network in between")
    assert found.but == "Faster steps would not help: the answers were ready." and found.lost == 0
    both = only(visited(delivery_ms={"r1": 900.0}, dropped={"r3": "slow reader"}))
    assert both.lost == 1 and both.says.startswith(
        "Slow clients: 1 request dropped because the client stopped reading (r3); 1 answer waited 0.90 s in total "
    )
    assert only(visited(dropped={"r3": "slow reader"})).says == (
        "Slow clients: 1 request dropped because the client stopped reading (r3)."
    )


def test_answers_that_are_all_delivered_late_are_not_put_down_to_a_client():
    found = only(visited(delivery_ms={f"r{i}": 40.0 for i in range(5)}))
    assert found.says == "Median 40.0 ms from last token to last byte, 0.20 s in total for 5 requests."
    assert found.next.startswith("give the front a core of its own: ")
    assert found.but == "Raising a server limit would not help: these requests had finished."


def test_quick_visits_are_no_cause():
    late = {"front_ms": 0.05, "queue_ms": 0.05, "delivery_ms": {f"r{i}": 0.1 for i in range(5)}}
    assert visited(**late).findings() == {}


# -- words ----------------------------------------------------------------------------------------------------


def test_numbers_are_told_with_their_units():
    assert [duration(ns) for ns in (0, 2_340_000, 99_000_000, 100_000_000, 12_345_000_000)] == [
        "0.0 ms", "2.3 ms", "99.0 ms", "0.10 s", "12.35 s"
    ]  # fmt: skip
    assert [size(bytes) for bytes in (512, 1 << 20, 3 << 30)] == ["0.5 KiB", "1.0 MiB", "3,072.0 MiB"]
    assert named([1, 2]) == "1, 2" and named(list(range(7))) == "0, 1, 2, 3, 4 and 2 more"


def test_a_log_that_begins_in_the_middle_of_things_is_no_obstacle():
    world = served(8, 20, 20, blocks=9, seats=4, prefix_cache=False)
    for start in range(0, len(world.events), 7):
        seen = Observations().fold_all(world.events[start:])
        assert len(seen.done) <= len(world.steps())


# -- what an arrival tells of others like it ------------------------------------------------------------------


def arrivals(world: Served) -> dict[str, Arrived]:
    return {event.id: event for event in world.events if isinstance(event, Arrived)}


def test_arrivals_tell_which_prompts_begin_alike_and_no_more():
    world = Served(block_tokens=4)
    prompts = {"short": [1, 2, 3], "one": [1, 2, 3, 4], "long": list(range(300)), "other": [*range(17), *range(100)]}
    for id, prompt in prompts.items():
        world.add(id, prompt, max_tokens=1)
    for salt in "aab":
        world.add(f"salted{len(arrivals(world))}", list(range(300)), max_tokens=1, cache_salt=salt)
    told = arrivals(world)
    assert told["short"].beginnings == () and len(told["one"].beginnings) == 1
    assert len(told["long"].beginnings) == 4 and len(told["other"].beginnings) == 3
    assert told["long"].beginnings[:2] == told["other"].beginnings[:2]  # 4 blocks of 4 positions
    assert told["long"].beginnings[2] != told["other"].beginnings[2]
    assert told["salted4"].beginnings == told["salted5"].beginnings
    assert not set(told["salted4"].beginnings) & {*told["long"].beginnings, *told["salted6"].beginnings}
    assert told["salted4"].salt == told["salted5"].salt != told["salted6"].salt
    assert told["long"].salt == 0 != told["salted6"].salt


def test_the_latest_beginnings_are_remembered_and_no_number_comes_twice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(begin, "MOST_GROUPS", 3)
    groups = begin.Groups()
    first = [groups.salt(salt) for salt in "abc"]
    assert groups.salt("a") == first[0]  # asked for lately, so b is the oldest
    assert groups.salt("d") not in first
    assert [groups.salt(salt) for salt in "ca"] == [first[2], first[0]]
    assert groups.salt("b") not in first
