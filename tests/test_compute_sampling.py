"""Tokens from logits: distributions, and numbers that depend on (seed, sequence index, position) only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.compute.sampling.choose import _invert, choose, distribution, uniform, verify
from headway.core.plan import Draw, Sampling

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, 2.5, -1.0])


def drawn(logits: torch.Tensor, sampling: Sampling, count: int) -> np.ndarray:
    """How often each token came, over `count` positions of one sequence."""
    picks = [(0, Draw(0, position, sampling)) for position in range(count)]
    return np.bincount(choose(logits[None], picks), minlength=logits.numel())


def test_frequencies_follow_the_distribution() -> None:
    sampling = Sampling(temperature=1.3, seed=5)
    expected = torch.softmax(LOGITS.double() / 1.3, -1).numpy() * 6000
    squared = ((drawn(LOGITS, sampling, 6000) - expected) ** 2 / expected).sum()
    assert squared < 20.5  # chi-square of 5 degrees of freedom exceeds it once in a thousand; the seed is fixed


def test_top_k_keeps_the_k_best_and_top_p_the_smallest_sufficient_set() -> None:
    assert set(np.flatnonzero(drawn(LOGITS, Sampling(2.0, top_k=2, seed=1), 300))) == {1, 4}
    mass = torch.softmax(LOGITS, -1)
    kept = distribution(LOGITS, Sampling(1.0, top_p=float(mass[1] + mass[4]) + 1e-4)).nonzero().flatten()
    assert kept.tolist() == [1, 2, 4]
    kept = distribution(LOGITS, Sampling(1.0, top_p=float(mass[1] + mass[4]) - 1e-4)).nonzero().flatten()
    assert kept.tolist() == [1, 4]
    assert distribution(LOGITS, Sampling(1.0, top_p=1e-9)).nonzero().flatten().tolist() == [1]


def test_a_flat_distribution_over_many_tokens_has_an_exact_nucleus() -> None:
    logits = torch.linspace(0, 0.001, 4000)
    weights = torch.softmax(logits, -1).double().sort(descending=True).values
    expected = int((weights.cumsum(0) - weights < 0.7).sum())
    assert int((distribution(logits, Sampling(1.0, top_p=0.7)) > 0).sum()) == pytest.approx(expected, abs=4)


def test_greedy_takes_the_best_whatever_the_seed() -> None:
    assert choose(LOGITS[None], [(0, Draw(0, 9, Sampling(seed=s))) for s in range(5)]) == [1] * 5


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-9])
@pytest.mark.parametrize("more", [{}, {"min_p": 0.1}, {"top_k": 3}, {"top_p": 0.5}])
def test_the_coldest_temperatures_are_greedy(temperature: float, more: dict[str, float]) -> None:
    sampling = Sampling(temperature=temperature, seed=2, **more)
    assert drawn(LOGITS * 40, sampling, 9).tolist() == [0, 9, 0, 0, 0, 0]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_still_give_a_token_of_the_vocabulary(broken: float) -> None:
    """A token outside it would fail the next step, and with it everyone in it."""
    for logits in (torch.full((6,), broken), torch.cat([LOGITS[:5], torch.tensor([broken])])):
        for sampling in (Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, top_p=0.5, min_p=0.1)):
            assert 0 <= choose(logits[None], [(0, Draw(0, 3, sampling))])[0] < 6


@given(seed=st.integers(-(2**63), 2**64 - 1), index=st.integers(0, 127), position=st.integers(0, 2**31))
def test_a_number_depends_on_seed_index_and_position_alone(seed: int, index: int, position: int) -> None:
    number = uniform(seed, index, position)
    assert 0 <= number < 1
    assert number == uniform(seed, index, position)
    assert number != uniform(seed, index + 1, position)
    assert number != uniform(seed, index, position + 1)


def test_a_token_does_not_depend_on_batch_composition() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 500)).astype(np.float32))
    picks = [(row, Draw(row % 3, row, Sampling(0.8, top_k=50, top_p=0.9, seed=row % 5))) for row in range(40)]
    together = choose(logits, picks)
    assert together == [choose(logits[row : row + 1], [(0, draw)])[0] for row, draw in picks]


def test_drafts_are_accepted_while_they_equal_what_was_chosen() -> None:
    assert verify([4, 5, 6, 7], [4, 5, 6]) == (4, 5, 6, 7)
    assert verify([4, 5, 6, 7], [4, 9, 6]) == (4, 5)
    assert verify([4, 5, 6, 7], [9, 5, 6]) == (4,)


def test_a_verified_draft_leaves_the_distribution_as_it_was() -> None:
    """A draft d is accepted with probability p(d); what replaces it is drawn from p without d, renormalised."""
    sampling, weights = Sampling(temperature=1.0, seed=8), torch.softmax(LOGITS.double(), -1)
    chosen = choose(LOGITS[None], [(0, Draw(0, position, sampling)) for position in range(6000)])
    answers = [verify([token, 0], [4]) for token in chosen]
    accepted = sum(len(answer) == 2 for answer in answers) / 6000
    assert accepted == pytest.approx(float(weights[4]), abs=0.02)
    others = np.bincount([answer[0] for answer in answers if len(answer) == 1], minlength=6) / 6000
    expected = weights.clone()
    expected[4] = 0
    assert np.allclose(others, expected.numpy(), atol=0.02)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000, 49_152])
def test_a_number_finds_the_token_in_whose_share_of_the_total_it_lies(size: int) -> None:
    chance = np.random.default_rng(size)
    weights = chance.exponential(size=size).astype(np.float32) * (chance.random(size) < 0.3)
    weights[size // 2] = 1
    weights[size - size // 4 :] = 0
    exact = weights.astype(np.float64).cumsum()
    for number in (0.0, *chance.random(200), 1 - 2.0**-52):
        token = _invert(weights, number)
        assert weights[token] > 0
        off = 1e-6 * exact[-1]
        assert exact[token] - weights[token] - off <= number * exact[-1] <= exact[token] + off


def test_a_number_finds_some_token_where_weights_are_no_numbers() -> None:
    for weights in (np.full(700, np.nan, np.float32), np.zeros(700, np.float32)):
        assert 0 <= _invert(weights, 0.4) < 700
