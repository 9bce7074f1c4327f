"""What a step will take, from what steps took."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policy.durations import Durations, Row

SIZE = (64, 64)
MEASURED = st.dictionaries(st.integers(1, 40), st.integers(1, 10**9), min_size=1, max_size=6)


def measured(points: dict[int, int]) -> Durations:
    durations = Durations()
    for rows, ns in points.items():
        durations.note("update", SIZE, rows, ns)
    return durations


def test_nothing_is_known_of_what_was_never_measured() -> None:
    durations = measured({1: 10, 4: 16})
    assert durations.ns("decode_pixels", SIZE, 1) is None
    assert durations.ns("update", (64, 32), 1) is None


def test_between_two_measured_batches_lies_a_line_and_beyond_them_it_goes_on() -> None:
    durations = measured({2: 20, 4: 24, 8: 40})
    found = [durations.ns("update", SIZE, rows) for rows in (1, 2, 3, 4, 5, 6, 8, 9, 10)]
    assert found == [20, 20, 22, 24, 28, 32, 40, 44, 48]


def test_from_one_measurement_more_grows_in_proportion_which_is_the_most_it_can_be() -> None:
    durations = measured({2: 20})
    assert [durations.ns("update", SIZE, rows) for rows in (1, 2, 3, 6)] == [20, 20, 30, 60]


@given(MEASURED, st.integers(1, 80))
def test_an_answer_lies_between_its_neighbours_and_never_shrinks_beyond_the_largest(
    points: dict[int, int], rows: int
) -> None:
    durations = measured(points)
    found = durations.ns("update", SIZE, rows)
    assert found is not None
    if rows in points:
        assert found == points[rows]
    below, above = [n for n in points if n < rows], [n for n in points if n > rows]
    if below and above:
        low, high = sorted((points[max(below)], points[min(above)]))
        assert low <= found <= high or rows in points
    if below and not above:
        assert found >= points[max(below)] or rows in points


def test_a_first_measurement_gives_way_to_a_shorter_second_and_later_ones_are_averaged() -> None:
    durations = measured({3: 900})
    for ns, mean in ((100, 100), (130, 110), (150, 120)):
        durations.note("update", SIZE, 3, ns)
        assert durations.ns("update", SIZE, 3) == mean


def test_the_mean_follows_a_machine_that_changed() -> None:
    durations = measured({1: 100})
    for _ in range(1000):
        durations.note("update", SIZE, 1, 100)
    for _ in range(60):
        durations.note("update", SIZE, 1, 200)
    found = durations.ns("update", SIZE, 1)
    assert found is not None and found > 195


@given(st.lists(st.tuples(st.sampled_from(["update", "encode"]), st.integers(1, 9), st.integers(1, 10**12))))
def test_what_is_kept_as_plain_data_answers_the_same(notes: list[tuple[str, int, int]]) -> None:
    durations = Durations()
    for kind, rows, ns in notes:
        durations.note(kind, SIZE, rows, ns)
    again = Durations.of(msgspec.convert(json.loads(json.dumps(durations.rows())), list[Row]))
    for kind in ("update", "encode"):
        for rows in range(1, 12):
            assert again.ns(kind, SIZE, rows) == pytest.approx(durations.ns(kind, SIZE, rows), abs=12)
