"""Prefix keys: equal exactly when the state behind them is interchangeable."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.memory.keys import KeyChain, block_key, root_key
from world import World

BASE = {"revision": "r", "weights": "fp32", "state": "fp32"}
FIELDS = tuple(inspect.signature(root_key).parameters)
TEXT = st.text(max_size=12)


def test_the_root_covers_what_the_design_names():
    assert set(FIELDS) == {"revision", "weights", "state", "adapter", "positions", "inputs", "salt"}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_the_root_changes_the_key(field):
    assert root_key(**BASE) != root_key(**{**BASE, field: "another"})


@pytest.mark.parametrize("one", FIELDS)
@pytest.mark.parametrize("other", FIELDS)
def test_a_value_of_one_kind_cannot_imitate_the_same_value_of_another(one, other):
    empty = dict.fromkeys(FIELDS, "")
    keys = {root_key(**{**empty, field: "x"}) for field in (one, other)}
    assert len(keys) == (1 if one == other else 2)


@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, TEXT)), st.fixed_dictionaries(dict.fromkeys(FIELDS, TEXT)))
def test_roots_are_equal_exactly_when_all_fields_are(one, other):
    assert (root_key(**one) == root_key(**other)) == (one == other)


@given(TEXT, TEXT, st.sampled_from(FIELDS))
def test_a_value_cannot_swallow_the_fields_that_follow_it(head, tail, field):
    """Values are measured, so text that looks like the next tag does not become it."""
    fields = dict.fromkeys(FIELDS, "")
    following = FIELDS[(FIELDS.index(field) + 1) % len(FIELDS)]
    plain = {**fields, field: head, following: tail}
    forged = {**fields, field: f"{head}{following}\0{len(tail.encode()).to_bytes(8, 'little').decode()}{tail}"}
    assert root_key(**plain) != root_key(**forged)


def test_a_block_key_is_no_root_key_even_of_the_same_bytes():
    assert block_key(root_key(**BASE), []) != root_key(**BASE)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6), st.lists(st.integers(0, 1 << 40), max_size=6))
def test_block_keys_are_equal_exactly_when_parent_and_tokens_are(one, other):
    parents = root_key(**BASE), root_key(**BASE, salt="s")
    assert (block_key(parents[0], one) == block_key(parents[0], other)) == (one == other)
    assert block_key(parents[0], one) != block_key(parents[1], one)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=24), st.integers(1, 6), st.data())
def test_a_chain_changes_from_the_first_different_block_on_and_not_before(tokens, size, data):
    place = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
    whole = len(tokens) // size
    one = KeyChain(root_key(**BASE), size).upto(tokens, whole)
    other = KeyChain(root_key(**BASE), size).upto(changed, whole)
    assert [a == b for a, b in zip(one, other, strict=True)] == [i < place // size for i in range(whole)]


def test_keys_are_the_same_however_often_and_in_whatever_portions_they_are_asked_for():
    tokens = list(range(12))
    at_once = KeyChain(root_key(**BASE), 3).upto(tokens, 4)
    chain = KeyChain(root_key(**BASE), 3)
    chain.upto(tokens[:6], 2)
    assert chain.upto(tokens, 4)[:4] == at_once[:4]
    assert chain.upto(tokens, 1)[:4] == at_once[:4]


def test_keys_do_not_change_from_run_to_run():
    """They will name blocks on disk: a change of the scheme must be meant."""
    root = root_key(**BASE)
    assert root.hex() == "9ee66606f21769b417ea7a31d0ad6197"
    assert block_key(root, [1, 2, 3]).hex() == "49de7801cd59d12ea808098883e0386e"


def test_salts_separate_callers_and_a_foreign_prefix_reads_as_none():
    world = World(block_tokens=4)
    prompt = list(range(17))
    world.add("mine", prompt, max_tokens=1, cache_salt="me")
    world.run()
    for id, salt in (("yours", "you"), ("nobodys", "")):
        world.add(id, prompt, max_tokens=1, cache_salt=salt)
        world.run()
        record = world.story.record(id)
        assert (record.first_reused, record.miss.why, record.miss.at) == (0, "none", 0)
    world.add("mine again", prompt, max_tokens=1, cache_salt="me")
    world.run()
    assert world.story.record("mine again").first_reused == 16


def test_an_evicted_prefix_of_a_foreign_salt_reads_as_none_too():
    world = World(blocks=5, block_tokens=4)
    prompt = list(range(17))
    world.add("mine", prompt, max_tokens=1, cache_salt="me")
    world.run()
    world.add("fill", list(range(100, 119)), max_tokens=1)
    world.run()
    assert world.pool.evictions >= 4
    for id, salt, why in (("yours", "you", "none"), ("mine again", "me", "evicted")):
        world.add(id, prompt, max_tokens=1, cache_salt=salt)
        world.run()
        assert world.story.record(id).miss.why == why
