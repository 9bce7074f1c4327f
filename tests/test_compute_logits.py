"""Decoders against transformers, in fp32, for each family and every switch that a config has."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from headway.compute.text.executor import TextExecutor
from headway.core.errors import ConfigError
from headway.core.plan import Span, StepPlan
from tiny_decoders import DECODERS, cut, files_of, greedy, last_logits, load, oracle, tokens

BLOCKS = tuple(range(3, 64, 2))


@pytest.mark.parametrize("native", ["off", "auto"])
@pytest.mark.parametrize("variant", DECODERS)
def test_logits_are_those_of_transformers(variant: str, native: str, tmp_path: Path) -> None:
    model, known = oracle(variant), tokens(150)
    with torch.no_grad():
        expected = model(torch.tensor([known])).logits[0]
    executor = load(model, tmp_path, native=native)
    found = executor.logits((Span(0, known, BLOCKS),), list(range(len(known))))
    assert (found - expected).abs().max() < 1e-4
    chunked = last_logits(executor, cut(known, tuple(range(10)), 17))
    assert (chunked - expected[-1]).abs().max() < 1e-4


@pytest.mark.parametrize("variant", ["llama, tied", "mistral", "qwen2, tied", "qwen3"])
def test_greedy_tokens_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model, prompt = oracle(variant), tokens(20)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0]
    executor, known, start = load(model, tmp_path), prompt, 0
    for step in range(24):
        span = Span(start, known[start:], BLOCKS, (greedy(len(known)),))
        start = len(known)
        known += executor.run(StepPlan(step, (span,))).results[0].tokens
    assert known == tuple(expected.tolist())


def test_bf16_weights_stay_close_to_transformers(tmp_path: Path) -> None:
    model, known = oracle("qwen2, tied"), tokens(60)
    executor = load(model, tmp_path, "bf16", state="fp32")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(weight.bfloat16())
        expected = model(torch.tensor([known])).logits[0]
    found = executor.logits((Span(0, known, BLOCKS),), list(range(len(known))))
    if "fp32 arithmetic" in executor.facts.kernels["products"]:
        limit = 1e-3  # only the weights are rounded
    else:  # products round what goes in and what comes out: no more lossy than transformers in bf16 throughout
        with torch.no_grad():
            limit = (model.bfloat16()(torch.tensor([known])).logits[0].float() - expected).abs().max().item()
    assert (found - expected).abs().max() < limit


def test_facts_tell_what_was_loaded(tmp_path: Path) -> None:
    model = oracle("llama, tied")
    facts = load(model, tmp_path, "bf16", block_tokens=8).facts
    assert (facts.weights_format, facts.state_format, facts.vocab) == ("bf16", "bf16", 97)
    assert facts.block_bytes == 2 * 2 * 2 * 8 * 8 * 2  # keys and values, layers, heads, head size, tokens, bytes
    assert set(facts.kernels) == {"products", "attention"}


def test_a_pool_is_sized_by_memory(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    one = 2 * 2 * 2 * 8 * 16 * 4
    found = TextExecutor.load(files, cache=tmp_path, weights="fp32", memory_bytes=5 * one + one // 2)
    assert found.blocks == 5
    with pytest.raises(ConfigError, match="less than one block"):
        TextExecutor.load(files, cache=tmp_path, weights="fp32", memory_bytes=one - 1)
    small = TextExecutor.load(files, cache=tmp_path, weights="fp32", state="int8", memory_bytes=5 * one)
    assert small.facts.block_bytes == 2 * 2 * 2 * (8 + 2) * 16  # a scale of two bytes for each head and position
    assert small.facts.block_bytes == small._state._all.nbytes // small.blocks
    with pytest.raises(ConfigError, match="--state: 'int4' is not one of auto, fp32, bf16, int8"):
        TextExecutor.load(files, cache=tmp_path, state="int4", blocks=1)


def test_state_in_int8_moves_logits_little(tmp_path: Path) -> None:
    """Of a tiny model, whose heads are short; the default model's perplexity is in docs/speed.md."""
    model, known = oracle("llama, wide heads"), tokens(90)
    for native in ("off", "auto"):
        plain, rounded = (load(model, tmp_path, state=state, native=native) for state in ("fp32", "int8"))
        expected, found = (
            one.logits((Span(0, known, BLOCKS),), list(range(90))).log_softmax(-1) for one in (plain, rounded)
        )
        assert not torch.equal(found, expected)
        divergence = torch.nn.functional.kl_div(found, expected, log_target=True, reduction="batchmean")
        assert divergence < 1e-3


def test_a_pool_takes_no_memory_before_its_blocks_are_written(tmp_path: Path) -> None:
    files, process = files_of(oracle("llama, tied")), psutil.Process()
    before = process.memory_info().rss
    executor = TextExecutor.load(files, cache=tmp_path, weights="fp32", memory_bytes=1 << 30)
    assert executor.blocks * executor.facts.block_bytes > 1023 << 20
    assert process.memory_info().rss - before < 256 << 20
