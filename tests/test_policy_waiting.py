"""Who waits, and for what: each question, their order, and every number in the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.verdict import BEHIND, RULES, Ask, Go, Holder, Never, Wait, Worst, change_key
from headway.policy import budget
from headway.policy.waiting import Limits, Room, judge, look_further, never, no_budget

NAMED = (Holder("r-7", 12, 3),)


def named() -> tuple[tuple[Holder, ...], int]:
    return NAMED, 2


def not_asked() -> tuple[tuple[Holder, ...], int]:
    raise AssertionError("holders are named only when space is short")


PLENTY = Room(seats=4, free=10, reusable=5, budget=100)


def test_a_request_that_fits_goes_with_all_its_positions():
    assert judge(Ask(seats=1, space=3, revived=0, cost=40), PLENTY, not_asked) == Go(40)


def test_a_request_that_fits_goes_with_what_the_step_has_left():
    room = Room(seats=4, free=10, reusable=5, budget=7)
    assert judge(Ask(seats=1, space=3, revived=0, cost=40), room, not_asked) == Go(7)


def test_the_exact_fit_goes_and_one_more_of_anything_waits():
    room = Room(seats=2, free=3, reusable=4, budget=1)
    assert judge(Ask(2, 7, 0, 1), room, not_asked) == Go(1)
    assert judge(Ask(2, 5, 2, 1), room, not_asked) == Go(1)
    assert judge(Ask(3, 7, 0, 1), room, not_asked).rule == "seats"
    assert judge(Ask(2, 8, 0, 1), room, named).rule == "blocks"
    assert judge(Ask(2, 6, 2, 1), room, named).rule == "blocks"


def test_short_of_seats():
    room = Room(seats=2, free=10, reusable=5, budget=100)
    assert judge(Ask(seats=3, space=3, revived=0, cost=40), room, not_asked) == Wait(
        on="turn", rule="seats", unit="seats", need=3, have=2, short=1, free=10, reusable=5
    )


def test_short_of_blocks_names_the_holders():
    room = Room(seats=2, free=2, reusable=1, budget=100)
    assert judge(Ask(seats=1, space=9, revived=0, cost=40), room, named) == Wait(
        on="space",
        rule="blocks",
        unit="blocks",
        need=9,
        have=3,
        short=6,
        free=2,
        reusable=1,
        holders=NAMED,
        others=2,
    )


def test_short_of_budget():
    room = Room(seats=2, free=2, reusable=1, budget=0)
    expected = Wait(on="turn", rule="budget", unit="positions", need=1, have=0, short=1, free=2, reusable=1)
    assert judge(Ask(seats=1, space=3, revived=0, cost=40), room, not_asked) == expected
    assert no_budget(1, room) == expected


def test_a_matched_block_that_is_reusable_is_not_counted_as_available_too():
    """The classic double count: eight blocks are needed, four of them are found and reusable, four more are to be
    taken. Three free and the four found look like seven available, but are three."""
    room = Room(seats=1, free=3, reusable=4, budget=100)
    verdict = judge(Ask(seats=1, space=4, revived=4, cost=40), room, named)
    assert (verdict.need, verdict.have, verdict.short) == (4, 3, 1)
    assert (verdict.free, verdict.reusable) == (3, 4)


@pytest.mark.parametrize(
    ("seats", "free", "positions", "rule"),
    [(0, 0, 0, "seats"), (0, 0, 9, "seats"), (0, 9, 0, "seats"), (0, 9, 9, "seats"), (1, 0, 0, "blocks"),
     (1, 0, 9, "blocks"), (1, 9, 0, "budget"), (1, 9, 9, None)],
)  # fmt: skip
def test_of_several_shortages_the_slowest_to_pass_is_told_seats_then_blocks_then_budget(seats, free, positions, rule):
    verdict = judge(Ask(1, 2, 0, 5), Room(seats, free, 0, positions), named)
    assert getattr(verdict, "rule", None) == rule


@given(
    st.builds(Ask, st.integers(1, 4), st.integers(0, 20), st.integers(0, 5), st.integers(1, 50)),
    st.builds(Room, st.integers(0, 4), st.integers(0, 20), st.integers(5, 20), st.integers(0, 50)),
)
def test_it_goes_exactly_when_nothing_is_short_and_what_is_short_is_need_less_have(ask, room):
    verdict = judge(ask, room, named)
    fits = ask.seats <= room.seats and ask.space + ask.revived <= room.free + room.reusable and room.budget > 0
    assert isinstance(verdict, Go) == fits
    if isinstance(verdict, Go):
        assert 1 <= verdict.positions <= min(ask.cost, room.budget)
    else:
        assert verdict.short == verdict.need - verdict.have > 0 and verdict.have >= 0
        assert RULES[verdict.rule] == verdict.on
        assert (verdict.free, verdict.reusable) == (room.free, room.reusable)


def test_everyone_behind_shares_one_value_without_numbers():
    assert Wait(on="turn", rule="order", unit="requests", need=0, have=0, short=0) == BEHIND
    assert BEHIND.holders == ()


def test_a_verdict_has_changed_when_kind_on_rule_or_need_has():
    wait = Wait(on="space", rule="blocks", unit="blocks", need=9, have=2, short=7, free=2)
    same = Wait(on="space", rule="blocks", unit="blocks", need=9, have=5, short=4, free=3, reusable=2, holders=NAMED)
    others = [
        Wait(on="space", rule="blocks", unit="blocks", need=8, have=2, short=6, free=2),
        Wait(on="space", rule="reservation", unit="blocks", need=9, have=2, short=7, free=2),
        BEHIND, Go(9), Never("pool", "blocks", 9, 2, "--memory"), None,
    ]  # fmt: skip
    assert change_key(wait) == change_key(same)
    assert all(change_key(wait) != change_key(other) for other in others)
    assert change_key(Go(1)) == change_key(Go(2))


# -- how far the step looks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "overtaken", "max_bypass", "may"),
    [(0, 0, 0, False), (0, 0, 1, True), (1, 0, 1, False), (0, 1, 1, False), (31, 0, 32, True), (32, 0, 32, False),
     (0, 31, 32, True), (0, 32, 32, False)],
)  # fmt: skip
def test_behind_a_blocked_head_the_step_looks_as_far_as_the_bypass_bound(behind, overtaken, max_bypass, may):
    assert look_further(behind, overtaken, max_bypass) is may


# -- never ----------------------------------------------------------------------------------------------------

LIMITS = Limits(context=100, model_context=101, space=10, seats=4)


@pytest.mark.parametrize(
    ("ask", "verdict"),
    [
        (Worst(seats=4, context=100, space=10), None),
        (Worst(seats=5, context=1, space=1), Never("seats", "seats", 5, 4, "--seats")),
        (Worst(seats=1, context=101, space=1), Never("context", "positions", 101, 100, "--max-context")),
        (Worst(seats=1, context=1, space=11), Never("pool", "blocks", 11, 10, "--memory")),
        (Worst(seats=5, context=101, space=11), Never("seats", "seats", 5, 4, "--seats")),
        (Worst(seats=1, context=101, space=11), Never("context", "positions", 101, 100, "--max-context")),
    ],
)
def test_what_could_not_be_served_even_alone_is_refused_with_need_limit_and_the_option_that_raises_it(ask, verdict):
    assert never(ask, LIMITS) == verdict


def test_no_option_raises_a_context_that_is_the_models_own():
    limits = Limits(context=100, model_context=100, space=10, seats=4)
    assert never(Worst(seats=1, context=101, space=1), limits) == Never("context", "positions", 101, 100, None)


# -- what a step spends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "left", "grant"), [(10, 4, 4), (4, 10, 4), (4, 0, 0), (1, 1, 1)])
def test_of_what_can_be_divided_the_step_grants_as_much_as_it_has_left(cost, left, grant):
    assert budget.granted(cost, left, whole=False) == grant


@pytest.mark.parametrize(("cost", "left", "grant"), [(10, 10, 10), (10, 9, 0), (1, 0, 0)])
def test_what_is_whole_moves_as_a_whole_or_not_at_all(cost, left, grant):
    assert budget.granted(cost, left, whole=True) == grant


def test_what_is_whole_and_larger_than_any_step_takes_an_untouched_one():
    assert budget.granted(600, 512, whole=True, untouched=True) == 600
    assert budget.granted(600, 511, whole=True, untouched=False) == 0


@pytest.mark.parametrize(
    ("guesses", "tokens_left", "positions_left", "slack", "count"),
    [
        (4, 100, 100, 100, 4),
        (4, 3, 100, 100, 2),  # of three tokens to come, two drafts and the one after them
        (4, 1, 100, 100, 0),
        (4, 100, 2, 100, 2),
        (4, 100, -1, 100, 0),
        (4, 100, 100, 1, 1),
        (4, 100, 100, -3, 0),
        (0, 100, 100, 100, 0),
    ],
)
def test_drafts_take_only_what_is_left_over(guesses, tokens_left, positions_left, slack, count):
    assert budget.drafts(guesses, tokens_left=tokens_left, positions_left=positions_left, slack=slack) == count
