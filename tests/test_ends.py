"""What ends an answer: tokens, strings and lengths, and what may not end it yet."""

from __future__ import annotations

import pytest

from headway.compute.fake import expected_tokens
from headway.core.errors import InvalidRequest
from headway.core.plan import Draw, Sampling
from headway.replica import messages
from world import World


class Letters:
    """Stands for a text watch: the text is the token ids, one letter each; it ends at `stop`."""

    def __init__(self, stop: tuple[str, ...], min_tokens: int) -> None:
        self.stop, self.text, self.early = stop, "", min_tokens

    def completes(self, token: int) -> bool:
        self.early -= 1
        self.text += chr(65 + token) if self.early < 0 else ""
        return any(stop in self.text for stop in self.stop)


def letters(world: World, count: int) -> str:
    return "".join(chr(65 + token) for token in world.expected("a", 0, count))


def ended(**fields: object) -> World:
    world = World(vocab=7, block_tokens=4, seats=4)
    world.model.pattern.watcher = Letters
    world.add("a", [1, 2, 3], max_tokens=30, **fields)
    world.run()
    return world


def test_a_stop_string_over_several_tokens_ends_the_sequence_at_its_last_token():
    text = letters(ended(), 30)
    stop = text[9:12]
    end = text.index(stop) + 3
    world = ended(stop=(stop,))
    assert (len(world.said["a", 0]), world.finish["a", 0]) == (end, "stop")


def test_a_stop_string_among_accepted_drafts_ends_it_there_and_drops_the_rest():
    truth = ended()
    text = letters(truth, 30)
    world = World(
        vocab=7, block_tokens=4, seats=4,
        drafter=lambda tokens: truth.said["a", 0][len(tokens) - 3 :][:5],
    )  # fmt: skip
    world.model.pattern.watcher = Letters
    world.add("a", [1, 2, 3], max_tokens=30, stop=(text[7:10],))
    world.run()
    assert len(world.said["a", 0]) == text.index(text[7:10]) + 3
    assert world.counts("a").decoded + world.counts("a").prefilled == 3 + len(world.said["a", 0]) - 1


def test_neither_stop_tokens_nor_strings_end_it_before_min_tokens():
    every_token = tuple(range(6))
    world = ended(stop_ids=every_token, min_tokens=8)
    assert world.said["a", 0][:8] == [6] * 8, "the one token that is not banned"
    likeliest = expected_tokens([1, 2, 3, *[6] * 8], Draw(0, 0, Sampling()), 22, 7)
    end = next(place for place, token in enumerate(likeliest) if token in every_token)
    assert world.said["a", 0] == [6] * 8 + likeliest[: end + 1] and world.finish["a", 0] == "stop"
    text = letters(ended(), 30)
    world = ended(stop=(text[0],), min_tokens=5)
    assert len(world.said["a", 0]) == text.index(text[0], 5) + 1


def test_siblings_are_watched_each_for_itself():
    world = ended(n=3, sampling=Sampling(temperature=1.0, seed=4), stop=("A",))
    for index in range(3):
        said = world.said["a", index]
        assert 0 not in said[:-1]
        assert (said[-1] == 0) == (world.finish["a", index] == "stop")


def test_an_engine_without_a_tokenizer_refuses_stop_strings_by_name():
    world = World()
    with pytest.raises(InvalidRequest, match="tokenizer") as refused:
        world.add("a", [1], stop=("x",))
    assert refused.value.field == "stop"


@pytest.mark.parametrize(("fields", "field"), [
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"stop_ids": (997,)}, "stop_token_ids"),
    ({"sampling": Sampling(bias=((-1, 1.0),))}, "logit_bias"),
])  # fmt: skip
def test_numbers_that_mean_nothing_are_refused_by_name(fields, field):
    with pytest.raises(InvalidRequest) as refused:
        World().add("a", [1], **fields)
    assert refused.value.field == field


def test_a_failure_whose_words_are_no_unicode_can_still_be_told():
    world = World()
    world.add("a", 5)
    world.executor.fail_next = RuntimeError("bad \udcff bytes")
    world.step()
    assert world.story.record("a").message == "RuntimeError: bad ? bytes"
    messages.encode(messages.Told(tuple(world.events)))
