"""Requests with a grammar in the engine: they wait for input, stand in nobody's way, and stay within it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headway.core.errors import UnknownRequest
from headway.core.events import Failed
from headway.core.plan import Grammar
from headway.core.request import Stage
from headway.policy.waiting import AWAITS_GRAMMAR
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from headway.story.tell.views import IntervalView
from world import SAMPLED, Allowing, World

JSON = Grammar("json")


def even(token: int) -> bool:
    return token % 2 == 0


def test_a_request_waits_for_its_grammar_and_stands_in_nobodys_way():
    world = World(seats=1, max_bypass=0)
    world.add("json", 5, max_tokens=3, grammar=JSON)
    assert world.wait("json") == AWAITS_GRAMMAR
    world.add("a", 5, max_tokens=2)
    world.add("b", 5, max_tokens=2)
    world.step()
    assert world.story.record("a").stage is Stage.RUNNING
    view = request_view(world.story, world.story.record("json"), world.clock.now_ns())
    assert (view.stage, view.verdict.on, view.verdict.rule) == ("waiting", "input", "grammar")
    assert replace(view.intervals[-1], ms=0) == IntervalView("queued", "input", "grammar", 0)
    assert "its grammar is being compiled in the background. 0 requests are ahead." in tell(view)[1]
    behind = request_view(world.story, world.story.record("b"), world.clock.now_ns())
    assert behind.verdict.rule == "seats" and behind.verdict.ahead == 0
    while world.story.record("b").stage is not Stage.FINISHED:
        world.step()
    assert world.engine.idle and world.step() == []  # alive, but nobody could move
    world.engine.supply("json", "grammar", [Allowing(world.vocab, even)])
    world.run()
    assert len(world.said["json", 0]) == 3 and not any(map(even, world.said["json", 0]))


def test_a_request_queues_at_the_place_of_its_arrival_when_its_grammar_is_there():
    world = World(seats=1)
    world.add("runs", 5, max_tokens=4)
    world.step()
    world.add("json", 5, max_tokens=1, grammar=JSON)
    world.add("later", 5, max_tokens=1)
    world.step()
    world.engine.supply("json", "grammar", [Allowing(world.vocab)])
    assert [request.id for request in world.model.queues.waiting] == ["json", "later"]
    world.agree()
    world.run()
    assert list(world.finish) == [("runs", 0), ("json", 0), ("later", 0)]


def test_a_grammar_that_cannot_be_compiled_fails_its_request_and_no_other():
    world = World()
    world.add("bad", 5, grammar=Grammar("regex", "("))
    world.add("good", 5, max_tokens=3)
    world.engine.fail("bad", "the expression has no end")
    world.engine.check()
    record = world.story.record("bad")
    assert (record.stage, record.reason, record.message) == (Stage.FAILED, "grammar", "the expression has no end")
    assert [event.id for event in world.events if isinstance(event, Failed)] == ["bad"]
    world.run()
    assert world.said["good", 0] == world.expected("good") and world.pool.live == 0
    for late in (lambda: world.engine.supply("good", "grammar", []), lambda: world.engine.fail("bad", "again")):
        with pytest.raises(UnknownRequest):
            late()


def test_a_grammar_that_leads_nowhere_fails_a_running_request_also_while_its_step_runs():
    world = World(block_tokens=4)
    for id in ("lost", "stays"):
        world.add(id, 9, max_tokens=8, grammar=JSON)
        world.engine.supply(id, "grammar", [Allowing(world.vocab)])
    world.step()
    plan = world.engine.plan()
    world.engine.fail("lost", "no token may come")
    assert world.story.levels == world.engine.levels() and world.pool.live == 6  # the step still names its blocks
    world.note(world.engine.commit(world.executor.run(plan)))
    assert world.pool.live == 3
    record = world.story.record("lost")
    assert (record.stage, record.reason, record.message) == (Stage.FAILED, "grammar", "no token may come")
    assert len(world.said["lost", 0]) == 1
    world.run()
    assert len(world.said["stays", 0]) == 8


def test_the_models_own_end_tokens_wait_for_min_tokens_within_a_grammar_even_with_ignore_eos():
    """A mask allows them wherever the text may end, whatever the request says about them."""
    world = World(vocab=8, eos_ids=(3,))
    world.add("a", 5, max_tokens=9, min_tokens=6, ignore_eos=True, grammar=JSON)
    world.engine.supply("a", "grammar", [Allowing(8)])
    world.run()
    assert 3 not in world.said["a", 0][:6]


def test_a_request_that_is_cancelled_while_it_awaits_its_grammar_is_gone():
    world = World()
    world.add("a", 5, grammar=JSON)
    world.engine.cancel("a", "client")
    assert world.story.record("a").stage is Stage.CANCELLED and not world.engine.requests
    with pytest.raises(UnknownRequest):
        world.engine.supply("a", "grammar", [Allowing(world.vocab)])
    assert world.add("a", 5, max_tokens=1).stage is Stage.WAITING  # the id is free again


def test_the_end_of_the_text_that_a_grammar_allows_is_the_end_of_the_sequence():
    world = World()
    world.add("a", 5, max_tokens=50, min_tokens=20, grammar=JSON)
    world.engine.supply("a", "grammar", [Allowing(world.vocab, length=7)])
    world.run()
    assert (len(world.said["a", 0]), world.finish["a", 0]) == (7, "stop")


def test_a_grammars_only_token_may_come_even_where_min_tokens_bans_it():
    """Where the text must end the end token is all that is left."""
    world = World(vocab=8)
    world.add("a", 5, max_tokens=5, min_tokens=4, stop_ids=(3,), grammar=JSON)
    world.engine.supply("a", "grammar", [Allowing(8, lambda token: token != 3)])
    world.run()
    assert world.said["a", 0] == [3] * 5  # a stop token before min_tokens does not end it; the 5th does
    assert world.finish["a", 0] == "stop"


def test_siblings_keep_within_the_grammar_each_by_its_own_guide():
    world = World()
    world.add("a", 9, n=2, max_tokens=9, sampling=SAMPLED, grammar=JSON)
    guides = [Allowing(world.vocab, even), Allowing(world.vocab, lambda token: not even(token))]
    world.engine.supply("a", "grammar", guides)
    world.run()
    assert [guide.accepted for guide in guides] == [world.said["a", 0], world.said["a", 1]]
    assert all(len(guide.accepted) == 9 for guide in guides)


def test_a_grammar_survives_preemption_and_chunks():
    world = World(blocks=12, block_tokens=4, step_tokens=8, seats=4)
    guides = {}
    for id in "abc":
        world.add(id, 14, max_tokens=16, grammar=JSON)
        guides[id] = Allowing(world.vocab, even)
        world.engine.supply(id, "grammar", [guides[id]])
    world.run()
    assert sum(world.story.record(id).preemptions for id in "abc") > 0
    for id in "abc":
        assert guides[id].accepted == world.said[id, 0] and len(world.said[id, 0]) == 16
