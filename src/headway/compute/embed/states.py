"""From whole inputs to their hidden states: by torch's operators for every encoder, or by the native library."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from headway.compute.embed.pooling import Rows
from headway.compute.kernels.attention import Scratch
from headway.compute.kernels.full_attention import FullAttention, Group
from headway.compute.kernels.linear import Products
from headway.compute.models.encoder import Encoder, Inputs
from headway.compute.native.encoder import NativeEncoder
from headway.core.plan import Evaluate

#: Of each input, the hidden states that ranges and single positions are read from, and those that it is pooled from
#: as a whole: [positions, hidden] each.
States: TypeAlias = Iterator[tuple[Rows, Rows]]
_Ints: TypeAlias = npt.NDArray[np.int32]


class WholeInputs(Protocol):
    """An encoder's layers. An input's numbers are the same whatever others ask for.

    shares   each call uses all threads: what is called at the same time gains nothing
    words    how products and attention are computed
    """

    shares: bool
    words: dict[str, str]

    def __call__(self, inputs: Sequence[Evaluate], *, first_only: bool) -> States:
        """`inputs` are sorted by length. With `first_only`, whole inputs are pooled from their first positions
        alone."""
        ...


def groups_of(lengths: Sequence[int]) -> list[Group]:
    """Equal ones of `lengths`, which are sorted, together."""
    found, first = [], 0
    for length, equal in groupby(lengths):
        found.append(Group(first, len(list(equal)), length))
        first = found[-1].end
    return found


class TorchStates:
    """Implements `WholeInputs`. Safe for concurrent calls."""

    shares = False

    def __init__(self, encoder: Encoder, products: Products, *, narrow: bool) -> None:
        """`narrow`: attention of long inputs in bf16."""
        self._encoder, self._products, self._narrow = encoder, products, narrow
        self._own = threading.local()  # each thread's scratch
        self._counted = np.arange(encoder.spec.max_context)
        attention = "whole inputs, equal lengths together, no padding"
        self.words = {"products": products.words, "attention": attention}

    def __call__(self, inputs: Sequence[Evaluate], *, first_only: bool) -> States:
        lengths = [len(item.tokens) for item in inputs]
        packed = self._packed(inputs, groups_of(lengths))
        if not first_only:
            return ((mine, mine) for mine in _parted(self._encoder(packed).numpy(), lengths))
        starts = [end - length for end, length in zip(accumulate(lengths), lengths, strict=True)]
        starts += [0] * (self._products.rows(len(starts)) - len(starts))
        asked = any(item.raw or item.pools for item in inputs)
        firsts, everything = self._encoder.first(packed, torch.tensor(starts), all_too=asked)
        alone = _parted(firsts.numpy(), [1] * len(lengths))
        if everything is None:
            return ((first, first) for first in alone)
        return zip(_parted(everything.numpy(), lengths), alone, strict=True)

    def _scratch(self) -> Scratch | None:
        """The calling thread's memory for attention in bf16."""
        if not self._narrow:
            return None
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        scratch: Scratch = self._own.scratch
        return scratch

    def _packed(self, inputs: Sequence[Evaluate], groups: Sequence[Group]) -> Inputs:
        """`inputs` in the order of their rows."""
        spec = self._encoder.spec
        lengths = [len(item.tokens) for item in inputs]
        rows = self._products.rows(sum(lengths))
        tokens, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        second = np.zeros(rows, np.int64) if spec.types > 1 and any(item.second for item in inputs) else None
        first = 0
        for item, length in zip(inputs, lengths, strict=True):
            tokens[first : first + length] = item.tokens
            positions[first : first + length] = self._counted[:length]
            if second is not None and item.second:
                second[first + item.second : first + length] = 1
            first += length
        return Inputs(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(positions),
            second=None if second is None else torch.from_numpy(second),
            attention=FullAttention(groups, rows, spec.heads, self._encoder.bias, self._scratch()),
        )


class NativeStates:
    """Implements `WholeInputs`: a call for all layers of all inputs. Not safe for concurrent calls."""

    shares = True

    def __init__(self, encoder: NativeEncoder) -> None:
        self._encoder = encoder
        self.words = {"products": encoder.product_words, "attention": encoder.words}

    def pooled(self, inputs: Sequence[Evaluate], pooling: Literal["firsts", "means"], *, unit: bool) -> Rows:
        """One vector for each of `inputs`, in any order: [inputs, hidden]; with `unit`, of length 1."""
        return self._encoder(*_flat(inputs), result=pooling, unit=unit)

    def __call__(self, inputs: Sequence[Evaluate], *, first_only: bool) -> States:
        firsts = first_only and not any(item.raw or item.pools for item in inputs)
        tokens, lengths, seconds = _flat(inputs)
        states = self._encoder(tokens, lengths, seconds, result="firsts" if firsts else "states")
        for mine in _parted(states, [1] * len(inputs) if firsts else lengths.tolist()):
            yield mine, mine[:1] if first_only else mine


def _flat(inputs: Sequence[Evaluate]) -> tuple[_Ints, _Ints, _Ints | None]:
    """Tokens of all inputs, one after another; lengths; and where second texts begin, if there are any."""
    lengths = np.array([len(item.tokens) for item in inputs], np.int32)
    tokens = np.fromiter(chain.from_iterable(item.tokens for item in inputs), np.int32, int(lengths.sum()))
    pairs = any(item.second for item in inputs)
    return tokens, lengths, np.array([item.second for item in inputs], np.int32) if pairs else None


def _parted(states: Rows, lengths: Sequence[int]) -> Iterator[Rows]:
    """The rows of each of several inputs, which lie one after another."""
    at = 0
    for length in lengths:
        yield states[at : at + length]
        at += length
