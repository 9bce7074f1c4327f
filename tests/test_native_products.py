"""Products of the native library, with everything that this machine can add up products of bytes with."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

from headway.compute.native.library import DOTS
from headway.compute.native.pool import Pool
from headway.compute.native.products import NativeProducts, PackedWeights
from native_library import FOUND, library

FOUND_DOTS = getattr(FOUND, "dots", ("absent",))
WITH_EVERY_DOT = pytest.mark.parametrize("dots", FOUND_DOTS)
#: (outputs, inputs): of the default model, and sizes that leave a rest.
SHAPES = [(960, 576), (576, 1536), (64, 64), (98, 48), (33, 7), (1, 1), (130, 65)]
OF_BOTH_SIZES = pytest.mark.parametrize("bits", [8, 4])
#: See native/product_level.h.
NEAR, NEAR_NORMED = 12, 7
AT_SHAPES = pytest.mark.parametrize("shape", SHAPES, ids=str)


def multiplier(dots: str, threads: int) -> NativeProducts:
    return NativeProducts(library(), dots, Pool(library(), threads, spin_us=20))


def drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)))


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers and the scales of rows, as the paper says it, in the arithmetic of the kernels."""
    top = x.abs().amax(1, keepdim=True).clamp_min(1e-30)
    return (x * (torch.full_like(top, 127) / top)).round(), top / 127


def two_digits(x: torch.Tensor, near: int = NEAR) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers and the scales of rows of inputs, which the largest is a whole multiple of, from 127 to 32,639.
    Those beyond 127 have a second digit: at most one step of four inputs for each 64 inputs, and the rest of
    these."""
    size, most_far = x.shape[1], -(-x.shape[1] // 64)
    top = x.abs().amax(1).clamp_min(1e-30)
    bound = ((near * (x.abs().sum(1) / size)).view(torch.int32) & ~0xFFFFF).view(torch.float32)
    while True:
        scales = (top / (127 * (top / bound)).floor().clamp(127, 32639))[:, None]
        whole = (x * (1 / scales)).round()
        high = ((F.pad(whole, (0, -size % 4)) + 128) / 256).floor()
        over = (high != 0).view(len(x), -1, 4).any(2).sum(1) > most_far
        if not bool(over.any()):
            return whole, scales
        bound = torch.where(over, bound * 1.25, bound)


def rounded_inputs(x: torch.Tensor, near: int = NEAR) -> torch.Tensor:
    whole, scales = two_digits(x, near)
    return whole * scales


def rounded_in_groups(weight: torch.Tensor) -> torch.Tensor:
    """Sixteen values from the least to the largest of each 32 inputs, these in half precision (GGUF's Q4_1); fewer,
    as many as there may be, where all 32 lie on such a grid, within a twentieth of a step."""
    parts = []
    for values in weight.split(32, 1):
        low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
        steps = torch.full_like(low, 15)
        for count in range(2, 16 if values.shape[1] == 32 else 2):
            at = (values - low) / ((high - low) / torch.full_like(low, count))
            steps[((at - at.round()).abs() <= 0.05).all(1)] = count
        scale, least = ((high - low) / steps).half().float(), low.half().float()
        steps = torch.where(scale > 0, (values - least) / scale, 0).clamp(0, 15).round()
        parts.append(steps * scale + least)
    return torch.cat(parts, 1)


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, bits: int = 8, near: int = NEAR
) -> torch.Tensor:
    whole, scales = rounded(weight)
    wide = rounded_in_groups(weight).double() if bits == 4 else whole.double() * scales
    return rounded_inputs(x, near).double() @ wide.T + (0 if bias is None else bias)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """fp32 arithmetic on the way out."""
    return torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max() + 1))


@WITH_EVERY_DOT
@AT_SHAPES
@OF_BOTH_SIZES
@pytest.mark.parametrize("rows", [1, 3, 13, 50])
def test_a_product_is_that_of_the_rounded_numbers(dots, shape, bits, rows):
    weight, bias, x = drawn(*shape), drawn(shape[0]), drawn(rows, shape[1])
    products = multiplier(dots, 2)
    for offset in (None, bias):
        found = products.multiply(x, PackedWeights(library(), weight, offset, bits=bits))
        assert close(found, reference(x, weight, offset, bits))


@WITH_EVERY_DOT
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_weights_that_a_gguf_file_holds_in_4_bits_keep_them(dots, kind):
    """The file's values as gguf-py reads them, in bf16 as converted weights are. Scales and least values are in half
    precision: what that costs is far below what rounding once more to sixteen other values would."""
    chosen = torch.Generator().manual_seed(7)
    groups, count = 64 * 8, 32
    steps = torch.randint(2, 13, (groups, count), generator=chosen)  # the ends of the grid are seldom reached
    if kind == "Q4_K":  # 6-bit scales and least values, times two halves of each 256
        scale = torch.randint(1, 64, (groups, 1), generator=chosen) * torch.tensor(0.0013).half().float()
        least = -torch.randint(0, 64, (groups, 1), generator=chosen) * torch.tensor(0.0021).half().float()
    else:
        scale = (torch.rand(groups, 1, generator=chosen) + 0.1).half().float() / 8
        least = -8 * scale if kind == "Q4_0" else (-5.3 * scale).half().float()
    exact = (steps * scale + least).view(64, 8 * count)
    x = drawn(5, 8 * count)
    found = multiplier(dots, 1).multiply(x, PackedWeights(library(), exact.bfloat16(), bits=4))
    expected = rounded_inputs(x).double() @ exact.T.double()
    apart = float((found - expected).norm() / expected.norm())
    assert apart < 0.006  # of bf16 and half precision; three to ten times that with steps of another size


@WITH_EVERY_DOT
def test_bf16_weights_and_inputs_are_those_in_fp32(dots):
    weight, x = drawn(98, 100).bfloat16(), drawn(9, 100).bfloat16()
    products = multiplier(dots, 1)
    found = products.multiply(x, PackedWeights(library(), weight))
    assert torch.equal(found, products.multiply(x.float(), PackedWeights(library(), weight.float())))


@WITH_EVERY_DOT
@pytest.mark.parametrize("shape", [(192, 576), (98, 48), (34, 7), (2, 1)], ids=str)
def test_what_becomes_of_a_product_is_that_of_torch(dots, shape):
    weight, bias, x = drawn(*shape), drawn(shape[0]), drawn(11, shape[1])
    products, packed = multiplier(dots, 2), PackedWeights(library(), weight, bias)
    plain = reference(x, weight, bias)
    assert close(products.multiply(x, packed, "gelu"), F.gelu(plain))
    before = drawn(*plain.shape)
    assert close(products.multiply(x, packed, "added", before.clone()), before + plain)
    gate, up = plain.chunk(2, 1)
    gated = products.multiply(x, PackedWeights(library(), weight, bias, gated=True))
    assert close(gated, F.silu(gate) * up)


@WITH_EVERY_DOT
def test_activations_stay_right_far_from_zero(dots):
    values = torch.cat((torch.linspace(-30, 30, 999), torch.tensor([-1e4, 1e4, 0.0])))
    identity = torch.eye(1)  # a row of one number is rounded to itself
    products = multiplier(dots, 1)
    found = products.multiply(values[:, None], PackedWeights(library(), identity), "gelu")[:, 0]
    assert torch.allclose(found.double(), F.gelu(values.double()), rtol=1e-5, atol=1e-6)
    gates = PackedWeights(library(), torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 1.0]), gated=True)
    assert torch.allclose(products.multiply(values[:, None], gates)[:, 0], F.silu(values), rtol=1e-5, atol=1e-6)


@WITH_EVERY_DOT
def test_inputs_are_normalised_first_where_asked(dots):
    weight, norm, x = drawn(70, 100), drawn(100) + 1, drawn(9, 100) * 30
    products = multiplier(dots, 2)
    found = products.multiply(x, PackedWeights(library(), weight), norm=norm, norm_eps=1e-2)
    normal = F.rms_norm(x, (100,), norm, 1e-2)
    assert torch.allclose(found.double(), reference(normal, weight, None, near=NEAR_NORMED), rtol=1e-3, atol=0.1)


@WITH_EVERY_DOT
@OF_BOTH_SIZES
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(dots, bits, gated):
    weight, bias, x = drawn(192, 200), drawn(192), drawn(150, 200)
    packed = PackedWeights(library(), weight, bias, gated=gated, bits=bits)
    alone = multiplier(dots, 1)
    expected = torch.cat([alone.multiply(row[None], packed) for row in x])
    for threads in (1, 2, 5):
        products = multiplier(dots, threads)
        for count in (*range(1, 20), 24, 25, 64, 97, 150):
            assert torch.equal(products.multiply(x[150 - count :], packed), expected[150 - count :])


def test_every_way_of_adding_up_gives_the_same_sums():
    """With scales of 1, so that nothing is rounded on the way out."""
    whole = torch.randint(-127, 128, (40, 300), generator=torch.Generator().manual_seed(0)).float()
    whole[:, ::32] = 127
    results = [multiplier(dots, 2).multiply(whole[:7], PackedWeights(library(), whole)) for dots in FOUND_DOTS]
    expected = whole[:7].double() @ whole.double().T
    assert all(torch.allclose(found.double(), expected, rtol=1e-6) for found in results)
    assert all(torch.equal(found, results[0]) for found in results)


@WITH_EVERY_DOT
def test_the_largest_sums_do_not_overflow(dots):
    """As many inputs as there may be: all at their largest, and some of them far besides."""
    size, products = 131072, multiplier(dots, 1)
    x = torch.ones(3, size)
    x[1] = -1
    x[2, :: size // 512] = 1e6
    weight = torch.ones(2, size)
    weight[1] = -1
    found = products.multiply(x, PackedWeights(library(), weight))
    assert torch.allclose(found.double(), reference(x, weight, None), rtol=1e-5)
    assert torch.allclose(found[:2], torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) * size, rtol=1e-5)


def with_outliers(rows: int, size: int) -> torch.Tensor:
    """Rows with none, and ever more and larger ones; with all numbers equal; with one number that is not zero."""
    x = drawn(rows, size)
    for row in range(rows):
        places = torch.randperm(size, generator=torch.Generator().manual_seed(row))[: row * size // 256]
        x[row, places] *= 10.0 ** (row % 7)
    x[3] = -2.5
    x[4] = 0
    x[4, size // 2] = 3e4
    x[5] *= 1e-20
    x[6] *= 1e30
    return x


@WITH_EVERY_DOT
@pytest.mark.parametrize("shape", [(98, 576), (130, 1536), (33, 330)], ids=str)
@OF_BOTH_SIZES
def test_numbers_far_from_the_others_have_second_digits(dots, shape, bits):
    weight, x = drawn(*shape), with_outliers(40, shape[1])
    whole, scales = two_digits(x)
    assert bool((whole.abs() > 127).any(1)[[2, 4]].all())
    found = multiplier(dots, 2).multiply(x, PackedWeights(library(), weight, bits=bits))
    expected = reference(x, weight, None, bits)
    size = x.norm(dim=1, keepdim=True) * weight.norm(dim=1)
    assert bool(((found - expected).abs() <= 3e-7 * size).all())
    # One scale by the largest of the row would round the others away by more.
    near = x[2].abs() < 4
    errors = (whole * scales - x)[2][near].norm() / x[2][near].norm()
    alone = x[2].abs().max() / 127
    errors_alone = ((x[2] / alone).round() * alone - x[2])[near].norm() / x[2][near].norm()
    assert float(errors) < 0.05 and float(errors_alone) > 0.1


@WITH_EVERY_DOT
@OF_BOTH_SIZES
def test_a_row_with_far_numbers_has_the_same_bits_in_any_batch(dots, bits):
    x, packed = with_outliers(40, 330), PackedWeights(library(), drawn(192, 330), bits=bits)
    expected = multiplier(dots, 2).multiply(x, packed)
    for count in (1, 2, 3, 5, 12, 13, 25):
        assert torch.equal(multiplier(dots, 1).multiply(x[40 - count :], packed), expected[40 - count :])


@WITH_EVERY_DOT
@OF_BOTH_SIZES
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "minus inf"])
def test_a_number_that_is_not_one_spoils_its_own_row_and_no_other(dots, bits, value):
    weight, x = drawn(98, 48), drawn(5, 48)
    products = multiplier(dots, 2)
    for gated in (False, True):
        packed = PackedWeights(library(), weight, gated=gated, bits=bits)
        expected = products.multiply(x, packed)
        spoiled = x.clone()
        spoiled[2, 40] = value
        for norm in (None, torch.ones(48)):
            assert bool(products.multiply(spoiled, packed, norm=norm)[2].isnan().all())
        found = products.multiply(spoiled, packed)
        assert torch.equal(found[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


@WITH_EVERY_DOT
def test_weights_of_4_bits_come_out_as_they_were(dots):
    """Rounded weights, read off with rows of a single 127."""
    weight = rounded_in_groups(drawn(70, 100) * torch.logspace(-2, 3, 70)[:, None])
    found = multiplier(dots, 2).multiply(torch.eye(100) * 127, PackedWeights(library(), weight, bits=4))
    assert bool(((found.T / 127 - weight).abs() <= 1e-6 * weight.abs().amax(1, keepdim=True)).all())
    assert torch.equal(rounded_in_groups(weight), weight)


@WITH_EVERY_DOT
def test_rows_of_zeros_and_no_rows_are_products_too(dots):
    packed, products = PackedWeights(library(), drawn(33, 70), drawn(33)), multiplier(dots, 2)
    assert torch.equal(products.multiply(torch.zeros(2, 70), packed), drawn(33).expand(2, -1))
    assert products.multiply(torch.zeros(0, 70), packed).shape == (0, 33)


def test_what_does_not_fit_is_refused():
    packed, products = PackedWeights(library(), drawn(33, 70)), multiplier("generic", 1)
    with pytest.raises(ValueError, match=r"shape \[2, 69\], for a weight of 70"):
        products.multiply(torch.zeros(2, 69), packed)
    with pytest.raises(ValueError, match=r"shape \[2, 32\], of a weight of 33"):
        products.multiply(torch.zeros(2, 70), packed, out=torch.empty(2, 32))
    with pytest.raises(ValueError, match="131073 inputs"):
        PackedWeights(library(), torch.zeros(1, 131073))
    lacking = next((dots for dots in DOTS if dots not in library().dots), None)
    if lacking is not None:
        with pytest.raises(ValueError, match=f"{lacking} cannot run on this machine; it runs .*generic"):
            multiplier(lacking, 1)


def test_threads_without_work_sleep():
    packed, products = PackedWeights(library(), drawn(960, 576)), multiplier(FOUND_DOTS[0], 3)
    products.multiply(drawn(64, 576), packed)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.004  # 1% of a core
