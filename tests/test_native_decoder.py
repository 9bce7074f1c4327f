"""Rounded weights through the native decoder: what torch computes from the same rounded numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from headway.compute.models.decoder import Decoder, StepInput, matrices
from headway.compute.models.spec import DecoderSpec
from headway.compute.native.decoder import NativeDecoder
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


ROOM = tuple(range(6))


def native(tmp_path: Path, weights: str, **damage: tuple[tuple[int, ...], Any]) -> tuple[TextExecutor, NativeDecoder]:
    """A native decoder, and the executor whose attention it shares; some of its tensors have another value at a
    place."""
    library()
    executor = load(oracle("llama, wide heads"), tmp_path, weights, threads=2)
    files = files_of(oracle("llama, wide heads"))
    spec = DecoderSpec.from_config(files.config, "tiny")
    tensors = dict(load_tensors(spec, files, "fp32" if weights == "int4" else "bf16", tmp_path).tensors)
    for name, (place, value) in damage.items():
        tensors[name] = tensors[name].clone()
        tensors[name][place] = value
    return executor, NativeDecoder(spec, tensors, executor._attention, 4 if weights == "int4" else 8)


def step(executor: TextExecutor, known: Sequence[int], asked: Sequence[int], logit_rows: int) -> StepInput:
    span = Span(0, tuple(known), ROOM)
    return StepInput(known, executor._attention.step((span,), len(known)), asked, logit_rows)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 70])
@torch.inference_mode()
def test_the_logits_of_a_step_are_those_of_its_hidden_states(tmp_path: Path, weights: str, rows: int) -> None:
    executor, decoder = native(tmp_path, weights)
    asked = [(7 * i) % 70 for i in range(rows)]
    found = decoder(step(executor, tokens(70), [*asked, 5, 5], rows))
    assert torch.equal(found.logits, decoder.logits(found.hidden[:rows])) and not found.spoiled
    assert list(found.largest) == found.logits.argmax(-1).tolist()
    assert torch.equal(found.hidden[-1], found.hidden[-2])
    last = found.hidden[-1].clone()
    alone = decoder(step(executor, tokens(70), [5], 0))
    assert torch.equal(alone.hidden[0], last) and len(alone.logits) == len(alone.largest) == 0


@pytest.mark.parametrize("place", [0, 15, 16, 33, 80, 95, 96])
@torch.inference_mode()
def test_the_largest_logit_is_found_wherever_it_is_and_of_equal_ones_the_first(tmp_path: Path, place: int) -> None:
    column = torch.zeros(97, 1)
    column[place] = 1
    executor, decoder = native(tmp_path, "int8", head=((), column))
    found = decoder(step(executor, tokens(30), range(30), 30))
    assert list(found.largest) == found.logits.numpy().argmax(-1).tolist()
    assert set(found.largest) == {place, 1 if place == 0 else 0}, "sums of either sign"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@torch.inference_mode()
def test_rows_of_hidden_states_that_are_not_finite_are_told(tmp_path: Path, value: float) -> None:
    bad = 60
    known = [token if token != bad else bad + 1 for token in tokens(9)]
    known[6] = bad
    executor, decoder = native(tmp_path, "int8", embedding=((bad, 3), value))
    rows = decoder(step(executor, known, [2, 1], 2)).spoiled
    assert {6} <= set(rows) <= {6, 7, 8}  # those behind it see its state


@torch.inference_mode()
def test_rows_whose_logits_are_not_finite_are_told(tmp_path: Path) -> None:
    executor, decoder = native(tmp_path, "int8", norm=((3,), float("inf")))
    assert decoder(step(executor, tokens(9), [4, 8, 2], 2)).spoiled == [4, 8]
    assert not decoder(step(executor, tokens(9), [4, 8, 2], 0)).spoiled


@pytest.mark.parametrize(("known", "asked"), [((0, 97), (0,)), ((0, -1), (0,)), ((0, 1), (2,)), ((0, 1), (-1,))])
@torch.inference_mode()
def test_tokens_and_rows_that_do_not_exist_are_refused(
    tmp_path: Path, known: tuple[int, ...], asked: tuple[int, ...]
) -> None:
    executor, decoder = native(tmp_path, "int8")
    with pytest.raises(ValueError, match="no such token"):
        decoder(step(executor, known, asked, 1))


def test_a_step_of_another_number_of_rows_is_refused(tmp_path: Path) -> None:
    library()
    executor = load(oracle("llama, wide heads"), tmp_path, "int8")
    attention = executor._attention.step((Span(0, tokens(5), (0,)),), 5)
    with torch.inference_mode(), pytest.raises(ValueError, match="4 rows"):
        executor._decoder(StepInput([0] * 4, attention, [0]))
