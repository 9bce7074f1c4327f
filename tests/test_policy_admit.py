"""What an admission leaves free for those who run to grow: each of the four ways, and what is told of it."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.events import Preempted, Stepped
from headway.core.verdict import Ask, Go, Holder
from headway.policy.admit import LEAST_HISTORY, REMEMBERED, AnswerLengths, Kept, Outlook, headroom, predict, reserve
from headway.policy.waiting import Room, judge
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from world import World

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.space import admission_cost, admissions
from benchmarks.space.load import Setting, conversations, serve

HOLDERS = (Holder("r-7", 12, 3),)


def outlook(emitted: int, most: int, *, held: int = 1, slack: int = 0, unit: int = 4) -> Outlook:
    return Outlook(frees=held, slack=slack, unit=unit, emitted=emitted, most=most)


def lengths(*tokens: int) -> AnswerLengths:
    known = AnswerLengths()
    for each in tokens:
        known.add(each)
    return known


# -- the pure functions ---------------------------------------------------------------------------------------


def test_headroom_is_a_block_for_each_running_sequence_and_none_where_nobody_runs():
    assert [headroom(running)([outlook(0, 8)]) for running in (0, 1, 7)] == [Kept(n, "headroom") for n in (0, 1, 7)]


def test_a_reserve_is_all_that_everyone_may_still_take_the_newcomer_included():
    """20 tokens left, room for 3: 17 need five blocks of 4. 2 left with room for 3 need none."""
    running = [outlook(10, 30, slack=3), outlook(28, 30, slack=3)]
    assert reserve(running)([outlook(0, 8)]) == Kept(5 + 0 + 2, "reserve")


def test_a_prediction_without_enough_history_is_headroom_and_says_so():
    running, asks = [outlook(1, 100), outlook(2, 100)], [outlook(0, 100)]
    few, enough = LEAST_HISTORY - 1, LEAST_HISTORY
    assert predict(running, lengths(*[5] * few))(asks) == Kept(2, "predict", seen=few, least=LEAST_HISTORY)
    told = predict(running, lengths(*[5] * enough))(asks)
    assert (told.by, told.seen, told.least) == ("predict", 0, 0)


def test_of_answers_likely_to_be_short_less_is_kept_than_of_those_that_may_be_long():
    running, asks = [outlook(1, 100, slack=2)] * 3, [outlook(0, 100, slack=2)]
    short, long = (predict(running, lengths(*[n] * LEAST_HISTORY))(asks).space for n in (5, 90))
    assert short < long <= reserve(running)(asks).space


SEQUENCES = st.lists(
    st.builds(
        lambda emitted, more, held, slack, unit: outlook(emitted, emitted + more, held=held, slack=slack, unit=unit),
        st.integers(0, 30), st.integers(0, 30), st.integers(0, 9), st.integers(0, 4), st.just(4),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(SEQUENCES, st.lists(st.integers(1, 60), min_size=LEAST_HISTORY, max_size=LEAST_HISTORY))
def test_a_prediction_is_the_fullest_moment_of_the_likely_future_and_at_most_a_block_each_more(sequences, history):
    """Token by token: each takes a block when its last is full, and gives back what it holds when its answer ends."""
    known = lengths(*history)
    ends = [known.likely(each.emitted, each.most) - each.emitted for each in sequences]
    fullest = 0
    for token in range(1, max(ends) + 1):
        taken = sum(
            max(0, -(-(token - each.slack) // 4)) for each, end in zip(sequences, ends, strict=True) if end >= token
        )
        back = sum(each.frees for each, end in zip(sequences, ends, strict=True) if end < token)
        fullest = max(fullest, taken - back)
    kept = predict(sequences[:-1], known)(sequences[-1:]).space
    assert min(fullest, reserve(sequences)([]).space) <= kept <= fullest + len(sequences)


def predicted_at_length(running: list[Outlook], asks: list[Outlook], known: AnswerLengths) -> int:
    """The definition, with all numbers as fractions: all together in order of what is left, for each who asks."""
    together = [*running, *asks]
    left = [(known.likely(each.emitted, each.most) - each.emitted, each) for each in together]
    left.sort(key=lambda pair: pair[0])
    ended = sum(each.frees for each in together)
    grown = peak = per_token = Fraction()
    for tokens, each in reversed(left):
        ended -= each.frees
        per_token += Fraction(1, each.unit)
        grown += 1 - Fraction(each.slack, each.unit)
        peak = max(peak, grown + per_token * tokens - ended)
    return min(sum(each.growth for each in together), int(peak))


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Outlook], list[list[Outlook]]]:
    """Who runs, and newcomers one by one; few lengths, so that many are alike."""
    unit = draw(st.sampled_from([1, 4, 16, 24]))
    each = st.builds(
        lambda emitted, more, held, slack: outlook(emitted, emitted + more, held=held, slack=slack, unit=unit),
        st.integers(0, 12), st.integers(0, 40), st.integers(0, 9), st.integers(-3, 30),
    )  # fmt: skip
    return draw(st.lists(each, max_size=12)), draw(st.lists(st.lists(each, min_size=1, max_size=5), min_size=1))


@settings(max_examples=200, deadline=None)
@given(crowds(), st.lists(st.integers(1, 30), min_size=LEAST_HISTORY, max_size=LEAST_HISTORY + 5))
def test_what_is_noted_once_for_all_who_ask_tells_each_what_the_definition_tells(crowd, history):
    running, newcomers = crowd
    known = lengths(*history)
    foreseen, reserved = predict(running, known), reserve(running)
    for asks in newcomers:
        assert foreseen(asks) == Kept(predicted_at_length(running, asks, known), "predict")
        assert reserved(asks) == Kept(sum(each.growth for each in [*running, *asks]), "reserve")


@given(st.lists(st.integers(1, 40), max_size=REMEMBERED + 40), st.integers(0, 40), st.integers(1, 40))
def test_the_likely_length_is_the_median_of_the_longer_ones_among_the_latest(history, emitted, more):
    longer = sorted(each for each in history[-REMEMBERED:] if each > emitted)
    likely = longer[(len(longer) - 1) // 2] if longer else emitted + more
    assert lengths(*history).likely(emitted, emitted + more) == min(emitted + more, likely)


# -- the verdict ----------------------------------------------------------------------------------------------


def test_what_is_there_now_but_is_kept_for_growth_waits_for_a_reservation_with_its_numbers():
    room = Room(seats=4, free=3, reusable=4, budget=100)
    wait = judge(Ask(1, 5, 0, 40), room, lambda: (HOLDERS, 2), lambda: Kept(3, "headroom"))
    assert (wait.on, wait.rule, wait.need, wait.have, wait.short) == ("space", "reservation", 8, 7, 1)
    assert (wait.kept, wait.by, wait.holders, wait.others) == (3, "headroom", HOLDERS, 2)
    assert judge(Ask(1, 5, 0, 40), room, lambda: (HOLDERS, 2), lambda: Kept(2, "headroom")) == Go(40)


def test_what_is_not_even_there_now_waits_for_blocks_and_growth_is_not_asked_about():
    def not_asked() -> Kept:
        raise AssertionError("growth is looked at only when what is needed now is there")

    wait = judge(Ask(1, 8, 0, 40), Room(4, 3, 4, 100), lambda: (HOLDERS, 2), not_asked)
    assert (wait.rule, wait.need, wait.kept, wait.by) == ("blocks", 8, 0, "")


@pytest.mark.parametrize(("admit", "kept"), [("headroom", 1), ("reserve", 4 + 2)])
def test_why_tells_how_much_is_left_for_growth_and_by_which_admission(admit, kept):
    world = World(blocks=9, block_tokens=4, admit=admit)
    world.add("runs", 15, max_tokens=17)  # 4 blocks of 8
    world.add("asks", 16, max_tokens=12)  # 5 blocks of 7: they are there
    world.step()
    assert tell(request_view(world.story, world.story.record("asks"), world.clock.now_ns()))[1] == (
        f"Waiting for space since step 1 (1.1 ms): needs 5 blocks, and {kept} to be left for growth (--admit "
        f"{admit}), 5 free and 0 reusable, {kept} short. runs holds 4. 0 requests are ahead."
    )
    world.run()
    assert world.said["asks", 0] == world.expected("asks", 0, 12)


@pytest.mark.parametrize("answers", [0, 5, LEAST_HISTORY])
def test_why_tells_that_a_prediction_has_no_history_yet_and_is_headroom(answers):
    world = World(blocks=9, block_tokens=4, admit="predict", prefix_cache=False)
    for place in range(answers):
        world.add(f"before {place}", 1, max_tokens=17, ignore_eos=True)
        world.run()
    assert world.model.answers.seen == answers
    world.add("runs", 15, max_tokens=17)  # 4 blocks of 8
    world.add("asks", 16, max_tokens=12)  # 5 blocks of 7: they are there
    world.step()
    wait = world.wait("asks")
    enough = answers == LEAST_HISTORY
    assert (wait.rule, wait.by, wait.kept) == ("reservation", "predict", 4 + 2 if enough else 1)
    assert (wait.seen, wait.least) == ((0, 0) if enough else (answers, LEAST_HISTORY))
    why = (
        "" if enough else f", which has no history yet, {answers} of 32 answers seen, and so judges as headroom does"
    )
    said = tell(request_view(world.story, world.story.record("asks"), world.clock.now_ns()))[1]
    assert f" {wait.kept} to be left for growth (--admit predict{why}), 5 free " in said


@pytest.mark.parametrize("admit", ["headroom", "reserve", "predict"])
def test_whoever_has_the_pool_to_itself_goes_whatever_is_to_be_left(admit):
    world = World(blocks=4, block_tokens=4, admit=admit)
    world.add("a", 13, max_tokens=3)
    world.run()
    assert world.said["a", 0] == world.expected("a", 0, 3)


def test_under_reserve_nobody_is_preempted_even_by_answers_as_long_as_allowed():
    world = World(blocks=20, block_tokens=4, seats=8, admit="reserve", prefix_cache=False)
    for i in range(12):
        world.add(f"r{i}", 5 + i, n=1 + i % 2, max_tokens=9)
    world.run()
    assert not any(isinstance(event, Preempted) for event in world.events)


# -- the experiment, small ------------------------------------------------------------------------------------


def test_the_pool_shrinks_and_the_default_stays_within_a_tenth_of_the_best():
    """benchmarks/space/admissions.py in small; there the sizes are more, and a plot shows the cliff."""
    rows = admissions.measure(conversations(40, 8.0, max_tokens=256), sizes=(300, 90))
    for row in rows:
        best = max(outcome.goodput for outcome in row.outcomes.values())
        assert row.outcomes[admissions.DEFAULT].goodput >= 0.9 * best
        assert row.outcomes["reserve"].preemptions == 0
    tight = rows[-1].outcomes
    assert tight["optimistic"].recompute_share > 1.2 * tight["headroom"].recompute_share > 0
    assert tight["reserve"].occupancy < 0.7 * tight["headroom"].occupancy and tight["optimistic"].occupancy <= 1
    assert {outcome.finished for row in rows for outcome in row.outcomes.values()} == {40}


@pytest.mark.parametrize("admit", admissions.ADMISSIONS)
def test_what_an_admission_costs_is_taken_where_it_is_asked_for_the_head_and_all_behind_it(admit):
    """benchmarks/space/admission_cost.py: the same number of requests is judged in each step, for the same reason."""
    made, told = admission_cost.engine(admit, 8, 40), []
    made.emit = told.append
    made.step()
    (step,) = [event for event in told if isinstance(event, Stepped)]
    assert len(step.members) == 8 and len(step.waits) == 33
    assert {(wait.rule, wait.by) for wait in step.waits.values()} == (
        {("blocks", "")} if admit == "optimistic" else {("reservation", admit)}
    )


def test_a_pool_where_reuse_is_off_recomputes_more_for_the_same_load():
    asked = conversations(30, 8.0, max_tokens=256)
    on, off = (serve(asked, Setting(100, "optimistic", prefix_cache=cache)) for cache in (True, False))
    assert off.recomputed / max(1, off.preemptions) > on.recomputed / max(1, on.preemptions)
