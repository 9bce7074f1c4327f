"""Logprobs in the engine: one for each token, whatever drafts, chunks, reuse and preemption did to the steps."""

from __future__ import annotations

import pytest

from headway.compute.fake import fake_logprob
from headway.core.errors import InvalidRequest
from headway.core.request import Stage
from headway.policy.drafts import lookup_drafts
from world import SAMPLED, World


class Listening(World):
    """Also collects logprobs."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.told: dict[tuple[str, int], list] = {}
        self.scored: dict[str, list] = {}

    def note(self, emissions) -> None:
        super().note(emissions)
        for emission in emissions:
            self.told.setdefault((emission.id, emission.index), []).extend(emission.logprobs)
            self.scored.setdefault(emission.id, []).extend(emission.prompt_logprobs)

    def right(self, id: str, index: int = 0) -> list[tuple[int, float]]:
        """Each emitted token with the logprob it must have."""
        known = [*self.asked[id].prompt, *self.said[id, index]]
        start = len(self.asked[id].prompt)
        return [(known[i], fake_logprob(known[:i], known[i])) for i in range(start, len(known))]

    def right_prompt(self, id: str) -> list[tuple[int, float]]:
        prompt = self.asked[id].prompt
        return [(prompt[i], fake_logprob(prompt[:i], prompt[i])) for i in range(1, len(prompt))]


def plain(told) -> list[tuple[int, float]]:
    return [(one.token, one.logprob) for one in told]


@pytest.mark.parametrize("draft", [0, 3])
def test_every_emitted_token_has_its_logprob_also_accepted_drafts_and_siblings(draft):
    world = Listening(vocab=3, blocks=60, block_tokens=4, drafters=lookup_drafts(draft))
    world.add("a", 9, max_tokens=40, logprobs=2)
    world.add("b", 6, max_tokens=30, n=3, logprobs=0, sampling=SAMPLED)
    world.add("quiet", 6, max_tokens=5)
    world.run()
    for key in (("a", 0), ("b", 0), ("b", 1), ("b", 2)):
        assert plain(world.told[key]) == world.right(*key)
    assert world.told["quiet", 0] == []
    assert (world.counts("a").accepted > 0) == bool(draft)


@pytest.mark.parametrize("step_tokens", [4, 7, 512])
def test_prompt_logprobs_are_all_there_once_however_the_prompt_was_cut(step_tokens):
    world = Listening(block_tokens=4, step_tokens=step_tokens, seats=4)
    world.add("a", 33, max_tokens=3, prompt_logprobs=0)
    world.add("b", 20, max_tokens=3, n=2, prompt_logprobs=0)
    world.run()
    for id in "ab":
        assert plain(world.scored[id]) == world.right_prompt(id)


def test_a_prompt_whose_logprobs_are_wanted_is_computed_and_why_says_so():
    world = Listening(block_tokens=4)
    prompt = list(range(30))
    for id in ("first", "second"):
        world.add(id, prompt, max_tokens=2, prompt_logprobs=0)
        world.run()
        assert plain(world.scored[id]) == world.right_prompt(id)
    record = world.story.record("second")
    assert (record.first_reused, record.miss.why) == (0, "logprobs")
    world.add("third", prompt, max_tokens=2)
    world.run()
    assert world.story.record("third").first_reused == 29  # what was computed for others is there for the rest


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_prompt_logprobs_survive_a_preemption_in_the_middle_of_the_prompt(prefix_cache):
    """Preempted between two chunks: what was reported is neither lost nor told twice."""
    world = Listening(blocks=16, block_tokens=4, step_tokens=6, seats=3, prefix_cache=prefix_cache)
    world.add("old", 20, max_tokens=30)
    for _ in range(6):
        world.step()
    world.add("scored", 30, max_tokens=4, prompt_logprobs=0)
    world.run()
    record = world.story.record("scored")
    assert record.stage is Stage.FINISHED and record.preemptions > 0
    assert plain(world.scored["scored"]) == world.right_prompt("scored")
    assert world.said["scored", 0] == world.expected("scored")


def test_a_prompt_of_one_token_has_nothing_to_score():
    world = Listening()
    world.add("a", [5], max_tokens=2, prompt_logprobs=3)
    world.run()
    assert world.scored["a"] == [] and world.said["a", 0] == world.expected("a")


def test_more_than_twenty_likeliest_tokens_are_refused():
    for name in ("logprobs", "prompt_logprobs"):
        for top in (-1, 21):
            with pytest.raises(InvalidRequest, match=f"{name} is {top}; it must be from 0 to 20"):
                World().add("a", 5, **{name: top})
