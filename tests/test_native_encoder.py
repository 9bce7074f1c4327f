"""The native encoder against plain torch, at each level and with each kind of dot product that this machine runs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from headway.compute.kernels.full_attention import FullAttention, Group
from headway.compute.kernels.int8 import quantised
from headway.compute.kernels.rows import Product
from headway.compute.models.encoder import Encoder, Inputs, matrices
from headway.compute.models.encoder_spec import EncoderSpec
from headway.compute.native.encoder import NativeEncoder, _Shape, not_covered
from headway.compute.native.library import DOTS_OF, Absent
from native_library import FOUND, LEVELS, library
from test_native_products import rounded_inputs

WAYS = (
    [("absent", "absent")]
    if isinstance(FOUND, Absent)
    else [(level, dots) for level in LEVELS for dots in FOUND.dots if dots in DOTS_OF[level]]
)
VOCAB, LONGEST = 61, 700
#: Layers, heads, size of a head, intermediate: sizes that are no multiple of anything among them.
SHAPES = [(1, 1, 16, 40), (2, 3, 32, 200), (3, 2, 64, 130), (2, 5, 16, 321)]
#: An input of one position; around vectors, tiles, strips and partitions; and of several of these.
LENGTHS = (1, 2, 15, 16, 17, 25, 63, 64, 65, 255, 256, 257, 513)

Tensors = dict[str, torch.Tensor]


def spec_of(layers: int, heads: int, head_dim: int, intermediate: int) -> EncoderSpec:
    return EncoderSpec(
        name="random", architecture="BertModel", layers=layers, hidden=heads * head_dim, heads=heads,
        intermediate=intermediate, vocab=VOCAB, max_context=LONGEST, norm_eps=1e-12, activation="gelu",
        positions=LONGEST, types=2, ropes=(None,) * layers, windows=(0,) * layers,
    )  # fmt: skip


def tensors_of(spec: EncoderSpec, *, scaled: bool, seed: int = 5) -> Tensors:
    """Random weights; with `scaled`, norms and products as `embed/smoothing.py` leaves them."""
    chance = torch.Generator().manual_seed(seed)

    def random(*shape: int, size: float = 1.0, around: float = 0.0) -> torch.Tensor:
        return torch.randn(*shape, generator=chance) * size + around

    hidden = spec.hidden
    found = {
        "embedding": random(VOCAB, hidden), "positions": random(LONGEST, hidden), "types": random(2, hidden),
        "embedding_norm.weight": random(hidden, size=0.2, around=1), "embedding_norm.bias": random(hidden, size=0.2),
    }  # fmt: skip
    sizes = {
        "qkv": (3 * hidden, hidden), "o": (hidden, hidden), "up": (spec.intermediate, hidden),
        "down": (hidden, spec.intermediate),
    }  # fmt: skip
    for i in range(spec.layers):
        for name, (outputs, inputs) in sizes.items():
            found[f"layers.{i}.{name}.weight"] = random(outputs, inputs, size=1.5 * inputs**-0.5)
            found[f"layers.{i}.{name}.bias"] = random(outputs, size=0.2)
        for norm in ("attention_norm", "mlp_norm"):
            found[f"layers.{i}.{norm}.weight"] = random(hidden, size=0.2, around=1)
            found[f"layers.{i}.{norm}.bias"] = random(hidden, size=0.2)
        if scaled:
            for name in ("qkv", "up"):
                found[f"layers.{i}.{name}.scale"] = random(hidden).exp().clamp(0.3, 3)
    return found


def exact_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """What every kernel of int8 weights and inputs computes, in sums of doubles."""
    rounded, scales = quantised(weight)
    offset = torch.zeros(len(weight)) if bias is None else bias

    def product(x: torch.Tensor) -> torch.Tensor:
        return (rounded_inputs(x).double() @ (rounded.double() * scales).T).float() + offset

    return product


def inputs_of(lengths: Sequence[int], seed: int = 1) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [chance.integers(0, VOCAB, length).astype(np.int32) for length in lengths]


def alone(spec: EncoderSpec, tensors: Tensors, tokens: np.ndarray, second: int = 0) -> torch.Tensor:
    """The hidden states of one input by plain torch: [positions, hidden]."""
    products = {name: exact_product(*pair) for name, pair in matrices(spec, tensors).items()}
    count = len(tokens)
    inputs = Inputs(
        tokens=torch.from_numpy(tokens).long(),
        positions=torch.arange(count),
        second=(torch.arange(count) >= second).long() if second else None,
        attention=FullAttention([Group(0, 1, count)], count, spec.heads),
    )
    with torch.inference_mode():
        return Encoder(spec, tensors, products)(inputs)


def run(
    encoder: NativeEncoder, inputs: Sequence[np.ndarray], seconds: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """The hidden states of each input."""
    lengths = np.array([len(each) for each in inputs], np.int32)
    given = None if seconds is None else np.array(seconds, np.int32)
    states = torch.from_numpy(encoder(np.concatenate(inputs), lengths, given))
    return list(states.split(lengths.tolist()))


@pytest.mark.parametrize("level, dots", WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hidden_states_are_those_of_plain_torch(shape: tuple[int, int, int, int], level: str, dots: str) -> None:
    spec = spec_of(*shape)
    tensors = tensors_of(spec, scaled=shape[0] > 1)
    inputs = inputs_of(LENGTHS if level != "generic" else LENGTHS[:9])
    seconds = [len(each) // 2 if i % 3 == 0 else 0 for i, each in enumerate(inputs)]
    found = run(NativeEncoder(spec, tensors, library(), level, 2, dots), inputs, seconds)
    expected = [alone(spec, tensors, tokens, second) for tokens, second in zip(inputs, seconds, strict=True)]
    of_inputs = [(one - other).norm(dim=1) / other.norm(dim=1) for one, other in zip(found, expected, strict=True)]
    # Equal but for numbers that lie half way between two of 8 bits: those may round either way, and others see it.
    away = torch.cat(of_inputs)
    assert away.max() < 0.1 and min(each.max() for each in of_inputs) < 1e-6


@pytest.mark.parametrize("level", LEVELS)
def test_bits_depend_on_the_input_alone(level: str) -> None:
    """Not on others in the step or their order, on threads or how they share the step, or on what is asked for."""
    spec = spec_of(2, 3, 32, 200)
    tensors = tensors_of(spec, scaled=True)
    inputs = inputs_of((300, 7, 64, 129, 1, 40, 40, 257, 12, 90))
    one, three = (NativeEncoder(spec, tensors, library(), level, threads) for threads in (1, 3))
    expected = [run(one, [each])[0] for each in inputs]
    alone_means = [one(each, np.array([len(each)], np.int32), result="means", unit=True)[0] for each in inputs]
    order = np.random.default_rng(2).permutation(len(inputs))
    for encoder in (one, three):
        for places in ([*range(len(inputs))], order.tolist(), order[:3].tolist(), [0], [4], [1, 2]):
            for place, states in zip(places, run(encoder, [inputs[i] for i in places]), strict=True):
                assert torch.equal(states, expected[place])
            lengths = np.array([len(inputs[i]) for i in places], np.int32)
            firsts = encoder(np.concatenate([inputs[i] for i in places]), lengths, result="firsts")
            assert np.array_equal(firsts, torch.stack([expected[place][0] for place in places]))
            means = encoder(np.concatenate([inputs[i] for i in places]), lengths, result="means", unit=True)
            assert all(np.array_equal(mean, alone_means[place]) for place, mean in zip(places, means, strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [(51,), (1,), (300,), (9, 130, 4, 51)], ids=str)
def test_pooled_vectors_are_those_of_the_hidden_states(lengths: tuple[int, ...], threads: int, level: str) -> None:
    """Shared by all threads or not; sums in fp32."""
    spec = spec_of(2, 5, 16, 321)
    encoder = NativeEncoder(spec, tensors_of(spec, scaled=True), library(), level, threads)
    inputs = inputs_of(lengths)
    states = run(encoder, inputs)
    tokens, counts = np.concatenate(inputs), np.array(lengths, np.int32)
    means, firsts = torch.stack([each.mean(0) for each in states]), torch.stack([each[0] for each in states])
    for result, expected in (("means", means), ("firsts", firsts)):
        found = torch.from_numpy(encoder(tokens, counts, result=result))  # type: ignore[arg-type]
        unit = torch.from_numpy(encoder(tokens, counts, result=result, unit=True))  # type: ignore[arg-type]
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert torch.allclose(unit, torch.nn.functional.normalize(expected, dim=1), rtol=1e-5, atol=1e-6)


def test_the_clock_tells_every_part_of_a_run_and_nothing_once_it_is_taken_away() -> None:
    spec = spec_of(2, 3, 32, 200)
    encoder = NativeEncoder(spec, tensors_of(spec, scaled=False), library(), LEVELS[0], 2)
    spent_ns = np.zeros(9, np.int64)
    library().encoder_clock(encoder._handle, spent_ns.ctypes.data)
    run(encoder, inputs_of((51, 40)))
    assert (spent_ns[:8] > 0).all()
    before = spent_ns.copy()
    library().encoder_clock(encoder._handle, None)
    run(encoder, inputs_of((51, 40)))
    assert np.array_equal(spent_ns, before)


def test_what_is_not_finite_stays_in_its_input() -> None:
    spec = spec_of(2, 2, 32, 96)
    tensors = tensors_of(spec, scaled=False)
    tensors["embedding"][7, 3] = float("nan")
    encoder = NativeEncoder(spec, tensors, library(), LEVELS[0], 2)
    good, bad = np.full(9, 5, np.int32), np.array([5, 7, 5], np.int32)
    first, spoiled, last = run(encoder, [good, bad, good])
    assert torch.equal(first, last) and first.isfinite().all() and spoiled.isnan().all()


@pytest.mark.parametrize("tokens", [[VOCAB], [-1], [3] * (LONGEST + 1), []])
def test_a_token_or_a_length_that_the_model_does_not_have_is_an_error(tokens: list[int]) -> None:
    spec = spec_of(1, 1, 16, 16)
    encoder = NativeEncoder(spec, tensors_of(spec, scaled=False), library(), LEVELS[0], 1)
    with pytest.raises(ValueError, match="empty or too long, or a token"):
        encoder(np.array(tokens, np.int32), np.array([len(tokens)], np.int32))


def test_the_struct_is_as_large_as_the_librarys() -> None:
    assert ctypes.sizeof(_Shape) == library().encoder_bytes


def test_an_encoder_of_another_kind_is_refused_by_name() -> None:
    spec = spec_of(1, 1, 16, 16)
    assert not_covered(spec) is None
    for changed, why in (
        ({"pre_norm": True}, "norms before each block"), ({"gated": True}, "a gated MLP"),
        ({"buckets": 8}, "relative positions"), ({"windows": (4,)}, "windows"),
        ({"activation": "relu"}, "the activation relu"), ({"heads": 2}, "heads of 8 values"),
    ):  # fmt: skip
        other = replace(spec, **changed)  # type: ignore[arg-type]
        assert not_covered(other) == why
        with pytest.raises(ValueError, match=why):
            NativeEncoder(other, {}, library(), LEVELS[0], 1)
