"""Logprobs of the text executor: those of transformers, with the same bits however a prompt is cut."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from headway.compute.sampling.choose import choose
from headway.compute.sampling.logprobs import report
from headway.core.plan import Draw, Sampling, Score, Span, StepPlan
from tiny_decoders import cut, greedy, load, oracle, tokens

BLOCKS = tuple(range(5, 15))


def scored(executor, known: tuple[int, ...], chunk: int, top: int) -> list:
    """The logprobs of `known` from its second token on, by steps of `chunk` positions."""
    found = []
    for step, span in enumerate(cut(known, BLOCKS, chunk)):
        score = Score(0, known[span.start + 1 : span.end + 1], top)
        found += executor.run(StepPlan(step, (replace(span, score=score),))).results[0].scores
    return found


@pytest.mark.parametrize("variant", ["llama, tied", "qwen3"])
def test_prompt_logprobs_are_those_of_transformers(tmp_path: Path, variant: str) -> None:
    model, known = oracle(variant), tokens(70)
    found = scored(load(model, tmp_path), known, 70, top=3)
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([known])).logits[0].double(), -1)
    assert [one.token for one in found] == list(known[1:])
    for i, one in enumerate(found):
        assert one.logprob == pytest.approx(expected[i, known[i + 1]].item(), abs=1e-4)
        values, likeliest = expected[i].topk(3)
        assert [token for token, _ in one.top] == likeliest.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_prompt_logprobs_have_the_same_bits_however_the_prompt_is_cut(tmp_path: Path, weights: str) -> None:
    known = tokens(90)
    executor = load(oracle("llama, tied"), tmp_path, weights)
    whole = scored(executor, known, 90, top=2)
    for chunk in (1, 7, 64):
        assert scored(executor, known, chunk, top=2) == whole


def test_chosen_tokens_tell_their_logprobs_also_when_drafts_are_verified(tmp_path: Path) -> None:
    """By single steps, and by one that verifies two right guesses and a wrong one: the same tokens and numbers."""
    executor, known = load(oracle("llama, tied"), tmp_path), tokens(20)
    told, said = [], list(known)
    executor.run(StepPlan(0, tuple(cut(known[:-1], BLOCKS, 19))))
    for step in range(3):
        draw = replace(greedy(len(said)), logprobs=2)
        result = executor.run(StepPlan(step, (Span(len(said) - 1, (said[-1],), BLOCKS, (draw,)),)))
        said.append(result.results[0].tokens[0])
        told += result.results[0].logprobs
    wrong = (said[-1] + 1) % 97
    guesses = (*said[20:22], wrong)
    draw = replace(greedy(20), logprobs=2)
    result = executor.run(StepPlan(9, (Span(19, (known[-1], *guesses), BLOCKS, (draw,), 3),)))
    assert result.results[0].tokens == tuple(said[20:])
    assert list(result.results[0].logprobs) == told
    assert [one.token for one in told] == said[20:]


def test_a_step_that_asks_for_nothing_tells_nothing(tmp_path: Path) -> None:
    known = tokens(8)
    result = load(oracle("llama, tied"), tmp_path).run(StepPlan(1, (Span(0, known, BLOCKS, (greedy(8),)),)))
    (only,) = result.results
    assert (only.logprobs, only.scores) == ((), ())


def test_a_report_names_the_likeliest_first_and_impossible_tokens_too() -> None:
    logits = torch.tensor([0.0, math.log(2), -torch.inf, 0.0])
    one = report(logits, 2, 2)
    assert (one.token, one.logprob) == (2, -math.inf)
    assert one.top[0] == (1, pytest.approx(math.log(0.5)))
    assert len(report(logits, 0, 9).top) == 4  # no more than there are
    assert report(logits, 0, 0).top == ()


# -- masks ----------------------------------------------------------------------------------------------------


def mask(*allowed: int) -> tuple[bytes]:
    return (sum(1 << token for token in allowed).to_bytes(2, "little"),)


def test_a_mask_leaves_only_what_it_allows_for_greedy_and_sampled_choices() -> None:
    logits = torch.arange(12.0)[None]
    assert choose(logits, [(0, Draw(0, 1, Sampling(), masks=mask(2, 9, 3)))]) == [9]
    found = {choose(logits, [(0, Draw(0, i, Sampling(temperature=50.0), masks=mask(2, 9, 3)))])[0] for i in range(99)}
    assert found == {2, 3, 9}


def test_a_mask_that_allows_only_banned_tokens_wins() -> None:
    logits = torch.arange(12.0)[None]
    banned = Draw(0, 1, Sampling(), banned=(3, 11), banned_before=9, masks=mask(3, 2))
    assert choose(logits, [(0, banned)]) == [2]
    assert choose(logits, [(0, replace(banned, masks=mask(3)))]) == [3]


def test_a_mask_shorter_than_the_vocabulary_allows_nothing_beyond_itself() -> None:
    logits = torch.arange(40.0)[None]
    assert choose(logits, [(0, Draw(0, 1, Sampling(), masks=mask(*range(16))))]) == [15]
