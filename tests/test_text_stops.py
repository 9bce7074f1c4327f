"""Stop strings across the borders of pieces, against a search of the whole text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.text.stops import StopMatcher, StopStrings

FEW = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)
#: Many, that begin and end alike, lie within each other, or stand there twice.
MANY = st.lists(st.text(alphabet="ab", min_size=3, max_size=8), min_size=5, max_size=60)


def cut_by_searching(text: str, stops: list[str]) -> tuple[str, bool]:
    """The first character at which a stop string is complete; before the longest one that ends there."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(text=FEW, stops=STOPS, cuts=st.lists(st.integers(0, 30)))
@example(text="aab", stops=["ab"], cuts=[1, 1, 2])
def test_any_split_stops_where_the_whole_text_does(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher, emitted, stopped = StopMatcher(stops), "", False
    for start, end in itertools.pairwise([0, *sorted(cuts), 10**6]):
        piece, stopped = matcher.push(text[start:end])
        emitted += piece
    if not stopped:
        emitted += matcher.flush()
    assert (emitted, stopped) == cut_by_searching(text, stops)


@given(text=FEW, stops=STOPS)
def test_no_more_is_held_back_than_could_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted, stopped = matcher.push(text)
    if stopped:
        return
    held = text[len(emitted) :]
    starts = [text[at:] for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in stops)]
    assert held == max(starts, key=len, default="")


@given(text=st.text(alphabet="abc", max_size=80), stops=MANY, size=st.integers(1, 9))
def test_any_number_of_stop_strings_stops_where_a_search_of_the_text_does(
    text: str, stops: list[str], size: int
) -> None:
    matcher, emitted, stopped = StopMatcher([*stops, *stops]), "", False
    for start in range(0, len(text), size):
        piece, stopped = matcher.push(text[start : start + size])
        emitted += piece
    if not stopped:
        emitted += matcher.flush()
    assert (emitted, stopped) == cut_by_searching(text, stops)


class Counting(dict[str, int]):
    """Counts how often it is looked into."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        Counting.looks += 1
        return super().__contains__(key)

    def get(self, *args: object) -> int:  # type: ignore[override]
        Counting.looks += 1
        return super().get(*args)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(("number", "length"), [(1, 5), (1000, 5), (1000, 30)])
@pytest.mark.parametrize("text", ["x" * 10_000, "a" * 10_000, "ab" * 5000, "aaab" * 2500])
def test_a_character_costs_the_same_whatever_the_number_and_length_of_stop_strings(
    number: int, length: int, text: str
) -> None:
    """Stop strings that almost come, again and again: `a…a0` to `a…a999`."""
    strings = StopStrings([f"{'a' * length}{i}" for i in range(number)])
    strings._children = [Counting(children) for children in strings._children]
    matcher, Counting.looks = StopMatcher(strings), 0
    emitted = matcher.push(text)[0] + matcher.flush()
    assert emitted == text and len(text) <= Counting.looks <= 3 * len(text)


def test_a_held_back_beginning_is_emitted_once_it_cannot_become_a_stop_string() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hi\n") == ("Hi", False)
    assert matcher.push("\nUs") == ("", False)
    assert matcher.push("ual") == ("\n\nUsual", False)
    assert matcher.push("\n\nUser: more") == ("", True)
    assert matcher.push("later") == ("", True)


def test_a_stop_string_may_be_kept() -> None:
    matcher = StopMatcher(["bc", "c", "xyz"], keep=True)
    assert matcher.push("ab") == ("a", False)
    assert matcher.push("cd") == ("bc", True)
    assert matcher.push("later") == ("", True) and matcher.flush() == ""


def test_without_stop_strings_everything_passes() -> None:
    assert StopMatcher([]).push("text") == ("text", False)


def test_an_empty_stop_string_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopMatcher(["a", ""])
    assert caught.value.field == "stop"
