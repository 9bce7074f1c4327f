"""Which block is live, reusable or free, as events alone tell it: which event tells what. `World` compares with the
pool after every event and every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.core import events as ev
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.bytes import BytePool
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.memory.table import BlockTable
from headway.patterns.text.pattern import text_model
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import pool_view
from serving import MODEL, until
from test_memory_prefix import computed
from test_tiers import settled, tiered, told
from world import World, as_json

PROMPT = list(range(18))  # four blocks, and half of one


# -- the pool --------------------------------------------------------------------------------------------------


def test_a_block_is_newly_reusable_once():
    pool = BlockPool(6, 2)
    table, _ = computed(pool, [1, 1, 2, 2])
    assert pool.newly_reusable() == ()
    first, second = table.blocks
    table.release()
    assert pool.newly_reusable() == (second, first)  # the last block goes first
    assert pool.newly_reusable() == ()


def test_a_block_that_was_taken_since_is_not_newly_reusable_and_one_that_came_back_is_again():
    pool = BlockPool(2, 2)
    table, _ = computed(pool, [1, 1, 2, 2])
    first, second = table.blocks
    table.release()
    pool.share(first)  # matched
    assert pool.take() == second  # evicted
    assert pool.newly_reusable() == ()
    pool.drop(first)
    pool.drop(second)  # of unknown content: free
    assert pool.newly_reusable() == (first,)
    pool.share(first)
    pool.drop(first)
    assert pool.newly_reusable() == (first,)


def test_a_block_that_is_shared_dropped_unindexed_or_not_kept_is_not_newly_reusable():
    pool = BlockPool(8, 2)
    shared, _ = computed(pool, [1, 1])
    spoiled, _ = computed(pool, [2, 2])
    pool.share(shared.blocks[0])
    unindexed = BlockTable(pool, [], 0)
    unindexed.grow(2)
    for table, keep in ((shared, True), (spoiled, False), (unindexed, True)):
        table.release(keep=keep)
    assert (pool.live, pool.newly_reusable()) == (1, ())


def test_bytes_are_never_reusable():
    pool = BytePool(9)
    pool.take(5).release()
    assert pool.newly_reusable() == ()


# -- which event tells it ----------------------------------------------------------------------------------------


def small(**options) -> World:
    return World(**{"blocks": 20, "block_tokens": 4, "seats": 4, "step_tokens": 64} | options)


def listed(world: World, since: int = 0) -> dict[str, list[int]]:
    """By kind of event, the blocks that it says became reusable; only of events that say so."""
    found: dict[str, list[int]] = {}
    for event in world.events[since:]:
        if blocks := getattr(event, "reusable", ()):
            found.setdefault(type(event).__name__, []).extend(sorted(blocks))
    return found


def step_until_told(world: World, kind: type) -> None:
    for _ in range(200):
        if told(world, kind):
            return
        world.step()
    raise AssertionError(f"{kind.__name__} is not told")


def finish(world: World) -> str:
    world.run()
    return "Committed"


def cancel(world: World) -> str:
    world.engine.cancel("a")
    return "Cancelled"


def fail(world: World) -> str:
    world.engine.fail("a", "its grammar leads nowhere")
    return "Failed"


def in_flight(end: Callable[[World], str]) -> Callable[[World], str]:
    """It ends while a step runs, which keeps its blocks until the commit."""

    def ends(world: World) -> str:
        plan = world.engine.plan()
        end(world)
        assert listed(world) == {} and world.pool.live == 5
        world.agree_on_blocks()
        world.note(world.engine.commit(world.executor.run(plan)))
        return "Committed"

    return ends


@pytest.mark.parametrize("end", [finish, cancel, fail, in_flight(cancel), in_flight(fail)])
def test_at_an_end_the_blocks_that_are_kept_are_told_once_with_the_event_that_gives_them_back(end):
    world = small()
    world.add("a", PROMPT, max_tokens=2)
    world.step()
    assert listed(world) == {}
    by = end(world)
    assert listed(world) == {by: sorted(filter(world.pool.is_reusable, range(20)))}
    assert world.pool.reusable == 5  # the last one is begun: it may be gone on with
    world.agree()


def test_who_ended_while_a_step_ran_holds_nothing_once_another_replica_is_loaded():
    world = small()
    world.add("a", PROMPT, max_tokens=4)
    world.step()
    world.engine.plan()
    world.engine.cancel("a")
    assert pool_view(world.story, blocks=True).models[0].held_blocks
    world.story.fold(
        ev.Loaded(
            at=9,
            model="fake",
            blocks=20,
            block_tokens=4,
            block_bytes=1,
            seats=4,
            step_tokens=64,
            threads=1,
            weights="fp32",
        )
    )
    (told,) = pool_view(world.story, blocks=True).models
    assert (told.held_blocks, told.reusable_blocks, told.free) == ((), (), 20)
    assert all(not sequence.blocks for sequence in world.story.record("a").sequences)


def test_of_a_step_that_failed_nothing_is_reusable():
    world = small()
    world.add("a", PROMPT, max_tokens=4)
    world.step()
    world.engine.plan()
    world.engine.abort("the machine broke")
    assert listed(world) == {} and (world.pool.live, world.pool.reusable) == (0, 0)
    world.agree_on_blocks()


def test_of_what_is_not_finite_only_blocks_that_others_hold_are_reusable_later():
    world = small()
    world.add("a", PROMPT, max_tokens=9)
    world.step()
    world.add("b", [*PROMPT, 5], max_tokens=9)
    world.step()
    plan = world.engine.plan()
    world.executor.spoils = lambda span: span is plan.items[0]
    world.note(world.engine.commit(world.executor.run(plan)))
    assert [event.id for event in told(world, ev.Failed)] == ["a"] and listed(world) == {}
    world.run()
    a, b = (set(event.tables[0]) for event in told(world, ev.Admitted))
    assert len(a & b) == 4 and a & b <= set(listed(world)["Committed"])


def test_a_shared_block_is_reusable_when_the_last_of_its_sequences_gives_it_back():
    world = small()
    world.add("a", PROMPT, max_tokens=9, n=2)
    world.step()
    world.add("b", [*PROMPT[:8], 7], max_tokens=1)
    world.step()
    (first, second), (third,) = (event.tables for event in told(world, ev.Admitted))
    shared = first[:4]
    assert second[:4] == shared and third[:2] == shared[:2]
    assert listed(world) == {"Committed": [third[2]]}  # it is over; two that run hold what it shared
    world.run()
    blocks = listed(world)["Committed"]
    assert [blocks.count(block) for block in shared] == [1] * 4


def test_what_a_preempted_request_held_is_told_with_it_and_what_is_evicted_at_once_by_the_step_that_names_it():
    world = small(blocks=9)
    world.add("old", PROMPT, max_tokens=12)
    world.add("new", [5] * 13, max_tokens=12)
    step_until_told(world, ev.Preempted)
    (event,) = told(world, ev.Preempted)
    (_, held) = (admitted.tables[0] for admitted in told(world, ev.Admitted))
    assert (event.id, event.by, set(event.reusable)) == ("new", "old", set(held))
    (grown,) = world.steps()[-1].grown
    assert grown.id == "old" and set(grown.blocks) < set(held)
    world.agree()


def test_matching_and_evicting_are_told_by_the_tables_that_name_the_blocks():
    world = small()
    world.add("a", PROMPT, max_tokens=1)
    world.run()
    kept = set(listed(world)["Committed"])
    world.add("b", [*PROMPT, 3], max_tokens=1)
    world.step()
    (table,) = told(world, ev.Admitted)[-1].tables
    assert len(kept & set(table)) == 4
    world.run()
    world.add("c", [9] * 76, max_tokens=1)
    world.run()
    assert world.pool.evictions > 0
    world.agree()


def test_what_a_dropped_reload_found_in_the_pool_is_told_with_it():
    world = tiered(blocks=20, host_slots=3, disk_slots=60, staging=True)
    tokens = [(5 * i) % 89 for i in range(64)]
    for id, prompt in (("first", tokens), ("other", [7] * 111), ("touches", tokens[:41])):
        world.add(id, prompt, max_tokens=1)
        world.run()
        settled(world)
    world.add("grows", [9] * 20, max_tokens=130)
    world.step()
    world.disk.delay = 500  # the rest of its prefix is long in coming
    world.add("again", [*tokens, 1], max_tokens=3)
    step_until_told(world, ev.ReloadDropped)
    (started,), (dropped,) = told(world, ev.ReloadStarted), told(world, ev.ReloadDropped)
    assert set(dropped.reusable) == set(started.tables[0][:5])
    world.agree()
    world.run()


def test_when_the_replica_ended_nothing_is_reusable_until_the_next_one_tells_so():
    world = small()
    world.add("a", PROMPT, max_tokens=1)
    world.run()
    story = world.story
    assert story.reusable["fake"]
    gone = ev.Levels(0, 0, 20, 0, 0)
    story.fold(ev.Committed(at=0, step=9, model="fake", outcomes=(), forks=(), levels=gone))
    assert as_json(pool_view(story, blocks=True))["models"][0]["reusable_blocks"] == []


def test_decoding_tells_of_no_block():
    world = small()
    world.add("a", 9, max_tokens=20)
    world.step()
    seen = len(world.events)
    for _ in range(10):
        world.step()
    assert listed(world, seen) == {}


def test_each_model_has_its_own_blocks():
    world = World(blocks=20, block_tokens=4)
    memory = StateMemory(BlockPool(9, 4), prefix_cache=True)
    other = text_model(world.executor, memory, EngineOptions(), name="other")
    story = Story()
    engine = Engine([world.model, other], world.clock, emit=story.fold)
    for name in ("fake", "other"):
        for place in range(2):
            new = TextRequest(id=f"{name}{place}", prompt=tuple(PROMPT[place:]), model=name, max_tokens=2)
            engine.add(new)
    while engine.busy:
        engine.step()
        for name, pool in (("fake", world.pool), ("other", memory.pool)):
            assert story.reusable[name] == set(filter(pool.is_reusable, range(pool.total)))
    assert world.pool.reusable > memory.pool.reusable > 0


# -- over HTTP ---------------------------------------------------------------------------------------------------


def pool_of(server: FakeServer) -> BlockPool:
    pool: BlockPool = server.front.link.replica.engine.models[MODEL].pattern.space
    return pool


def test_the_pool_lists_reusable_and_held_blocks_to_who_asks_for_them(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, blocks=32) as server:
        plain = server.http.get("/v1/pool").json()
        assert plain == server.http.get("/v1/pool?blocks=false").json()
        assert not {"reusable_blocks", "held_blocks"} & plain["models"][0].keys()
        prompt = list(range(1, 70))
        server.complete(prompt, max_tokens=2)
        server.executor.gate.clear()
        asking = server.ask([*prompt, 9], id="runs", max_tokens=5)
        until(lambda: server.executor.waits)
        answer = server.http.get("/v1/pool?blocks=true")
        pool = pool_of(server)
        (model,) = answer.json()["models"]
        assert model["reusable_blocks"] == [b for b in range(32) if pool.is_reusable(b)] != []
        (held,) = model["held_blocks"]
        assert (held["id"], held["stage"]) == ("runs", "running")
        assert sorted(held["tables"][0]) == [b for b in range(32) if pool.references(b)]
        assert (model["reusable"], model["live"]) == (len(model["reusable_blocks"]), len(held["tables"][0]))
        assert answer.headers["headway-event"] == f"{server.front.ring.epoch}-{server.front.ring.last}"
        assert server.http.get("/v1/requests").headers["headway-event"] == answer.headers["headway-event"]
        server.executor.gate.set()
        asking.join(10)


def test_blocks_of_one_that_is_over_are_listed_as_held_until_its_step_commits(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, blocks=32) as server:
        server.executor.gate.clear()
        asking = server.ask(list(range(1, 70)), id="runs", max_tokens=5)
        until(lambda: server.executor.waits)
        server.front.link.replica.engine.cancel("runs")
        server.front.link.replica._tell()
        until(lambda: server.front.story.record("runs").ended)
        asking.join(10)

        def held() -> list[tuple[str, str, int]]:
            (model,) = server.http.get("/v1/pool?blocks=true").json()["models"]
            return [(h["id"], h["stage"], len(h["tables"][0])) for h in model["held_blocks"]]

        assert held() == [("runs", "cancelled", 5)]
        server.executor.gate.set()
        until(lambda: held() == [])


@pytest.mark.parametrize("query", ["blocks=1", "blocks=", "blocks=True", "block=true"])
def test_another_question_about_the_pool_is_refused_by_name(smollm2: ModelFiles, query: str) -> None:
    with fake_serving(smollm2) as server:
        answer = server.http.get(f"/v1/pool?{query}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == query.partition("=")[0]
