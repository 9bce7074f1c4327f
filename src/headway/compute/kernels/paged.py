"""Attention over paged state: what a decoder asks of it, and what does it on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from headway.compute.kernels.attention import TorchAttention
from headway.compute.kernels.rotary import Rotary
from headway.compute.kernels.state import PagedState
from headway.compute.native.attention import NativeAttention
from headway.compute.native.library import Absent, choose, find, why_none
from headway.core.plan import Span


class StepAttention(Protocol):
    """Attention of one step, called once per layer, in their order."""

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Rotate queries and keys, write the step's keys and values, then attend. Changes the layer's state at the
        step's positions, and may change `qkv`.

        qkv   [rows, (heads + 2 · kv_heads) · head_dim], contiguous, fp32 or bf16: as the product gives them
        Returns [rows, heads · head_dim], fp32, until the next call.
        """
        ...


class Attention(Protocol):
    """A model's attention over its paged state; `words` say what does it, and for which reason not the usual."""

    words: str

    def step(self, spans: Sequence[Span], rows: int) -> StepAttention:
        """For a step of `spans`, whose positions are its first rows in their order; `rows` beyond are padding, whose
        results are finite and mean nothing."""
        ...


def paged_attention(rotary: Rotary, state: PagedState, native: str = "auto") -> Attention:
    """The native library's where there is one, else torch's operators; `native` is as in `--native`. Raises
    ConfigError for a level that cannot run here."""
    library = find()
    level = choose(native, library)
    if level is None or isinstance(library, Absent):
        attention = TorchAttention(rotary, state)
        attention.words += f"; native kernels {why_none(native, library)}"
        return attention
    return NativeAttention(rotary, state, library, level, torch.get_num_threads())
