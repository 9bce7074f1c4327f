"""Prefix reuse: what is found, what is evicted first, and the reason that is given when it ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.events import Admitted
from headway.core.miss import Miss
from headway.memory import prefix
from headway.memory.keys import KeyChain, Origin, block_key
from headway.memory.pool import BlockPool
from headway.memory.prefix import PrefixIndex
from headway.memory.reserve import StateMemory
from headway.memory.table import BlockTable
from headway.patterns.text.sequence import Sequence
from world import World

# -- eviction -------------------------------------------------------------------------------------------------


def computed(pool: BlockPool, tokens: list[int], root: bytes | Origin = b"root") -> tuple[BlockTable, list[bytes]]:
    """A table whose blocks are all computed and published, and their keys."""
    keys = KeyChain(root, pool.block_tokens)
    whole = len(tokens) // pool.block_tokens
    table = BlockTable(pool, [], 0)
    table.grow(whole)
    table.publish(keys, tokens, len(tokens))
    return table, keys.upto(tokens, whole)


def test_a_tail_is_evicted_before_its_head():
    pool = BlockPool(4, 2)
    table, keys = computed(pool, list(range(8)))
    table.release()
    left = []
    for _ in range(4):
        pool.take()
        left.append(len(pool.index.match(keys, 4)))
    assert left == [3, 2, 1, 0]


def test_the_least_recently_used_goes_first_and_use_renews():
    pool = BlockPool(6, 2)
    (old, old_keys), (new, new_keys) = computed(pool, [1, 1, 1, 1]), computed(pool, [2, 2, 2, 2])
    old.release()
    new.release()
    found = pool.index.match(old_keys, 2)
    for block in found:
        pool.share(block)
    BlockTable(pool, found, 2).release()  # used again: now the other one is older
    for _ in range(2 + 2):
        pool.take()
    assert len(pool.index.match(old_keys, 2)) == 2 and pool.index.match(new_keys, 2) == []
    assert pool.evictions == 2


def test_free_blocks_go_before_reusable_ones_and_live_ones_never():
    pool = BlockPool(4, 2)
    kept, kept_keys = computed(pool, [1, 1])
    gone, gone_keys = computed(pool, [2, 2])
    gone.release()
    pool.take(), pool.take()
    assert pool.evictions == 0 and pool.index.match(gone_keys, 1) != []
    pool.take()
    assert pool.evictions == 1 and pool.index.match(gone_keys, 1) == []
    assert pool.index.match(kept_keys, 1) == kept.blocks


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 3), st.randoms(use_true_random=False))
def test_an_evicted_block_never_leaves_a_longer_prefix_than_its_own_behind(tokens, size, random):
    """Prefixes overlap as they like and are released in any order: what is left of each is a prefix."""
    pool = BlockPool(60, size)
    chains = []
    tables = []
    for _ in range(4):
        cut = tokens[: random.randint(0, len(tokens))]
        keys = KeyChain(b"root", size)
        whole = len(cut) // size
        found = pool.index.match(keys.upto(cut, whole), whole)
        for block in found:
            pool.share(block)
        table = BlockTable(pool, found, len(found))
        table.grow(whole - len(found))
        table.publish(keys, cut, len(cut))
        tables.append(table)
        chains.append(keys.upto(cut, whole)[:whole])
    random.shuffle(tables)
    for table in tables:
        table.release()
    while pool.reusable:
        pool.free and pool.take()
        if not pool.free:
            pool.take()
        for chain in chains:
            known = [pool.index.get(key) is not None for key in chain]
            assert known == sorted(known, reverse=True)


# -- what is published ----------------------------------------------------------------------------------------


def test_only_what_is_computed_is_published_and_only_when_its_step_commits():
    world = World(block_tokens=4, seats=4, step_tokens=6)
    request = world.add("a", 20, max_tokens=3)
    while not request.ended:
        before = len(world.pool.index)
        plan = world.engine.plan()
        assert len(world.pool.index) == before
        world.note(world.engine.commit(world.executor.run(plan)))
        computed = request.progress.sequences[0].computed
        assert len(world.pool.index) == (-(-computed // 4) if request.ended else computed // 4)
    assert request.progress.sequences[0].computed == 22


def test_a_second_request_that_arrives_after_the_firsts_prefill_reuses_its_live_blocks():
    world = World(block_tokens=4)
    prompt = list(range(18))
    world.add("a", prompt, max_tokens=9)
    world.step()
    world.add("b", prompt, max_tokens=9)
    world.step()
    a, b = (world.story.record(id).sequences[0] for id in "ab")
    assert a.blocks[:4] == b.blocks[:4] and not set(a.blocks[4:]) & set(b.blocks[4:])
    assert (world.counts("b").reused, world.counts("b").prefilled) == (16, 2)
    world.run()
    assert world.said["a", 0] == world.said["b", 0] == world.expected("a", 0, 9)


def test_of_twins_in_one_step_one_is_indexed_and_the_others_blocks_are_free_in_the_end():
    world = World(blocks=20, block_tokens=4)
    prompt = list(range(16))
    world.add("a", prompt, max_tokens=1)
    world.add("b", prompt, max_tokens=1)
    world.run()
    assert (world.pool.reusable, world.pool.free) == (4, 16)
    assert world.counts("a").prefilled == world.counts("b").prefilled == 16


# -- what is found --------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9))
def test_a_repeated_prompt_reuses_all_but_its_last_position(p, size):
    world = World(block_tokens=size)
    for id in "ab":
        world.add(id, list(range(p)), max_tokens=2)
        world.run()
    assert (world.counts("b").reused, world.counts("b").prefilled) == (p - 1, 1)
    assert world.story.record("b").miss == Miss("last", p - 1)
    assert world.said["a", 0] == world.said["b", 0]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 12), st.integers(1, 7))
def test_a_chats_second_turn_reuses_the_generated_tokens_of_the_first(p, m, more, size):
    world = World(block_tokens=size)
    first = list(range(p))
    world.add("one", first, max_tokens=m)
    world.run()
    second = [*first, *world.said["one", 0], *range(500, 500 + more)]
    world.add("two", second, max_tokens=2)
    world.run()
    assert world.counts("two").reused == p + m - 1  # the last token never had state
    assert world.said["two", 0] == world.expected("two", 0, 2)


def test_a_preempted_request_finds_its_own_blocks_again():
    world = World(blocks=8, block_tokens=4)
    world.add("old", list(range(14)), max_tokens=8)
    new = world.add("new", list(range(100, 111)), max_tokens=4)
    while not new.preemptions:
        world.step()
    lost = world.counts("new").lost
    world.run()
    counts = world.counts("new")
    assert counts.regained > 0 and counts.reused == 0
    assert counts.regained + counts.recomputed == lost
    assert world.said["new", 0] == world.expected("new", 0, 4)


def test_the_same_tokens_after_another_beginning_are_not_the_same_prefix():
    world = World(block_tokens=4)
    world.add("a", [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1)
    world.run()
    world.add("b", [9, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)
    world.run()
    assert world.counts("b").reused == 0
    world.add("c", [5, 6, 7, 8, 9], max_tokens=1)
    world.run()
    assert world.counts("c").reused == 0


# -- why no more was found ------------------------------------------------------------------------------------


def miss_of(prompt: list[int], *, known: list[list[int]], **options: object) -> Miss | None:
    world = World(block_tokens=4, **options)
    for i, tokens in enumerate(known):
        world.add(f"k{i}", tokens, max_tokens=1)
        world.run()
    world.add("asks", prompt, max_tokens=1)
    world.run()
    return world.story.record("asks").miss


KNOWN = list(range(16))


@pytest.mark.parametrize(
    ("prompt", "known", "miss"),
    [
        pytest.param(KNOWN, [], Miss("none", 0), id="nothing is known"),
        pytest.param([90, *KNOWN], [KNOWN], Miss("none", 0), id="nothing known starts like this"),
        pytest.param([*KNOWN[:2], 90, 91, 92], [KNOWN], Miss("differs", 2), id="inside the first block"),
        pytest.param([*KNOWN[:10], *range(90, 100)], [KNOWN], Miss("differs", 10), id="inside a later block"),
        pytest.param([*KNOWN[:8], *range(90, 100)], [KNOWN], Miss("differs", 8), id="between two blocks"),
        pytest.param([*KNOWN, *range(90, 100)], [KNOWN], Miss("differs", 16), id="where the known one ends"),
        pytest.param([*KNOWN[:11], *range(90, 99)], [[*KNOWN[:9], 80, 81, 82], KNOWN, [*KNOWN[:8], *range(70, 74)]],
                     Miss("differs", 11), id="the nearest of several"),
        pytest.param(KNOWN, [KNOWN], Miss("last", 15), id="all but the last position"),
        pytest.param([*KNOWN[:15], 90], [KNOWN], Miss("last", 15), id="a difference at the last position"),
        pytest.param(KNOWN[:3], [KNOWN], Miss("last", 2), id="a short prompt that is wholly known"),
        pytest.param([9], [], Miss("last", 0), id="one position, which is the last"),
        pytest.param([9, 8, 7], [KNOWN], Miss("short", 0), id="shorter than a block and unknown"),
        pytest.param([*KNOWN, 9, 8], [KNOWN], Miss("short", 16), id="what is left is shorter than a block"),
        pytest.param([9, 8, 7, 6, 5], [[9, 8, 7]], Miss("differs", 3), id="where a known one ends inside a block"),
    ],
)  # fmt: skip
def test_the_miss_says_where_reuse_ended_and_why(prompt, known, miss):
    assert miss_of(prompt, known=known) == miss


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=12),
    st.lists(st.integers(0, 2), min_size=2, max_size=7),
    st.sets(st.integers(0, 11)),
)
def test_the_nearest_known_prefix_is_found_among_many_and_after_some_were_evicted(known, asks, evicted):
    """Blocks of six, whole ones and such as are full in part; one that was evicted is named where reuse would have
    gone further with it, and it agrees until it ends, or what can be reused does."""
    index = PrefixIndex()
    left, gone = [], {}
    for i, tokens in enumerate({tuple(tokens): None for tokens in known}):
        index.put(block_key(b"root", list(tokens)), i, b"root", list(tokens))
        if i in evicted:
            index.evict(block_key(b"root", list(tokens)), i)
            gone[i] = list(tokens)
        else:
            left.append(list(tokens))
    limit, wanted = len(asks) - 1, asks[:-1]
    at = max((common(tokens, wanted) for tokens in left), default=0)
    would = {i: common(tokens, wanted) for i, tokens in gone.items()}
    would = {i: agrees for i, agrees in would.items() if agrees in (limit, len(gone[i])) and agrees > at}
    miss = index.explain(KeyChain(b"root", 6), asks, matched=int(wanted in left and limit == 6), limit=limit)
    if at == limit:
        assert miss == Miss("last", limit)
    elif would:
        assert (miss.why, miss.at) == ("evicted", at) and would[miss.step] == max(would.values())
    elif at:
        assert (miss.why, miss.at) == ("differs", at)
    else:
        assert miss == Miss("none" if limit == 6 else "short", 0)


def test_a_small_change_inside_what_is_shared_is_told_from_another_text():
    """Block size 4: positions 8 to 11 and 12 to 15 are looked at."""
    changed = [*KNOWN[:9], 90, *KNOWN[10:]]
    assert miss_of([*changed, 91], known=[KNOWN]) == Miss("differs", 9, again=6)
    assert miss_of([*changed[:12], *range(90, 99)], known=[KNOWN]) == Miss("differs", 9, again=2)
    assert miss_of([*KNOWN[:9], *range(90, 99)], known=[KNOWN]) == Miss("differs", 9)


def test_without_a_prefix_cache_the_reason_is_off():
    assert miss_of(KNOWN, known=[KNOWN], prefix_cache=False) == Miss("off", 0)


def test_an_evicted_block_is_named_by_the_position_at_which_it_starts():
    world = World(blocks=8, block_tokens=4)
    world.add("a", KNOWN, max_tokens=1)
    world.run()
    world.add("b", list(range(100, 125)), max_tokens=1)  # seven blocks, of which four are free: evicts three
    world.run()
    assert world.pool.evictions == 3
    step = next(event.step for event in world.events if isinstance(event, Admitted) and event.id == "b")
    world.add("c", KNOWN, max_tokens=1)
    world.run()
    assert world.story.record("c").miss == Miss("evicted", 4, step=step)
    world.add("d", KNOWN, max_tokens=1)  # c computed it again
    world.run()
    assert world.story.record("d").miss == Miss("last", 15)


def tail_evicted() -> tuple[World, list[int]]:
    """A chat's first turn of two whole blocks and a tail, of which the tail alone was evicted; and its tokens."""
    world = World(blocks=8, block_tokens=4)
    world.add("one", KNOWN[:9], max_tokens=3)  # 11 positions have state
    world.run()
    world.add("other", list(range(100, 121)), max_tokens=2)  # six blocks, of which five are free
    world.run()
    assert world.pool.evictions == 1
    return world, [*KNOWN[:9], *world.said["one", 0]]


@pytest.mark.parametrize("asks", ["the next turn", "the same prompt", "the tail and one position more"])
def test_a_tail_that_was_evicted_is_named_though_it_filled_its_block_in_part(asks):
    world, turn = tail_evicted()
    step = next(event.step for event in world.events if isinstance(event, Admitted) and event.id == "other")
    prompts = {"the next turn": [*turn, *range(500, 509)], "the same prompt": [*KNOWN[:9], 77]}
    world.add("two", prompts.get(asks, turn), max_tokens=1)
    world.run()
    assert world.story.record("two").miss == Miss("evicted", 8, step=step)


def test_an_evicted_tail_does_not_account_for_what_differs_from_it():
    world, turn = tail_evicted()
    world.add("two", [*turn[:9], 501, *range(600, 606)], max_tokens=1)
    world.run()
    assert world.story.record("two").miss == Miss("differs", 8)


def test_an_evicted_tail_that_was_computed_again_is_forgotten():
    world, turn = tail_evicted()
    world.add("again", KNOWN[:9], max_tokens=3)
    world.run()
    world.add("two", [*turn, 500, 501], max_tokens=1)
    world.run()
    assert world.story.record("two").miss == Miss("differs", 11)


def test_what_was_evicted_twice_is_remembered_once_and_by_its_last_step():
    index, key = PrefixIndex(), block_key(b"root", [1])
    for step in (3, 8):
        index.put(key, 0, b"root", [1])
        index.evict(key, step)
    assert index.explain(KeyChain(b"root", 1), [1, 0], matched=0, limit=1) == Miss("evicted", 0, step=8)
    assert index._evicted._following == {b"root": [[1]]}


def test_only_so_many_evictions_are_remembered():
    index = PrefixIndex()
    keys = [block_key(b"root", [i]) for i in range(prefix._REMEMBERED_EVICTIONS + 1)]
    for i, key in enumerate(keys):
        index.put(key, i, b"root", [i])
        index.evict(key, i)
    assert len(index) == 0
    assert index.explain(KeyChain(b"root", 1), [0, 0], matched=0, limit=1) == Miss("none", 0)
    assert index.explain(KeyChain(b"root", 1), [1, 0], matched=0, limit=1) == Miss("evicted", 0, step=1)
    remembered = index._evicted
    assert len(remembered._latest) == len(remembered._following[b"root"]) == prefix._REMEMBERED_EVICTIONS


# -- a block that agrees in part ------------------------------------------------------------------------------


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6), st.integers(0, 40), st.integers(1, 12),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=5),
)  # fmt: skip
def test_reuse_goes_as_far_as_any_ended_request_agrees_but_for_the_last_position(size, spare, emits, prompts):
    """One request after another, and nothing is ever evicted: what had state is all but the last token."""
    world = World(blocks=200 + spare, block_tokens=size, vocab=3)
    had_state: list[list[int]] = []
    for i, prompt in enumerate(prompts):
        world.add(f"r{i}", prompt, max_tokens=emits)
        world.run()
        known = max((common(prompt, before) for before in had_state), default=0)
        record = world.story.record(f"r{i}")
        assert record.first_reused == min(known, len(prompt) - 1)
        assert record.miss is not None and record.miss.at == record.first_reused
        assert world.said[f"r{i}", 0] == world.expected(f"r{i}", 0, emits)
        had_state.append([*prompt, *world.said[f"r{i}", 0]][:-1])


@pytest.mark.parametrize("blocks", [5, 6, 7])
def test_a_block_may_be_copied_in_the_step_that_evicts_it(blocks):
    """The pool is so small that the second prompt needs every block, the one that it copies from included."""
    world = World(blocks=blocks, block_tokens=4)
    world.add("a", KNOWN, max_tokens=1)
    world.run()
    world.add("b", [*KNOWN[:10], *range(90, 100)][: 4 * blocks - 1], max_tokens=1)
    world.run()
    assert world.counts("b").reused == 10
    assert world.said["b", 0] == world.expected("b", 0, 1)


def test_what_a_copy_came_from_is_evicted_after_what_was_of_no_use():
    world = World(blocks=8, block_tokens=4)
    world.add("a", KNOWN[:4], max_tokens=1)
    world.run()
    world.add("b", list(range(50, 54)), max_tokens=1)
    world.run()
    world.add("c", [*KNOWN[:3], 99, 98], max_tokens=1)
    world.run()
    assert world.counts("c").reused == 3
    world.add("d", list(range(60, 84)), max_tokens=1)  # seven blocks: evicts all but the latest
    world.run()
    world.add("e", [*KNOWN[:4], 97], max_tokens=1)
    world.run()
    assert world.counts("e").reused >= 3


# -- never across origins -------------------------------------------------------------------------------------

ORIGINS = {
    "salt": Origin("r1", "fp32", "fp32", salt="another"),
    "adapter": Origin("r1", "fp32", "fp32", adapter="digest"),
    "revision": Origin("r2", "fp32", "fp32"),
    "format": Origin("r1", "fp32", "bf16"),
}


@pytest.mark.parametrize("by", list(ORIGINS))
def test_two_origins_never_share_and_only_within_a_salt_is_the_other_named(by):
    memory = StateMemory(BlockPool(20, 4), prefix_cache=True)
    for origin, reused in ((Origin("r1", "fp32", "fp32"), 0), (ORIGINS[by], 0), (ORIGINS[by], 11)):
        sequence = Sequence(0, KNOWN[:12], 12, KeyChain(origin, 4))
        quoted = memory.quote([sequence])
        assert quoted.inherited(4) == reused
        miss = memory.miss(sequence, len(quoted.matched[0]))
        if reused:
            assert miss == Miss("last", 11)
        elif origin is ORIGINS[by]:
            assert miss == (Miss("none", 0) if by == "salt" else Miss("other", 0, what=by))
        (sequence.state,) = memory.reserve(quoted)
        sequence.computed = 12
        memory.publish(sequence)
        sequence.give_back()


def test_an_origin_is_forgotten_with_its_last_block():
    pool = BlockPool(3, 4)
    table, _ = computed(pool, KNOWN[:12], Origin("r1", "fp32", "fp32"))
    table.release()
    for _ in range(3):
        pool.take()
    assert not pool.index._origins and not pool.index._salts and not pool.index._following
