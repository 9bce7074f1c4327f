"""Records and what is shown of them: verdicts and since when, who holds, who is ahead, what is remembered."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from headway.core.errors import ProtocolError, UnknownRequest
from headway.core.events import (
    AnyEvent,
    Arrived,
    Cancelled,
    Delivered,
    Failed,
    Levels,
    NoProgress,
    Offloaded,
    Prompted,
    Rates,
    Received,
    Recovery,
    Refused,
    ReloadDropped,
    Reloaded,
    ReloadStarted,
    TurnedAway,
)
from headway.core.plan import Grammar
from headway.core.request import Emission, Pause, Stage, TextRequest
from headway.core.verdict import Holder, Never
from headway.replica import messages
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import request_view, request_views
from headway.story.tell.views import StandingWait
from test_tiers import evicted
from world import SAMPLED, Allowing, World, as_json


def view(world: World, id: str) -> dict:
    return as_json(request_view(world.story, world.story.record(id), world.clock.now_ns()))


class Counted(dict):
    """Live records that know how often they were gone through."""

    passes = 0

    def values(self):
        self.passes += 1
        return super().values()


@pytest.mark.parametrize("shown", [1, 60])
def test_a_page_of_requests_goes_through_the_live_ones_a_fixed_number_of_times_and_says_the_same(shown):
    """Sixty live ones, some waiting and some holding blocks, half of these shared."""
    world = World(seats=20, blocks=4096)
    for i in range(60):
        world.add(f"r{i}", list(range(40)), max_tokens=30)
    for _ in range(8):
        world.step()
    now = world.clock.now_ns()
    records = list(world.story.live.values())
    one_by_one = [request_view(world.story, record, now) for record in records]
    assert {one.stage for one in one_by_one} == {"running", "waiting"}
    assert any(one.sequences[0].blocks.shared for one in one_by_one)
    waits = [one.verdict for one in one_by_one if isinstance(one.verdict, StandingWait)]
    assert {wait.ahead for wait in waits} >= set(range(40))
    world.story.live = live = Counted(world.story.live)
    assert request_views(world.story, records[:shown], now) == one_by_one[:shown]
    assert live.passes == 3, "once for the blocks' references, once for the queue, once for deadlines"


# -- the verdict ----------------------------------------------------------------------------------------------


def test_there_is_no_verdict_before_the_first_judgement_nor_after_the_end():
    world = World(seats=1)
    world.add("a", 10, max_tokens=3)
    assert view(world, "a")["verdict"] is None
    plan = world.engine.plan()
    world.add("b", 10, max_tokens=3)  # while a step runs: the next one judges it
    assert view(world, "a")["verdict"] == {"kind": "go", "positions": 10}
    assert view(world, "b")["verdict"] is None and view(world, "b")["stage"] == "waiting"
    world.note(world.engine.commit(world.executor.run(plan)))
    world.step()
    assert view(world, "b")["verdict"]["rule"] == "seats"
    world.engine.cancel("b")
    assert view(world, "b")["verdict"] is None
    world.run()
    assert view(world, "a")["verdict"] is None


def test_a_refused_request_keeps_its_never():
    world = World(blocks=3, block_tokens=4)
    world.add("a", 10, max_tokens=3)
    assert view(world, "a")["verdict"] == {
        "kind": "never", "rule": "pool", "unit": "blocks", "need": 4, "limit": 3, "option": "--memory"
    }  # fmt: skip
    assert view(world, "a")["stage"] == "refused" and view(world, "a")["reason"] == "pool"


def test_whoever_is_behind_the_judged_waits_for_its_turn_and_knows_how_many_are_ahead():
    world = World(seats=1, max_bypass=1)
    for id in "abcd":
        world.add(id, 10, max_tokens=9)
    world.step()
    assert [view(world, id)["verdict"]["rule"] for id in "bcd"] == ["seats", "seats", "order"]
    assert [view(world, id)["verdict"]["ahead"] for id in "bcd"] == [0, 1, 2]
    last = view(world, "d")["verdict"]
    assert (last["need"], last["have"], last["short"], last["holders"]) == (0, 0, 0, [])
    world.engine.cancel("b")
    assert view(world, "d")["verdict"]["ahead"] == 1


def test_ahead_counts_by_the_policys_order_and_only_those_that_wait():
    world = World(seats=1, policy="priority")
    world.add("runs", 10, max_tokens=9)
    world.step()
    for id, number in (("x", 2), ("y", 1), ("z", 3)):
        world.add(id, 10, max_tokens=9, priority=number)
    assert [world.story.ahead(world.story.record(id)) for id in "xyz"] == [1, 0, 2]


def test_a_request_that_was_judged_and_then_is_not_any_more_falls_back_to_its_turn():
    world = World(blocks=20, block_tokens=4, seats=8, max_bypass=1)
    world.add("runs", 20, max_tokens=40)
    world.step()
    world.add("large", 60, max_tokens=1)
    world.add("second", 60, max_tokens=1)
    world.step()
    assert world.wait("second").rule == "blocks"
    world.engine.cancel("second")
    world.add("small", 3, max_tokens=1)
    world.add("third", 60, max_tokens=1)
    world.step()  # small passes: the bound is reached
    world.step()
    assert world.wait("large").rule == "blocks" and world.wait("third").rule == "order"


def test_the_beginning_stays_while_kind_on_rule_and_need_do_though_the_rest_changes():
    world = World(blocks=12, block_tokens=4, seats=8)
    world.add("runs", 20, max_tokens=20)
    world.step()
    world.add("other", 6, max_tokens=4)
    world.add("waits", 36, max_tokens=1)
    world.step()
    began = world.clock.now_ns()
    seen = set()
    for _ in range(6):
        verdict = view(world, "waits")["verdict"]
        assert (verdict["rule"], verdict["need"], verdict["since_step"]) == ("blocks", 10, 2)
        assert verdict["since_ms"] == (world.clock.now_ns() - began + 1_070_000) / 1e6  # step 2 took 1.07 ms
        seen.add((verdict["have"], verdict["free"], len(verdict["holders"])))
        world.step()
    assert len(seen) >= 3


def test_a_need_that_changes_is_a_new_wait_with_a_new_beginning():
    world = World(blocks=12, block_tokens=4, seats=8, step_tokens=8)
    prompt = list(range(32))
    world.add("runs", prompt, max_tokens=9)
    world.step()
    world.add("waits", [*prompt, *range(100, 112)], max_tokens=1)
    found = []
    for _ in range(6):
        world.step()
        verdict = view(world, "waits")["verdict"]
        found.append((verdict["need"], verdict["since_step"]))
    # Four steps compute the prompt, two blocks each; what they publish, the next step's judgement finds.
    assert found == [(10, 2), (8, 3), (6, 4), (4, 5), (4, 5), (4, 5)]


# -- holders --------------------------------------------------------------------------------------------------


def test_holders_are_at_most_five_the_largest_first_and_the_others_are_counted():
    world = World(blocks=40, block_tokens=4, seats=16, step_tokens=200)
    for i in range(7):
        world.add(f"h{i}", 4 * i + 3, max_tokens=5)
    world.step()
    world.add("waits", 100, max_tokens=1)
    world.step()
    wait = world.wait("waits")
    assert wait.holders == tuple(Holder(f"h{i}", i + 1, 0) for i in (6, 5, 4, 3, 2))
    assert wait.others == 2
    assert wait.have == 40 - sum(i + 1 for i in range(7))


def test_a_holders_blocks_are_those_that_would_be_freed_if_it_left_and_shared_ones_would_not():
    world = World(blocks=16, block_tokens=4, seats=8)
    prompt = list(range(16))
    world.add("one", [*prompt, 50], max_tokens=20)
    world.step()
    world.add("two", [*prompt, 60], max_tokens=20)
    world.step()
    world.add("waits", list(range(100, 144)), max_tokens=1)
    world.step()
    assert set(world.wait("waits").holders) == {Holder("one", 1, 4), Holder("two", 1, 4)}
    before = world.pool.live
    world.engine.cancel("one")
    assert before - world.pool.live == 1
    world.step()
    assert world.wait("waits").holders == (Holder("two", 5, 0),)  # what was shared is its own now
    before = world.pool.live
    world.engine.cancel("two")
    assert before - world.pool.live == 5


def test_blocks_that_the_sequences_of_one_request_share_would_all_be_freed():
    world = World(blocks=12, block_tokens=4, seats=8)
    world.add("pair", 10, n=2, max_tokens=12, sampling=SAMPLED)
    world.step()
    world.add("waits", 40, max_tokens=1)
    world.step()
    assert world.wait("waits").holders == (Holder("pair", 4, 0),)


# -- what is shown --------------------------------------------------------------------------------------------

FIELDS = {"id", "pattern", "stage", "verdict", "sequences", "preemptions", "preempted_for", "prefix", "intervals",
          "elapsed_ms"}  # fmt: skip
WAIT = {"kind", "on", "rule", "unit", "need", "have", "short", "free", "reusable", "holders", "others", "ahead",
        "since_step", "since_ms", "kept", "by", "price_ms", "seen", "least"}  # fmt: skip
POSITIONS = {"known", "computed", "reused", "regained", "prefilled", "decoded", "recomputed", "lost"}


def test_a_waiting_requests_view_has_the_contracts_fields():
    world = World(blocks=20, block_tokens=4, seats=8)
    world.add("runs", 20, max_tokens=40)
    world.step()
    world.add("waits", 60, max_tokens=1)
    world.step()
    shown = view(world, "waits")
    assert set(shown) == FIELDS | {"model", "priority", "max_tokens"}
    assert set(shown["verdict"]) == WAIT
    assert set(shown["verdict"]["holders"][0]) == {"id", "blocks", "shared"}
    (sequence,) = shown["sequences"]
    assert set(sequence) == {"positions", "blocks", "tokens", "drafts"}
    assert set(sequence["positions"]) == POSITIONS | {"rejected"}
    assert set(sequence["blocks"]) == {"held", "shared"}
    assert set(sequence["tokens"]) == {"prompt", "emitted"}
    assert shown["prefix"] == {"reused": 0, "miss": None}
    assert set(shown["intervals"][0]) == {"name", "on", "rule", "ms"}
    assert (shown["id"], shown["pattern"], shown["stage"], shown["preemptions"]) == ("waits", "text", "waiting", 0)


def test_every_wait_has_all_fields_whatever_its_rule():
    world = World(seats=2, step_tokens=8, max_bypass=1)
    world.add("a", 20, max_tokens=9)
    for id in "bcd":
        world.add(id, 20, max_tokens=9)
    world.step()
    rules = {id: view(world, id)["verdict"] for id in "bcd"}
    assert [rules[id]["rule"] for id in "bcd"] == ["budget", "order", "order"]
    assert all(set(verdict) == WAIT for verdict in rules.values())


def test_a_running_and_a_finished_requests_view():
    world = World(block_tokens=4)
    prompt = list(range(18))
    world.add("a", prompt, max_tokens=9)
    world.step()
    world.add("b", prompt, max_tokens=2)
    world.step()
    shown = view(world, "b")
    assert (shown["stage"], shown["verdict"]) == ("running", {"kind": "go", "positions": 2})
    assert shown["sequences"] == [
        {
            "positions": {"known": 19, "computed": 18, "reused": 16, "regained": 0, "prefilled": 2, "decoded": 0,
                          "recomputed": 0, "rejected": 0, "lost": 0},
            "blocks": {"held": 5, "shared": 4},
            "tokens": {"prompt": 18, "emitted": 1},
            "drafts": {"accepted": 0, "rejected": 0, "pauses": []},
        }
    ]  # fmt: skip
    assert shown["prefix"] == {"reused": 16, "miss": {"why": "short", "at": 16}}
    world.run()
    shown = view(world, "b")
    assert set(shown) == FIELDS | {"model", "priority", "max_tokens", "reason"}
    assert (shown["stage"], shown["reason"], shown["verdict"]) == ("finished", "length", None)
    assert shown["sequences"][0]["blocks"] == {"held": 0, "shared": 0}
    assert shown["sequences"][0]["positions"]["computed"] == 19  # frozen at the end: release is not lost
    assert shown["sequences"][0]["positions"]["lost"] == 0


def test_a_failed_requests_view_says_what_happened():
    world = World()
    world.add("a", 10, max_tokens=3)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    shown = view(world, "a")
    assert (shown["stage"], shown["reason"], shown["message"]) == (
        "failed",
        "error",
        "RuntimeError: the machine broke",
    )


# -- levels ---------------------------------------------------------------------------------------------------


def test_the_levels_are_told_with_every_change_also_by_a_cancellation_between_steps():
    world = World(block_tokens=4)
    world.add("a", 18, max_tokens=9)
    world.step()
    assert world.story.levels == world.engine.levels() == Levels(5, 0, 95, 1, 0)
    world.engine.cancel("a")
    assert world.story.levels == world.engine.levels() == Levels(0, 5, 95, 0, 0)


# -- what is remembered ---------------------------------------------------------------------------------------


def test_the_last_ended_requests_are_remembered_and_no_more():
    world = World()
    story = Story(remembered=3)
    world.engine.emit = story.fold
    for i in range(5):
        world.engine.add(TextRequest(id=f"r{i}", prompt=(1, 2), max_tokens=1))
        world.engine.step()
    assert list(story.ended) == ["r2", "r3", "r4"]
    with pytest.raises(UnknownRequest, match="'r1'"):
        story.record("r1")


def test_a_thousand_are_remembered_unless_said_otherwise_and_the_live_are_never_forgotten():
    story = Story()
    arrived = {"pattern": "text", "prompt": 4, "n": 1, "max_tokens": 3, "priority": 0}
    story.fold(Arrived(at=0, id="live", order=(0,), **arrived))
    for i in range(1, 1002):
        story.fold(Arrived(at=i, id=f"r{i}", order=(i,), **arrived))
        story.fold(Cancelled(at=i, id=f"r{i}", by="caller", levels=story.levels))
    assert len(story.ended) == 1000 and "r1" not in story.ended and "r2" in story.ended
    assert story.record("live").stage is Stage.WAITING


def test_an_id_that_comes_back_is_the_new_request():
    world = World()
    world.add("a", 10, max_tokens=3)
    world.run()
    world.add("a", 20, max_tokens=3)
    assert view(world, "a")["stage"] == "waiting"
    world.run()
    assert world.story.record("a").sequences[0].prompt == 20 and len(world.story.ended) == 1


def test_events_about_requests_that_nobody_knows_are_ignored():
    world = World()
    world.add("a", 10, max_tokens=3, n=2, sampling=SAMPLED)
    world.run()
    story = Story()
    for event in world.events[1:]:  # all but the arrival
        story.fold(event)
    story.fold(Failed(at=1, id="a", message=""))
    story.fold(Delivered(at=1, id="a"))
    assert not story.live and not story.ended


def test_a_replica_that_ends_in_the_middle_of_a_step_leaves_no_blocks_in_the_records():
    world = World()
    world.add("a", 40, max_tokens=3)
    world.engine.plan()
    assert view(world, "a")["sequences"][0]["blocks"]["held"] == 3
    world.story.fold(Failed(at=world.clock.now_ns(), id="a", message="the replica ended"))
    assert view(world, "a")["sequences"][0]["blocks"]["held"] == 0


# -- on the wire ----------------------------------------------------------------------------------------------


class Hopeless:
    """A drafter that gives up after its first guess."""

    def guess(self, tokens: list[int]) -> list[int]:
        return tokens[-1:]

    def verified(self, drafted: int, accepted: int) -> Pause:
        return Pause(drafted, accepted, 10)


MODEL = messages.ReadyModel("fake", World().executor.facts, 8, 4, 8192, 64, 512)
READY = messages.Ready((MODEL,), 2, 12.5, 1 << 30)


def every_event() -> World:
    world = World(blocks=8, block_tokens=4, seats=3, prefix_cache=False, drafters=lambda new: Hopeless())
    world._emit(MODEL.event(0, READY.threads))
    world._emit(TurnedAway(at=0, counts={"queue": 2}))
    world._emit(Received(at=0, id="old", sent_at=0))
    world._emit(Prompted(at=0, id="old", text="Hello"))
    world.add("never", 100)
    world.add("old", 14, max_tokens=8)
    world.add("new", 5, n=2, max_tokens=6, sampling=SAMPLED)
    world.add("gone", 5)
    world.add("json", 5, grammar=Grammar("json"), max_tokens=2)
    world._emit(NoProgress(at=0, step=0, model="fake", id="json", wait=world.wait("json"), times=3))
    world.engine.supply("json", "grammar", [Allowing(world.vocab)])
    world.step()
    world.engine.cancel("gone")
    world.run()
    world.add("fails", 5)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    rates = Rates(10, 20_000, 40_000, 60)
    world._emit(Recovery(at=9, step=1, model="fake", phase="began", cut=False, now=rates, best=rates))
    world._emit(Refused(at=9, id="nothing", reason="invalid"))
    world._emit(Delivered(at=world.clock.now_ns(), id="old"))
    return world


def test_every_kind_of_event_survives_the_socket_and_tells_the_same_story():
    world = every_event()
    of_tiers = {ReloadStarted, Reloaded, ReloadDropped, Offloaded}
    assert {type(event) for event in world.events} == set(get_args(AnyEvent)) - of_tiers
    emissions = (Emission("old", 0, (1, 2), None), Emission("old", 1, (3,), "stop"))
    sent = messages.Told(tuple(world.events), emissions)
    heard = messages.decode_to_front(messages.encode(sent))
    assert heard == sent
    assert [type(event) for event in heard.events] == [type(event) for event in world.events]
    story = Story()
    for event in heard.events:
        story.fold(event)
    now = world.clock.now_ns()
    for id, record in world.story.ended.items():
        assert request_view(story, story.record(id), now) == request_view(world.story, record, now)


def test_every_kind_of_event_about_tiers_survives_the_socket_and_tells_the_same_story():
    world = World(blocks=12, block_tokens=8, seats=4, step_tokens=64, host_slots=2, disk_slots=40, disk_delay=50,
                  staging=True)  # fmt: skip
    prompt = evicted(world, 40)
    world.add("runs", 30, max_tokens=40)
    world.step()
    world.add("again", prompt, max_tokens=2)
    world.run()
    heard = messages.decode_to_front(messages.encode(messages.Told(tuple(world.events), ())))
    assert {type(event) for event in heard.events} >= {ReloadStarted, Reloaded, ReloadDropped, Offloaded}
    story, now = Story(), world.clock.now_ns()
    for event in heard.events:
        story.fold(event)
    record = world.story.record("again")
    assert request_view(story, story.record("again"), now) == request_view(world.story, record, now)


def test_every_message_survives_the_socket():
    new = TextRequest(id="a", prompt=(1, 2), n=2, max_tokens=None, sampling=SAMPLED, stop_ids=(5,), cache_salt="s")
    for message in (messages.Submit(new), messages.Cancel("a", "client"), messages.Look("a"), messages.Stop()):
        assert messages.decode_to_replica(messages.encode(message)) == message
    for message in (
        messages.Loading("weights", 1, 2), READY, messages.LoadFailed("ModelNotFound", "no such file"),
        messages.Rejected("a", "prompt", "empty"), messages.Told(()),
    ):  # fmt: skip
        assert messages.decode_to_front(messages.encode(message)) == message


def test_what_is_no_message_is_a_protocol_error():
    for data in (b"", b"\xff\xfe", messages.encode(messages.Stop()), b"\x81\xa4type\xa6nobody"):
        with pytest.raises(ProtocolError):
            messages.decode_to_front(data)
    with pytest.raises(ProtocolError):
        messages.decode_to_replica(messages.encode(messages.Loading("weights", 1, 2)))


def test_verdicts_keep_their_kind_on_the_wire():
    world = every_event()
    refused = next(event for event in world.events if isinstance(event, Refused))
    heard = messages.decode_to_front(messages.encode(messages.Told((refused,))))
    assert isinstance(heard.events[0].verdict, Never)


def test_events_hold_no_prompt_and_no_tokens():
    """Token ids here are large numbers; nothing else in the events of this world can be."""
    world = World(vocab=100_000)
    prompt = list(range(50_000, 50_020))
    world.add("a", prompt, max_tokens=3)
    world.run()
    secret = {*prompt, *world.said["a", 0]}

    def numbers(value: object):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for one in value:
                yield from numbers(one)
        elif isinstance(value, int):
            yield value

    told = [msgspec.to_builtins(event) for event in world.events]
    for event in told:
        event.pop("at")
    assert not secret & set(numbers(told))
