"""Penalties, bias and bans against plain formulas and transformers' own processors."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.generation import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from headway.compute.sampling.choose import choose, distribution
from headway.compute.sampling.processors import adjusted, needs_adjusting
from headway.core.plan import Draw, Sampling

LOGITS = torch.tensor([1.0, 3.0, -2.0, 0.0, 2.5, -1.0])


def draw(sampling: Sampling, history: tuple[int, ...] = (), prompt: int = 0, **rest: object) -> Draw:
    return Draw(0, len(history), sampling, history, prompt, **rest)


def test_the_repetition_penalty_is_that_of_transformers_for_prompt_and_answer() -> None:
    history = (1, 2, 2, 5)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([history]), LOGITS[None].clone())[0]
    found = adjusted(LOGITS, draw(Sampling(repetition_penalty=1.7), history, prompt=2))
    assert torch.allclose(found, expected)


def test_presence_and_frequency_count_the_answer_only() -> None:
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    found = adjusted(LOGITS, draw(sampling, (0, 1, 4, 4, 1), prompt=2))
    assert found.tolist() == pytest.approx([1.0, 3.0 - 0.75, -2.0, 0.0, 2.5 - 1.0, -1.0])


def test_a_bias_is_added_and_minus_100_is_as_good_as_a_ban() -> None:
    sampling = Sampling(bias=((1, -100.0), (5, 10.0)))
    assert choose(LOGITS[None], [(0, draw(sampling))]) == [5]


def test_banned_tokens_never_come_before_their_position_and_may_afterwards() -> None:
    early = Draw(0, 4, Sampling(), banned=(1, 4), banned_before=5)
    late = Draw(0, 5, Sampling(), banned=(1, 4), banned_before=5)
    assert choose(LOGITS[None], [(0, early), (0, late)]) == [0, 1]


@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_keeps_what_transformers_keeps(min_p: float) -> None:
    kept = MinPLogitsWarper(min_p)(torch.tensor([[0]]), LOGITS[None].clone())[0] > -math.inf
    assert torch.equal(distribution(LOGITS, Sampling(1.0, min_p=min_p)) > 0, kept)


def test_what_asks_for_nothing_is_not_adjusted_and_the_logits_stay_as_they_are() -> None:
    assert not needs_adjusting(draw(Sampling(1.0, top_k=3)))
    before = LOGITS.clone()
    adjusted(LOGITS, draw(Sampling(repetition_penalty=2.0, bias=((0, 1.0),)), (1, 2)))
    assert torch.equal(LOGITS, before)
