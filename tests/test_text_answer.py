"""The text of an answer up to its stop string: the same whichever way the tokens come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.artifacts.files import ModelFiles
from headway.text import answer
from headway.text.answer import AnswerText, AnswerTexts
from headway.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


def test_a_stop_string_is_cut_and_never_partly_shown(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ("is Pa",), 0)
    pieces = [answer.push([token]) for token in tokenizer.encode("The capital of France is Paris.")]
    assert "".join(pieces) + answer.finish() == "The capital of France "


def test_what_was_held_back_belongs_to_an_answer_that_ends_otherwise(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ("France and",), 0)
    shown = answer.push(tokenizer.encode("of France"))
    assert shown == "of "
    assert answer.finish() == "France"


def test_the_first_min_tokens_cannot_be_part_of_a_stop_string(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two one two")
    answer = AnswerText(tokenizer, ("one",), 2)
    assert answer.push(tokens) + answer.finish() == "one two "


def test_half_an_emoji_before_min_tokens_is_whole_after_it(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("😀!")
    answer = AnswerText(tokenizer, ("!",), 1)
    assert answer.push(tokens) + answer.finish() == "😀"


@given(text=st.text("ab c", min_size=1, max_size=30), stop=st.text("ab c", min_size=1, max_size=4), data=st.data())
def test_the_side_that_ends_and_the_side_that_shows_find_the_same_end(tokenizer, text, stop, data) -> None:
    tokens = tokenizer.encode(text)
    ender, shower = AnswerText(tokenizer, (stop,), 0), AnswerText(tokenizer, (stop,), 0)
    count = next((i for i, token in enumerate(tokens, 1) if ender.completes(token)), len(tokens))
    cut = data.draw(st.integers(0, count))
    shown = shower.push(tokens[:cut]) + shower.push(tokens[cut:count]) + shower.finish()
    assert shown == tokenizer.decode(tokens).partition(stop)[0]


def test_answers_with_the_same_stop_strings_share_their_automaton_for_as_long_as_one_lives(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    strings = answer.StopStrings
    monkeypatch.setattr(answer, "StopStrings", lambda stops: (made.append(stops), strings(stops))[1])
    texts = AnswerTexts(tokenizer)
    siblings = [texts(("two",), 0) for _ in range(3)]
    said = [one.push(tokenizer.encode(f"one two {i}")) for i, one in enumerate(siblings)]
    assert said == ["one "] * 3 and made == [("two",)]
    assert texts(("two", "one"), 0).push(tokenizer.encode("one")) == "" and len(made) == 2
    del siblings
    assert not texts._stops
