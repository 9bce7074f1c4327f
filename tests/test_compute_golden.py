"""The default model against greedy tokens that transformers produced in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles
from headway.compute.text.executor import TextExecutor
from headway.core.plan import Span, StepPlan
from tiny_decoders import greedy

GOLDEN = Path(__file__).parent / "data" / "smollm2-135m-greedy-fp32.json"
BLOCKS_EACH = 8


@pytest.fixture(scope="module")
def executor(smollm2: ModelFiles) -> TextExecutor:
    cache = Cache.at(None).converted
    return TextExecutor.load(
        smollm2, cache=cache, weights="fp32", threads=2, blocks=16 * BLOCKS_EACH, max_step_positions=1024
    )


@pytest.fixture(scope="module")
def golden() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text())


def answers(executor: TextExecutor, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
    """Greedy answers of all prompts, one step for all their newest positions; done ones leave the step."""
    known, computed = [tuple(prompt) for prompt in prompts], [0] * len(prompts)
    step = 0
    while True:
        open_ = [i for i, n in enumerate(counts) if len(known[i]) < len(prompts[i]) + n]
        if not open_:
            return [list(all_[len(prompt) :]) for all_, prompt in zip(known, prompts, strict=True)]
        spans = []
        for i in open_:
            table = tuple(range(i * BLOCKS_EACH, (i + 1) * BLOCKS_EACH))
            spans.append(Span(computed[i], known[i][computed[i] :], table, (greedy(len(known[i])),)))
            computed[i] = len(known[i])
        results = executor.run(StepPlan(step, tuple(spans))).results
        for i, tokens in zip(open_, (each.tokens for each in results), strict=True):
            known[i] += tokens
        step += 1


def test_each_prompt_alone_gets_the_golden_answer(executor: TextExecutor, golden: list[dict[str, Any]]) -> None:
    for entry in golden:
        found = answers(executor, [entry["prompt_ids"]], [len(entry["greedy_ids"])])
        assert found == [entry["greedy_ids"]]


def test_sixteen_prompts_together_get_the_golden_answers(
    executor: TextExecutor, golden: list[dict[str, Any]]
) -> None:
    entries = [golden[i % len(golden)] for i in range(16)]
    found = answers(executor, [e["prompt_ids"] for e in entries], [len(e["greedy_ids"]) for e in entries])
    assert found == [entry["greedy_ids"] for entry in entries]
