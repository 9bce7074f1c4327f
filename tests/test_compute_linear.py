"""Kernels for matrix products: right, and stable in every bit at the row counts they are padded to."""

from __future__ import annotations

import pytest
import torch

from headway.compute.kernels.linear import KERNELS, Kernel, Products, choose_weights, probe_products
from headway.errors import ConfigError

SHAPES = [(96, 48), (160, 576), (64, 1536)]


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_at_every_padded_number_of_rows(weights: str, shape: tuple[int, int]) -> None:
    products = probe_products(weights)
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(shape, generator=generator).bfloat16()
    x = torch.randn(300, shape[1], generator=generator)
    product = products.pack_all({"w": (weight, None)})["w"]
    expected = product(x[: products.rows(96)])
    for count in (*range(1, 40), 61, 62, 64, 96, 127, 128, 250):
        rows = products.rows(count)
        shared = min(count, len(expected))
        assert count <= rows < count + 32
        assert torch.equal(product(x[:rows])[:shared], expected[:shared]), f"{products.words}: {count} rows"


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_a_product_is_that_of_plain_arithmetic(weights: str) -> None:
    generator = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(96, 200, generator=generator).bfloat16(), torch.randn(96, generator=generator)
    x = torch.randn(11, 200, generator=generator).bfloat16().float()
    expected = x.double() @ weight.double().T + bias
    found = probe_products(weights).pack_all({"w": (weight, bias)})["w"](x)
    assert torch.allclose(found.double(), expected, rtol=1e-2 if weights == "bf16" else 1e-5, atol=1e-3)


def test_a_kernel_that_changes_bits_for_few_rows_is_padded_and_says_so() -> None:
    def pack(weight: torch.Tensor, bias: torch.Tensor | None):
        return lambda x: (x[:, None] * weight).sum(-1) + (1e-3 if len(x) < 4 else 0)

    products = Products(Kernel("peculiar", pack))
    assert [products.rows(count) for count in (0, 1, 3, 4)] == [0, 4, 4, 4]
    assert products.words == "peculiar; rows are padded to 4 for 1, 4 for 2, 4 for 3, …"


def test_weights_too_large_for_half_precision_are_refused() -> None:
    (half,) = (kernel for kernel in KERNELS["bf16"] if kernel.serial)
    with pytest.raises(ConfigError, match="65504"):
        half.pack(torch.full((4, 4), 70000.0).bfloat16(), None)


def test_a_format_without_kernels_is_refused() -> None:
    assert choose_weights("auto") in ("fp32", "bf16")
    with pytest.raises(ConfigError, match="--weights: int4"):
        choose_weights("int4")
