"""Rounded weights through the native decoder: what torch computes from the same rounded numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from headway.compute.models.decoder import Decoder, StepInput, matrices
from headway.compute.models.spec import DecoderSpec
from headway.compute.text.executor import TextExecutor
from headway.compute.text.weights import load_tensors
from headway.core.errors import ConfigError
from headway.core.plan import Span, StepPlan
from native_library import LEVELS, library
from test_native_products import NEAR, NEAR_NORMED, rounded, rounded_in_groups, rounded_inputs
from tiny_decoders import DECODERS, files_of, load, oracle, tokens


class Emulated:
    """Products of rounded weights and inputs in torch's fp32."""

    def __init__(self, spec: DecoderSpec, tensors: dict[str, torch.Tensor], weights: str) -> None:
        self._found = matrices(spec, tensors)
        self._weights = weights

    def __getitem__(self, name: str):
        weight, bias = self._found[name]
        if self._weights == "int4" and name != "head":
            wide = rounded_in_groups(weight.float())
        else:
            whole, scales = rounded(weight.float())
            wide = whole * scales

        near = NEAR if name.endswith((".o", ".down")) else NEAR_NORMED

        def product(x: torch.Tensor) -> torch.Tensor:
            return F.linear(rounded_inputs(x, near), wide, bias)

        return product


def emulated(executor: TextExecutor, variant: str, weights: str, cache: Path) -> TextExecutor:
    """`executor` with the plain decoder on emulated products in place of its own."""
    files = files_of(oracle(variant))
    spec = DecoderSpec.from_config(files.config, "tiny")
    tensors = load_tensors(spec, files, "fp32" if weights == "int4" else "bf16", cache).tensors
    executor._decoder = Decoder(spec, tensors, Emulated(spec, tensors, weights))
    return executor


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("variant", DECODERS)
def test_a_decoder_computes_what_torch_computes_from_the_same_rounded_numbers(
    tmp_path: Path, variant: str, weights: str
) -> None:
    library()
    known = tokens(70)
    span = Span(0, known, tuple(range(5)))
    native, plain = (load(oracle(variant), tmp_path, weights, threads=2, state="fp32") for _ in range(2))
    assert "native" in native.facts.kernels["products"]
    expected = emulated(plain, variant, weights, tmp_path).logits((span,), list(range(70)))
    found = native.logits((span,), list(range(70)))
    # An input between two whole numbers goes either way by the last bit of what it was computed from.
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(errors.median()) < 0.02 and float(errors.quantile(0.9)) < 0.05 and float(errors.max()) < 0.2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("state", ["fp32", "bf16"])
def test_every_level_computes_nearly_the_same(tmp_path: Path, level: str, weights: str, state: str) -> None:
    library()
    span = Span(0, tokens(40), tuple(range(5)))
    loaded = (
        load(oracle("qwen3"), tmp_path, weights, threads=2, native=native, state=state) for native in ("auto", level)
    )
    best, other = (executor.logits((span,), list(range(40))) for executor in loaded)
    # Where state is bf16, products of bf16 pairs round queries and weights to it besides.
    assert float((best - other).norm() / best.norm()) < (0.02 if state == "fp32" else 0.04)


def test_int4_without_native_kernels_is_refused_and_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--weights: int4 needs the native kernels; .*native kernels off"):
        load(oracle("llama, tied"), tmp_path, "int4", native="off")


def test_int8_without_native_kernels_runs_on_torch(tmp_path: Path) -> None:
    executor = load(oracle("llama, tied"), tmp_path, "int8", native="off")
    assert "native" not in executor.facts.kernels["products"]
    assert len(executor.run(StepPlan(0, (Span(0, tokens(5), (0,)),))).results) == 1


def test_a_step_of_another_number_of_rows_is_refused(tmp_path: Path) -> None:
    library()
    executor = load(oracle("llama, tied"), tmp_path, "int8")
    attention = executor._attention.step((Span(0, tokens(5), (0,)),), 5)
    with torch.inference_mode(), pytest.raises(ValueError, match="4 rows"):
        executor._decoder(StepInput(torch.zeros(4, dtype=torch.int64), attention, torch.tensor([0])))
