"""Kernels for matrix products: right, and stable in every bit at the row counts they are padded to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.compute.kernels.kept_probes import KeptProbes
from headway.compute.kernels.linear import KERNELS, Kernel, Products, choose_weights, probe_kernel
from headway.compute.kernels.rows import PIECE
from headway.core.errors import ConfigError

SHAPES = [(96, 48), (160, 576), (64, 1536)]
COUNTS = (*range(1, 40), 61, 62, 64, 81, 96, 127, 128, 250, 300)


def cancelling(outputs: int, inputs: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and different rows whose product is exactly 0: what a kernel gives is its rounding errors alone."""
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(inputs, generator=generator)
    weight = torch.randn(outputs, inputs // 2, generator=generator).bfloat16()
    x = torch.randn(rows, inputs // 2, generator=generator).bfloat16().float()
    return torch.cat((weight, -weight), 1)[:, order].contiguous(), torch.cat((x, x), 1)[:, order].contiguous()


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_at_every_padded_number_of_rows(weights: str, shape: tuple[int, int]) -> None:
    weight, x = cancelling(*shape, 340)
    products = Products(probe_kernel(weights), {"w": (weight, None)})
    product = products["w"]
    expected = product(x[: products.rows(96)])
    for count in COUNTS:
        rows = products.rows(count)
        shared = min(count, len(expected))
        assert count <= rows < count + 32
        assert torch.equal(product(x[:rows])[:shared], expected[:shared]), f"{products.words}: {count} rows"


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_product_is_that_of_plain_arithmetic(weights: str) -> None:
    generator = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(96, 200, generator=generator).bfloat16(), torch.randn(96, generator=generator)
    x = torch.randn(70, 200, generator=generator).bfloat16().float()
    expected = x.double() @ weight.double().T + bias
    found = Products(probe_kernel(weights), {"w": (weight, bias)})["w"](x)
    # A kernel that answers in bf16 rounds the result (2⁻⁹ of it), and its bias before (2⁻⁹ of that, at most 4 here).
    tolerance = {"rtol": 2**-8, "atol": 2**-7} if weights == "bf16" else {"rtol": 1e-5, "atol": 1e-3}
    assert torch.allclose(found.double(), expected, **tolerance)


def peculiar(odd: Callable[[int], bool]) -> Kernel:
    """A kernel whose bits are others where `odd` says so of the number of rows."""

    def pack(weight: torch.Tensor, bias: torch.Tensor | None):
        return lambda x: (x[:, None] * weight).sum(-1) + (1e-3 if odd(len(x)) else 0)

    return Kernel("peculiar", pack)


ONE = {"w": (torch.ones(3, 8), None)}


def test_a_kernel_that_changes_bits_for_few_rows_is_padded_and_says_so() -> None:
    products = Products(peculiar(lambda rows: rows < 4), ONE)
    assert [products.rows(count) for count in (0, 1, 3, 4, 700)] == [0, 4, 4, 4, 700]
    assert products.words == "peculiar; rows are padded to 4 for 1, 4 for 2, 4 for 3, …"


def test_a_kernel_that_changes_bits_for_many_rows_is_given_pieces_and_says_so() -> None:
    products = Products(peculiar(lambda rows: rows > 32 or rows == 5), ONE)
    assert [products.rows(count) for count in (0, 4, 5, 32, 33, 37, 96)] == [0, 4, 6, 32, 33, 38, 96]
    assert products.words == "peculiar; rows are evaluated 32 at a time"
    x = torch.arange(70 * 8).view(70, 8).float()
    assert torch.equal(products["w"](x), x.sum(-1, keepdim=True).expand(-1, 3))


def asked_counts(probes: KeptProbes | None) -> tuple[set[int], str]:
    """Which numbers of rows a kernel is asked about while a model is loaded, and what is said of it."""
    asked: set[int] = set()
    products = Products(peculiar(lambda rows: asked.add(rows) or rows < 4), ONE, probes)
    assert [products.rows(count) for count in (1, 3, 4)] == [4, 4, 4]
    return asked, products.words


def test_a_second_start_knows_what_the_first_found_out_of_a_kernel(tmp_path: Path) -> None:
    alone, words = asked_counts(None)
    assert asked_counts(KeptProbes(tmp_path / "new")) == (alone, words)
    again, said = asked_counts(KeptProbes(tmp_path / "new"))
    assert said == words and again == {PIECE} < alone  # the usual bits of a row are found each time


@pytest.mark.parametrize("change", ["threads", "setting", "version", "shape", "damage"])
def test_what_was_found_out_elsewhere_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    KeptProbes(tmp_path).keep("k", {(2, 3)}, {1: True})
    assert KeptProbes(tmp_path).recall("k", {(2, 3)}) == {1: True}
    shapes = {(2, 4)} if change == "shape" else {(2, 3)}
    if change == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    elif change == "setting":
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    elif change == "version":
        monkeypatch.setattr(torch, "__version__", "0.0.1")
    elif change == "damage":
        (tmp_path / "row_probes.json").write_bytes(b'{"a": {"1": tr')
    assert KeptProbes(tmp_path).recall("k", shapes) == {}
    assert KeptProbes(tmp_path).recall("other", {(2, 3)}) == {}


def test_a_kernel_without_any_order_says_so_and_is_left_alone() -> None:
    def pack(weight: torch.Tensor, bias: torch.Tensor | None):
        return lambda x: (x[:, None] * weight).sum(-1) + (torch.arange(len(x)) % 2)[:, None]

    products = Products(Kernel("unruly", pack), ONE)
    assert [products.rows(count) for count in (1, 2, 7, 600)] == [1, 2, 7, 600]
    assert products.words.startswith("unruly; a row's bits depend on the number of rows (2, 3, 4,")


def test_weights_too_large_for_half_precision_are_refused() -> None:
    (half,) = (kernel for kernel in KERNELS["bf16"] if kernel.serial)
    weight = torch.ones(4, 4)
    weight[1, 2], weight[3, 0] = 70000.0, -1e6
    with pytest.raises(
        ConfigError, match=r"--weights: layers\.0\.o\.weight has 2 values .*above 65504, up to .*fp32"
    ):
        Products(half, {"layers.0.o": (weight.bfloat16(), None)})


def test_a_bias_that_overflows_in_bf16_is_refused() -> None:
    packed = KERNELS["bf16"][0]
    bias = torch.tensor([1.0, 3.4e38])
    with pytest.raises(ConfigError, match=r"o\.bias has 1 values"):
        Products(packed, {"o": (torch.ones(2, 4).bfloat16(), bias)})


def test_a_format_without_kernels_is_refused() -> None:
    assert choose_weights("auto") in ("fp32", "bf16")
    with pytest.raises(ConfigError, match="--weights: fp8 is not implemented"):
        choose_weights("fp8")
