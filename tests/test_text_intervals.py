"""Intervals as regular expressions: Python's own arithmetic is the judge."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.text.grammar.intervals import integers, numbers

BOUNDS = st.none() | st.integers(-130, 130) | st.integers(-(2**65), 2**65) | st.sampled_from([2**53, 2**63, -(2**63)])


def matches(parts: list[str], text: str) -> bool:
    return any(re.fullmatch(part, text) for part in parts)


def near(low: int | None, high: int | None, drawn: int) -> list[int]:
    ends = [end + step for end in (low, high) if end is not None for step in (-10, -2, -1, 0, 1, 2, 10)]
    return [*ends, drawn, *range(-12, 13)]


@given(low=BOUNDS, high=BOUNDS, drawn=st.integers(-(2**66), 2**66))
def test_exactly_the_integers_of_an_interval_match(low: int | None, high: int | None, drawn: int) -> None:
    parts = integers(low, high)
    for value in near(low, high, drawn):
        inside = (low is None or low <= value) and (high is None or value <= high)
        assert matches(parts, str(value)) is inside, (value, parts)
    assert not any(matches(parts, text) for text in ("", "-", "00", "01", "1.0", "+1", "1e1"))


@given(
    low=BOUNDS,
    high=BOUNDS,
    above=st.booleans(),
    below=st.booleans(),
    fraction=st.sampled_from(["", ".0", ".5", ".01"]),
)
def test_exactly_the_numbers_of_an_interval_match(
    low: int | None, high: int | None, above: bool, below: bool, fraction: str
) -> None:
    parts = numbers(low, high, above=above, below=below)
    for whole in near(low, high, 7):
        text = f"{whole}{fraction}"
        value = Decimal(text)
        inside = (low is None or low < value or (low == value and not above)) and (
            high is None or value < high or (high == value and not below)
        )
        assert matches(parts, text) is inside, (text, parts)


@pytest.mark.parametrize(("low", "high"), [(5, 4), (2**63, 2**63 - 1), (-1, -2)])
def test_an_empty_interval_has_no_alternatives(low: int, high: int) -> None:
    assert integers(low, high) == numbers(low, high) == []
