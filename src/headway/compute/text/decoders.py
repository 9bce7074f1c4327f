"""Which decoder runs weights of a format: whole layers by the native library, or products by torch's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from headway.compute.kernels.kept_probes import KeptProbes
from headway.compute.kernels.linear import Products, probe_kernel
from headway.compute.kernels.paged import Attention
from headway.compute.models.decoder import Decoder, Evaluated, StepInput, matrices
from headway.compute.models.spec import DecoderSpec
from headway.compute.native.attention import NativeAttention
from headway.compute.native.decoder import NativeDecoder
from headway.compute.text.weights import Weights
from headway.core.errors import ConfigError

#: The format in which weights are cached that are rounded further when they are packed. (fp32 holds GGUF's 4-bit
#: weights exactly, so that they are packed as they were.)
ROUNDED_FROM = {"int8": "bf16", "int4": "fp32"}


class Runs(Protocol):
    """A decoder: see `models.decoder.Decoder`."""

    def __call__(self, step: StepInput) -> Evaluated: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """rows    what numbers of rows are padded to, so that a row's bits depend on no other
    words   what runs its products
    bytes   of its weights in memory, and of those that are read in place"""

    decoder: Runs
    rows: Callable[[int], int]
    words: str
    bytes: int


def ready(spec: DecoderSpec, loaded: Weights, weights: str, attention: Attention, probes: KeptProbes) -> Ready:
    """`loaded` are in the format that `ROUNDED_FROM` says for `weights`, else in that. What torch's products were
    found to do is in `probes`. Raises ConfigError for weights that nothing here multiplies."""
    if weights in ROUNDED_FROM and isinstance(attention, NativeAttention):
        native = NativeDecoder(spec, loaded.tensors, attention, 4 if weights == "int4" else 8)
        return Ready(native, lambda count: count, native.words, native.bytes)
    if weights == "int4":
        raise ConfigError("--weights", f"int4 needs the native kernels; here is {attention.words}")
    products = Products(probe_kernel(weights), matrices(spec, loaded.tensors), probes)
    return Ready(Decoder(spec, loaded.tensors, products), products.rows, products.words, loaded.bytes)
