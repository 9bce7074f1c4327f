"""Ends of answers where engines are known to slip: inside a character, inside a stop string, at the last chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fake_process import Client
from fake_server import VOCABULARY, FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.replica.grammars import Grammars
from headway.text.grammar.guide import GrammarCompiler
from serving import until
from world import World

EMOJI = "a😀👩‍💻é漢"


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    compiler = GrammarCompiler(smollm2.tokenizer, smollm2.eos_ids, VOCABULARY)
    with fake_serving(smollm2, grammars=Grammars(compiler)) as server:
        yield server


def pieces(client: Client) -> list[str]:
    """What each event of a stream adds to the text."""
    return [event["choices"][0]["text"] for event in client.events if isinstance(event, dict) and event["choices"]]


def says(server: FakeServer, text: str, **fields: Any) -> tuple[dict[str, Any], Client]:
    """An answer that can only be `text`, whole and streamed. A grammar's end is its end, so both are cut alike."""
    fields = {"guided_choice": [text], "seed": 7} | fields
    whole = Client(server.url, [5], **fields).end()
    stream = Client(server.url, [5], stream=True, **fields).end()
    assert (whole.status, stream.error) == (200, None)
    choice: dict[str, Any] = whole.json["choices"][0]
    assert "".join(pieces(stream)) == choice["text"]
    return choice, stream


def test_no_half_character_is_ever_streamed_and_one_that_is_cut_off_ends_both_answers_alike(
    server: FakeServer,
) -> None:
    cut = set()
    for most in range(1, 32):
        choice, stream = says(server, EMOJI, max_tokens=most)
        *before, last = pieces(stream)
        assert not any("\ufffd" in piece for piece in before), "only the end of an answer may cut a character"
        whole = choice["text"].rstrip("\ufffd")
        assert EMOJI.startswith(whole)
        cut.add(choice["text"] != whole)
        assert ("\ufffd" in last) == (choice["text"] != whole)
        if choice["finish_reason"] == "stop":
            assert whole == EMOJI == choice["text"]
            break
    assert cut == {True, False} and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("stop", "shown", "reason"),
    [
        (["two thr"], "one ", "stop"),
        (["two tha"], "one two three", "stop"),
        (["three four"], "one two three", "stop"),
        (["o th", "e two"], "on", "stop"),
    ],
)
def test_a_stop_string_is_found_across_tokens_and_what_was_held_back_for_one_is_flushed(
    server: FakeServer, stop: list[str], shown: str, reason: str
) -> None:
    choice, stream = says(server, "one two three", stop=stop)
    assert (choice["text"], choice["finish_reason"]) == (shown, reason)
    assert not any(begun in "".join(pieces(stream)) for begun in stop)


def test_what_was_held_back_is_flushed_by_max_tokens_too(server: FakeServer) -> None:
    whole, _ = says(server, "one two three", max_tokens=2)
    held, stream = says(server, "one two three", max_tokens=2, stop=[whole["text"] + "x"])
    assert (held["text"], held["finish_reason"]) == (whole["text"], "length")
    assert pieces(stream) == [whole["text"]]


@pytest.mark.parametrize("include_usage", [True, False])
def test_usage_comes_exactly_once_and_last_when_it_is_asked_for_and_else_never(
    server: FakeServer, include_usage: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    client = Client(
        server.url, [[5], [6] * 9], n=2, seed=1, temperature=1, max_tokens=4, stream=True, **options
    ).end()
    *events, done = client.events
    told = [event["usage"] for event in events if event.get("usage")]
    assert done == "[DONE]"
    if not include_usage:
        assert told == [] and all("usage" not in event for event in events)
        return
    (usage,) = told
    assert events[-1]["usage"] == usage and events[-1]["choices"] == []
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 16, 26)


def test_seeded_siblings_differ_and_repeat_and_leaving_frees_both(server: FakeServer) -> None:
    ask: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 5}
    first, again = (Client(server.url, [8] * 20, max_tokens=8, **ask).end().texts for _ in range(2))
    assert first == again and first[0] != first[1]
    client = Client(server.url, [8] * 20, id="pair", stream=True, max_tokens=4000, **ask)
    until(lambda: server.front.story.levels.seats_used == 2)
    client.leave()
    until(lambda: "pair" not in server.front.story.live)
    assert (server.front.story.levels.live, server.front.story.levels.seats_used) == (0, 0)
    assert [sequence.blocks for sequence in server.front.story.record("pair").sequences] == [[], []]


def test_none_of_several_end_tokens_ends_an_answer_before_min_tokens_and_the_first_after_it_does() -> None:
    """Of seven tokens three are end tokens, and one more is asked for."""
    world = World(vocab=7, block_tokens=4)
    world.executor._facts = replace(world.executor.facts, eos_ids=(1, 2, 3))
    ends = {1, 2, 3, 5}
    for first in range(20):
        id = f"a-{first}"
        world.add(id, [first % 7, first // 7], min_tokens=6, max_tokens=40, stop_ids=(5,))
        world.run()
        said = world.said[id, 0]
        assert len(said) > 6 and not ends & set(said[:6])
        assert said[-1] in ends and world.finish[id, 0] == "stop" and not ends & set(said[:-1])


def test_a_prompt_of_exactly_whole_blocks_that_is_known_whole_still_computes_its_last_position() -> None:
    """Of 16 positions the last is computed again: a token is chosen from it."""
    world = World(block_tokens=4)
    prompt = list(range(16))
    for id in ("first", "second", "third"):
        world.add(id, prompt, max_tokens=3)
        world.run()
        assert world.said[id, 0] == world.expected(id, 0, 3)
    assert [world.counts(id).reused for id in ("first", "second", "third")] == [0, 15, 15]
    assert world.counts("second").prefilled == 1 and world.pool.live == 0
