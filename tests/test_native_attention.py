"""Attention of the native library, at every level that this machine can run: right, and each row by itself."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from headway.compute.kernels.rotary import Rotary
from headway.compute.kernels.state import PagedState
from headway.compute.kernels.state_format import STATE_FORMATS, StateFormat
from headway.compute.models.spec import DecoderSpec
from headway.compute.native.attention import NativeAttention
from headway.core.plan import Span
from native_library import LEVELS, library

#: (heads, key and value heads, size of a head, per-head norms): the default model's, and layouts that leave a rest.
LAYOUTS = [
    (9, 3, 64, False),
    (14, 2, 64, True),
    (4, 1, 128, False),
    (5, 5, 8, True),
    (7, 1, 20, False),
    (3, 3, 2, False),
]
LONGEST = 700
AT_EVERY_LEVEL = pytest.mark.parametrize("level", LEVELS)
FP32, BF16, INT8 = (STATE_FORMATS[name] for name in ("fp32", "bf16", "int8"))
OF_EVERY_FORMAT = pytest.mark.parametrize("held", STATE_FORMATS.values(), ids=STATE_FORMATS)


def spec_of(heads: int, kv_heads: int, head_dim: int, normed: bool) -> DecoderSpec:
    config = {
        "architectures": ["Qwen3ForCausalLM" if normed else "LlamaForCausalLM"], "hidden_size": 48,
        "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 97, "max_position_embeddings": LONGEST,
        "tie_word_embeddings": True, "rope_theta": 500.0,
    }  # fmt: skip
    return DecoderSpec.from_config(config, "tiny")


@dataclass
class World:
    """Sequences whose queries, keys and values are all known, in a pool of blocks that lie anywhere."""

    spec: DecoderSpec
    qkv: list[torch.Tensor]
    block_tokens: int
    held: StateFormat
    seed: int = 0
    poison: float = 0.0

    def __post_init__(self) -> None:
        needs = [-(-len(rows) // self.block_tokens) for rows in self.qkv]
        places = np.random.default_rng(self.seed).permutation(sum(needs) + 3)
        self.tables = [tuple(map(int, part)) for part in np.split(places[:-3], np.cumsum(needs)[:-1])]
        self.state = PagedState(self.spec, sum(needs) + 3, self.block_tokens, self.held)
        nan = math.isnan(self.poison) and self.held.scaled
        self.state._all.fill_(-1 if nan else self.poison)  # as a scale, a bf16 of ones alone is NaN
        draw = torch.Generator().manual_seed(1)
        norms = {
            f"layers.{layer}.{part}_norm": 1 + torch.randn(self.spec.head_dim, generator=draw) / 5
            for layer in range(self.spec.layers)
            for part in "qk"
        }
        self.rotary = Rotary(self.spec, norms, LONGEST)

    def attention(self, level: str, threads: int) -> NativeAttention:
        return NativeAttention(self.rotary, self.state, library(), level, threads)

    def step(
        self, attention: NativeAttention, parts: list[tuple[int, int, int]], layer: int = 1
    ) -> list[torch.Tensor]:
        """Evaluates (sequence, first, end) together; the results of each."""
        spans = [Span(first, (1,) * (end - first), self.tables[sequence]) for sequence, first, end in parts]
        rows = torch.cat([self.qkv[sequence][first:end] for sequence, first, end in parts])
        out = attention.step(spans, len(rows) + 2)(layer, rows.contiguous()).clone()
        assert torch.equal(out[len(rows) :], torch.zeros(2, out.shape[1]))
        return list(out[: len(rows)].split([end - first for _, first, end in parts]))

    def whole(self, level: str, threads: int = 1) -> list[torch.Tensor]:
        """Every sequence alone, at once."""
        attention = self.attention(level, threads)
        return [self.step(attention, [(i, 0, len(rows))])[0] for i, rows in enumerate(self.qkv)]

    def reference(self, sequence: int, layer: int = 1, rounded: bool = False) -> torch.Tensor:
        """In fp64, from the formulas: RMSNorm, rotation as a product of complex numbers, softmax over those seen.
        `rounded`: queries are, to bf16."""
        spec = self.spec
        rows = self.qkv[sequence].double().view(-1, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        q, k, v = rows.split([spec.heads, spec.kv_heads, spec.kv_heads], 1)
        if spec.qk_norm:
            weights = self.rotary.head_norms[layer].double().split([spec.heads, spec.kv_heads])
            q, k = (
                x * (x.square().mean(-1, keepdim=True) + spec.norm_eps).rsqrt() * weight
                for x, weight in zip((q, k), weights, strict=True)
            )
        q, k = (self._rotated(x) for x in (q, k))
        k, v = (self._as_held(x.float()).double() for x in (k, v))
        k, v = (x.repeat_interleave(spec.group, 1) for x in (k, v))
        q = q * spec.head_dim**-0.5
        scores = torch.einsum("qhd,khd->hqk", q.bfloat16().double() if rounded else q, k)
        scores.masked_fill_(torch.ones(len(rows), len(rows)).triu(1).bool(), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(rows), -1)

    def _as_held(self, x: torch.Tensor) -> torch.Tensor:
        """x [positions, heads, head_dim], fp32, as the state has it."""
        if self.held.scaled:
            mantissa, exponent = torch.frexp(x.abs().amax(-1, keepdim=True) / 127)
            scale = torch.ldexp((mantissa * 256).ceil() / 256, exponent)  # 8 bits, rounded up
            return (x / scale).round() * scale
        return x.to(self.held.dtype).float()

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        half = self.spec.head_dim // 2
        turns = self.spec.rope.frequencies(self.spec.head_dim).double().outer(torch.arange(len(x)).double()).T
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turns), turns)[:, None]
        return torch.cat((z.real, z.imag), -1)


def rounds(level: str, held: StateFormat) -> bool:
    """Whether queries and weights are rounded to bf16: where products are of pairs of them."""
    return level == "avx512bf16" and held is not FP32


def world(layout: tuple[int, int, int, bool], lengths: list[int], **options) -> World:
    spec = spec_of(*layout)
    draw = torch.Generator().manual_seed(sum(lengths))
    size = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    qkv = [torch.randn(length, size, generator=draw) for length in lengths]
    return World(spec, qkv, options.pop("block_tokens", 16), options.pop("held", FP32), **options)


@AT_EVERY_LEVEL
@OF_EVERY_FORMAT
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_results_are_those_of_the_formulas(level, held, layout):
    made = world(layout, [1, 17, 300], held=held, block_tokens=LAYOUTS.index(layout) * 7 % 16 + 1)
    # A key near the middle of two numbers that can be held becomes either, as its last fp32 bit has it.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if held is FP32 else {"rtol": 2e-3, "atol": 2e-3}
    rounded = rounds(level, held)
    if rounded:  # by 2^-9 at most, and so are the weights of what is added up
        tolerance = {"rtol": 4e-3, "atol": 4e-3}
    for i, found in enumerate(made.whole(level)):
        assert torch.allclose(found.double(), made.reference(i, rounded=rounded), **tolerance)


@pytest.mark.parametrize("held", [BF16, INT8], ids=["bf16", "int8"])
def test_products_of_bf16_pairs_are_near_those_of_fp32(held):
    if "avx512bf16" not in LEVELS:
        pytest.skip("this machine has no products of bf16 pairs")
    made = world((9, 3, 64, False), [LONGEST], held=held)
    (pairs,), (floats,) = made.whole("avx512bf16"), made.whole("avx512")
    assert 0 < (pairs - floats).norm() / floats.norm() < 4e-3


@AT_EVERY_LEVEL
@OF_EVERY_FORMAT
@pytest.mark.parametrize(("layout", "block_tokens"), list(zip(LAYOUTS, [16, 1, 5, 64, 256, 3], strict=True)), ids=str)
def test_a_row_has_the_same_bits_in_any_step_in_any_chunk_and_on_any_number_of_threads(
    level, held, layout, block_tokens
):
    lengths = [1, 2, 31, 255, 257, 300, 515]
    made = world(layout, lengths, held=held, block_tokens=block_tokens)
    expected = made.whole(level)
    draw = np.random.default_rng(7)
    for threads in (2, 3):
        attention = made.attention(level, threads)
        made.state._all.zero_()
        done = [0] * len(lengths)
        while done != lengths:
            going = [i for i in draw.permutation(len(lengths)) if done[i] < lengths[i]][: int(draw.integers(1, 8))]
            parts = [(i, done[i], min(lengths[i], done[i] + int(draw.integers(1, 200)))) for i in map(int, going)]
            for (i, first, end), found in zip(parts, made.step(attention, parts), strict=True):
                assert torch.equal(found, expected[i][first:end]), f"sequence {i}, {first} to {end}"
                done[i] = end


@AT_EVERY_LEVEL
@OF_EVERY_FORMAT
def test_a_decode_position_of_a_long_sequence_is_split_and_keeps_its_bits(level, held):
    made = world((9, 3, 64, False), [LONGEST, 3], held=held)
    expected = made.whole(level)
    for threads in (1, 2, 4):
        alone, beside = made.step(made.attention(level, threads), [(0, LONGEST - 1, LONGEST), (1, 2, 3)])
        assert torch.equal(alone, expected[0][-1:]) and torch.equal(beside, expected[1][2:])


@AT_EVERY_LEVEL
def test_queries_keys_and_values_in_bf16_are_those_in_fp32(level):
    made = world((9, 3, 64, False), [40], held=BF16)
    made.qkv = [rows.bfloat16().float() for rows in made.qkv]
    (expected,) = made.whole(level)
    made.qkv = [rows.bfloat16() for rows in made.qkv]
    assert torch.equal(made.whole(level)[0], expected)


@AT_EVERY_LEVEL
@OF_EVERY_FORMAT
def test_what_lies_beyond_a_sequence_does_not_matter(level, held):
    sound, poisoned = (
        world((6, 2, 20, False), [5, 70, 300], held=held, poison=poison) for poison in (0.0, float("nan"))
    )
    for expected, found in zip(sound.whole(level), poisoned.whole(level), strict=True):
        assert torch.equal(found, expected)


@AT_EVERY_LEVEL
@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
@pytest.mark.parametrize("held", [FP32, INT8], ids=["fp32", "int8"])
def test_a_number_that_is_not_one_spoils_its_sequence_from_there_on_and_no_other(level, held, part, value):
    made = world((6, 2, 16, False), [290, 290], held=held)
    expected = made.whole(level)
    made.qkv[0] = made.qkv[0].clone()
    made.qkv[0].view(290, 10, 16)[260, {"query": 1, "key": 6, "value": 8}[part]] = value
    attention = made.attention(level, 2)
    made.step(attention, [(0, 0, 260), (1, 0, 100)])
    first, other = made.step(attention, [(0, 260, 290), (1, 100, 290)])
    assert torch.equal(other, expected[1][100:])
    spoiled = ~first.isfinite().all(1)
    assert spoiled[0]
    assert part == "query" or bool(spoiled.all())


@AT_EVERY_LEVEL
@OF_EVERY_FORMAT
def test_state_is_written_where_the_table_says_and_nowhere_else_rounded_as_torch_rounds(level, held):
    made = world((6, 2, 16, False), [21, 40], held=held, poison=7.0)
    heads = made.qkv[0].view(21, 10, 16)
    if held is INT8:
        heads[::2].mul_(2).round_().div_(2)[:, :, 0] = 127  # a scale of 1, and halves
        heads[3, 8], heads[5, 9] = 0, 1e-39
    else:
        bits = heads.view(torch.int32)
        bits[::2].bitwise_and_(~0xFFFF).bitwise_or_(0x8000)  # in the middle between two bf16 numbers
    made.step(made.attention(level, 2), [(0, 0, 21)], layer=0)
    spans = [Span(0, (1,) * 21, made.tables[0])]
    values = heads[:, 8:].transpose(0, 1)
    assert torch.equal(made.state.read(0, spans)[2:], held.pack(values))
    made.state.layer_blocks[0].view(-1, held.items(16))[made.state.places(spans)] = 7
    assert bool((made.state._all == 7).all())


@AT_EVERY_LEVEL
@OF_EVERY_FORMAT
def test_large_scores_do_not_overflow(level, held):
    made = world((4, 2, 16, False), [300], held=held)
    made.qkv[0].mul_(40)
    (found,) = made.whole(level)
    rounded = rounds(level, held)
    # A score of thousands is a thousandth off in fp32; what rounding makes is relative, and values are near 40.
    tolerance = {"rtol": 2e-3, "atol": 2e-2 if held is FP32 else 0.4}
    assert torch.allclose(found.double(), made.reference(0, rounded=rounded), **tolerance)


def test_blocks_and_positions_that_do_not_exist_are_refused():
    made = world((6, 2, 16, False), [40])
    attention = made.attention("generic", 1)
    for span, what in (
        (Span(0, (1,) * 40, made.tables[0][:2]), "has 2 blocks, and needs 3"),
        (Span(0, (1,), (99,)), "does not exist"),
        (Span(0, (1,), (-1,)), "does not exist"),
        (Span(LONGEST, (1,), (0,) * 60), "does not exist"),
    ):
        with pytest.raises(ValueError, match=what):
            attention.step([span], 40)


def test_threads_without_work_sleep():
    made = world((9, 3, 64, False), [600])
    attention = made.attention(LEVELS[0], 3)
    made.step(attention, [(0, 0, 600)])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.6)
    assert time.process_time() - before < 0.006
