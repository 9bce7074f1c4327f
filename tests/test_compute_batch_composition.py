"""Numbers must not depend on batch composition: the same bits alone, batched, chunked, reused and with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headway.compute.text.executor import TextExecutor
from headway.core.plan import Draw, Sampling, Span, StepPlan
from tiny_decoders import cut, greedy, last_logits, load, oracle, tokens

LENGTHS = (1, 2, 7, 16, 33, 130, 300)
ROOM = tuple(range(32))


@pytest.fixture(
    scope="module",
    params=[
        "fp32 off", "bf16 off", "int8 off", "fp32 off int8", "bf16 off int8",
        "fp32 auto", "bf16 auto", "int8 auto", "int4 auto", "fp32 auto int8", "int8 auto int8",
    ],
)  # fmt: skip
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextExecutor]:
    """Weights, native kernels, and state if it is not `auto`: by torch's operators, and by the native kernels where
    they are."""
    cache: Path = tmp_path_factory.mktemp("weights")
    weights, native, state = (*request.param.split(), "auto")[:3]
    model = oracle("llama, wide heads")
    yield load(model, cache, weights, threads=2, max_step_positions=600, native=native, state=state)


def alone(executor: TextExecutor, known: tuple[int, ...]) -> torch.Tensor:
    return last_logits(executor, cut(known, ROOM, len(known)))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("chunk", [1, 3, 16, 50, 129])
def test_a_chunked_prompt_has_the_bits_of_a_whole_one(executor: TextExecutor, length: int, chunk: int) -> None:
    known = tokens(min(length, chunk * 25))
    assert torch.equal(last_logits(executor, cut(known, ROOM[::-1], chunk)), alone(executor, known))


def test_sequences_in_one_step_have_the_bits_of_each_alone(executor: TextExecutor) -> None:
    prompts = [tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    expected = [alone(executor, prompt) for prompt in prompts]
    spans, rows, free, end = [], [], 0, 0
    for prompt in prompts:
        blocks = -(-len(prompt) // 16)
        spans.append(Span(0, prompt, tuple(range(free, free + blocks))))
        free, end = free + blocks, end + len(prompt)
        rows.append(end - 1)
    found = executor.logits(tuple(spans), rows)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("sequences", [1, 2, 3, 7, 15, 31, 32, 33])
def test_a_decode_position_has_its_bits_in_any_batch(executor: TextExecutor, sequences: int) -> None:
    known = tokens(40)
    expected = alone(executor, known)
    executor.logits((Span(0, known[:-1], (60, 61, 62)),), [])
    others = tuple(Span(0, (i,), (i,)) for i in range(sequences - 1))
    found = executor.logits((*others, Span(39, known[-1:], (60, 61, 62))), [sequences - 1])
    assert torch.equal(found[0], expected)


def test_reused_state_has_the_bits_of_computed_state(executor: TextExecutor) -> None:
    shared, first, second = tokens(48), tokens(30, 1), tokens(9, 2)
    expected = alone(executor, shared + second)
    executor.logits((Span(0, shared + first, (40, 41, 42, 43, 44)),), [])
    found = executor.logits((Span(48, second, (40, 41, 42, 50)),), [8])
    assert torch.equal(found[0], expected)


def test_copies_are_made_after_the_spans(executor: TextExecutor) -> None:
    known = tokens(21)
    expected = alone(executor, known)
    executor.run(StepPlan(0, (Span(0, known[:20], (5, 6)),), copies=((6, 9), (5, 6))))
    found = executor.logits((Span(20, known[20:], (5, 9)),), [0])
    assert torch.equal(found[0], expected)
    found = executor.logits((Span(20, known[20:], (6, 9)),), [0])  # block 6 was read before it was overwritten
    assert torch.equal(found[0], expected)


def test_a_span_without_draws_answers_nothing_and_several_draws_share_logits(executor: TextExecutor) -> None:
    hot = Sampling(temperature=5.0, seed=3)
    draws = tuple(Draw(index, 12, hot) for index in range(6))
    spans = (Span(0, tokens(9), (0,)), Span(0, tokens(12), (1,), (*draws, greedy(12))))
    nothing, several = (each.tokens for each in executor.run(StepPlan(0, spans)).results)
    assert nothing == ()
    assert len(several) == 7
    assert len(set(several)) > 2
    assert several[6] == int(alone(executor, tokens(12)).argmax())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=3.0, seed=11)], ids=["greedy", "sampled"])
def test_drafts_change_how_many_tokens_a_step_yields_but_not_which(
    executor: TextExecutor, sampling: Sampling
) -> None:
    known = tokens(10)
    plain = known
    for step in range(8):
        start = 0 if step == 0 else len(plain) - 1
        span = Span(start, plain[start:], ROOM, (Draw(2, len(plain), sampling),))
        plain += executor.run(StepPlan(step, (span,))).results[0].tokens
    truth = plain[10:]
    for right in range(4):
        guesses = (*truth[:right], *((token + 1) % 97 for token in truth[right:3]))
        executor.run(StepPlan(0, (Span(0, known[:-1], ROOM),)))
        span = Span(9, (known[-1], *guesses), ROOM, (Draw(2, 10, sampling),), drafts=3)
        assert executor.run(StepPlan(1, (span,))).results[0].tokens == truth[: right + 1]


def test_a_step_beyond_its_bound_is_refused(executor: TextExecutor) -> None:
    with pytest.raises(ValueError, match="601 positions"):
        executor.run(StepPlan(0, (Span(0, tokens(601), tuple(range(38))),)))
