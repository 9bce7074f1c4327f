"""Drafts from a sequence's own past: what is guessed, when it stops, and that it never changes an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.core.plan import Grammar
from headway.core.request import Pause, TextRequest
from headway.policy.drafts import JUDGED_AFTER, MOST_PAUSE_TOKENS, PAUSE_TOKENS, PromptLookup, lookup_drafts
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from headway.story.tell.views import DraftsView
from world import SAMPLED, Allowing, World


def slow_guess(tokens: list[int], most: int) -> list[int]:
    """What `PromptLookup` guesses, by looking through everything each time."""
    for run in (3, 2):
        last = tokens[-run:]
        for at in range(len(tokens) - 1, run - 1, -1):
            if len(last) == run and tokens[at - run : at] == last:
                again = tokens[at:]
                return [again[i % len(again)] for i in range(most)]
    return []


@given(tokens=st.lists(st.integers(0, 3), max_size=40), most=st.integers(1, 6), cut=st.integers(0, 40))
def test_it_guesses_what_followed_the_latest_occurrence_however_often_it_was_asked_before(tokens, most, cut):
    drafter = PromptLookup(most)
    drafter.guess(tokens[:cut])
    assert drafter.guess(tokens) == slow_guess(tokens, most)


def test_a_loop_is_guessed_to_go_round_again():
    assert PromptLookup(5).guess([7, 1, 2, 3, 1, 2, 3]) == [1, 2, 3, 1, 2]
    assert PromptLookup(5).guess([1, 2, 3]) == []
    assert PromptLookup(5).guess([]) == []


def test_guesses_that_do_not_pay_pause_for_longer_each_time_and_then_are_tried_again():
    drafter, tokens = PromptLookup(4), [1, 2] * 10
    assert drafter.guess(tokens)
    pauses = []
    for _ in range(8):
        for _ in range(JUDGED_AFTER // 4 - 1):
            assert drafter.verified(4, 0) is None
        pauses.append(drafter.verified(4, 1))
        assert drafter.guess(tokens) == []
        tokens = tokens + [1, 2] * (pauses[-1].tokens // 2 + 2)
        assert drafter.guess(tokens) == [1, 2, 1, 2]
    assert (pauses[0].drafted, pauses[0].accepted, pauses[0].tokens) == (JUDGED_AFTER, 1, PAUSE_TOKENS)
    assert [pause.tokens for pause in pauses] == [min(PAUSE_TOKENS << i, MOST_PAUSE_TOKENS) for i in range(8)]


def test_guesses_that_pay_go_on():
    drafter = PromptLookup(4)
    drafter.guess([1, 2, 1, 2])
    assert [drafter.verified(4, 1) for _ in range(100)] == [None] * 100


def test_a_request_says_how_many_it_wants():
    assert lookup_drafts(4)(TextRequest(id="a", prompt=(1,), draft=0)) is None
    assert lookup_drafts(0)(TextRequest(id="a", prompt=(1,))) is None
    for most, wanted in ((4, None), (0, 4), (9, 4)):
        drafter = lookup_drafts(most)(TextRequest(id="a", prompt=(1,), draft=wanted))
        assert drafter is not None and len(drafter.guess([1, 1, 1, 1])) == 4
    with pytest.raises(InvalidRequest, match="draft is 17 tokens at a time; it must be from 0 to 16"):
        World().add("a", 5, draft=17)


@pytest.mark.parametrize("sampling", [{}, {"sampling": SAMPLED}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(20))
def test_an_answer_is_the_same_with_and_without_drafts(seed, sampling):
    """A vocabulary of 3 makes even a hash repeat itself, so that some guesses are right and many are not."""
    world = World(vocab=3, blocks=40, block_tokens=4, drafters=lookup_drafts(3))
    world.add("a", [seed % 3, seed // 3 % 3, 1], max_tokens=60, **sampling)
    world.add("b", [2, seed % 3], max_tokens=60, n=2, **sampling)
    world.run()
    for key in world.said:
        assert world.said[key] == world.expected(*key, count=60)


def test_right_and_wrong_guesses_are_told_in_numbers():
    """Every guess is right for one request, none for the other."""
    truth = World()
    truth.add("good", 10, max_tokens=100)
    truth.run()
    said = truth.said["good", 0]

    class Knowing:
        def guess(self, tokens: list[int]) -> list[int]:
            return said[len(tokens) - 10 :][:3]

        def verified(self, drafted: int, accepted: int) -> None:
            return None

    class Looping(PromptLookup):
        def guess(self, tokens: list[int]) -> list[int]:
            return [996 if super().guess(tokens + tokens[-3:]) else 0] * 4 if len(tokens) >= self._resumes_at else []

    world = World(drafters=lambda new: Knowing() if new.id == "good" else Looping(4))
    world.add("good", 10, max_tokens=100)
    world.add("bad", 10, max_tokens=100)
    world.run()
    assert world.said["good", 0] == said
    assert world.counts("good").accepted == 74  # the first token has no draft beside it; then 24 steps of 4, and 3
    assert world.counts("good").rejected == 0
    view = request_view(world.story, world.story.record("good"), 0)
    assert "Drafts: 74 of 74 were accepted, which saved as many steps." in tell(view)
    view = request_view(world.story, world.story.record("bad"), 0)
    assert view.sequences[0].drafts == DraftsView(0, 64, (Pause(drafted=64, accepted=0, tokens=128),))
    assert (
        "Drafts: 0 of 64 were accepted, which saved as many steps; they did not pay and paused once, last for 128 "
        "tokens, when 0 of 64 had been right."
    ) in tell(view)


def test_a_grammar_cuts_guesses_where_it_forbids_one():
    """Every fourth token is forbidden; the guide itself asserts that none is chosen."""
    world = World(vocab=11, drafter=lambda tokens: [1, 2, 4, 3])
    request = world.add("a", 5, max_tokens=30, grammar=Grammar("json"))
    world.engine.supply("a", "grammar", [Allowing(11, lambda token: token % 4 == 0)])
    world.run()
    assert len(world.said["a", 0]) == 30
    assert not any(token % 4 == 0 for token in world.said["a", 0])
    assert max(member.drafts for step in world.steps() for member in step.members) == 2
    assert request.progress.sequences[0].counts.rejected > 0
