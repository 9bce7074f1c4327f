"""A diffusion model's linear layers in int8, by the native library. Convolutions, norms and attention stay torch's:
these are in fp32."""

from __future__ import annotations

import torch
from torch import nn

from headway.compute.native.attention import SPIN_US
from headway.compute.native.library import Absent, choose, find, why_none
from headway.compute.native.memory import WeightMemory
from headway.compute.native.pool import Pool
from headway.compute.native.products import NativeProducts, PackedWeights
from headway.core.errors import ConfigError


class RoundedLinear(nn.Module):
    """Stands for a linear layer: x [..., inputs], fp32 → [..., outputs], fp32. A row's bits depend on it alone."""

    weight: torch.Tensor

    def __init__(self, packed: PackedWeights, products: NativeProducts) -> None:
        super().__init__()
        self._packed, self._products = packed, products
        self.register_buffer("weight", torch.empty(0))  # callers ask which data type it has

    @property
    def bytes(self) -> int:
        """Of its weights."""
        return self._packed.bytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return self._products.multiply(rows, self._packed).view(*x.shape[:-1], self._packed.columns)


def round_linear_layers(model: nn.Module, native: str) -> None:
    """Put a rounded layer in the place of each linear one of a model in fp32. Raises ConfigError where the native
    library is missing or off, MemoryError."""
    library = find()
    level = choose(native, library)
    if level is None or isinstance(library, Absent):
        why = why_none(native, library)
        raise ConfigError("--weights", f"int8 of a diffusion model needs the native kernels, which are {why}")
    pool = Pool(library, torch.get_num_threads(), SPIN_US)
    products, memory = NativeProducts(library, library.dots_of(level), pool), WeightMemory()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else layer.bias.data
                packed = PackedWeights(library, layer.weight.data, bias, memory=memory)
                setattr(parent, name, RoundedLinear(packed, products))
