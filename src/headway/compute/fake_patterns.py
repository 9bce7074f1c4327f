"""Deterministic executors for encoders and diffusion models, whose results expose any mistake in the books.

A vector is a hash of its whole input: one that was cut, or mixed with another, gives other values. A latent is a hash
of all that made it: an update that is left out, done twice, or done to another's latent changes the pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import hypot
from typing import Literal

from headway.compute.executor import ModelFacts
from headway.compute.fake import no_cost
from headway.core.clock import ModelledClock
from headway.core.errors import InvariantError
from headway.core.plan import (
    DecodePixels,
    Encode,
    Evaluate,
    Item,
    ItemResult,
    Latent,
    Pixels,
    StepPlan,
    StepResult,
    Update,
    Vector,
)


def expected_vector(input: Evaluate, values: int = 4) -> bytes:
    """The vectors of `values` values each that the fake encoder must give for an input, whatever else is in the
    step: integers that fp32 holds exactly."""
    place = (input.second, *(number for pool in input.pools for number in pool), input.raw)
    digests = (_hash(row, i, *place, *input.tokens) for row in range(input.rows) for i in range(values))
    return b"".join(struct.pack("<f", int.from_bytes(digest[:2], "little")) for digest in digests)


def expected_pixels(tokens: Sequence[int], seed: int, updates: int) -> bytes:
    """The pixels that the fake diffusion model must give."""
    latent = _hash(seed, *tokens)
    for index in range(updates):
        latent = _updated(latent, index, updates)
    return _pixels(latent)


class FakeEncoder:
    """Implements `Executor` for inputs of up to `max_context` positions: vectors of `values` values, `normalized` to
    length 1 or as `expected_vector` has them. `run` moves `clock` by `cost_ns(plan)`."""

    def __init__(
        self,
        *,
        name: str = "fake-encoder",
        max_context: int = 512,
        values: int = 4,
        vocab: int = 997,
        output: Literal["vector", "score"] = "vector",
        normalized: bool = False,
        clock: ModelledClock | None = None,
        cost_ns: Callable[[StepPlan], int] = no_cost,
    ) -> None:
        graph = ("encode ×1", "score ×1") if output == "score" else ("encode ×1", "pool ×1")
        self.facts = replace(
            _facts(name, "embed", max_context),
            vocab=vocab,
            vector=values,
            output=output,
            graph=(*graph, "normalize ×1") if normalized else graph,
            normalized=normalized,
        )
        self._values = values
        self._clock, self._cost_ns = clock, cost_ns

    def run(self, plan: StepPlan) -> StepResult:
        """Evaluate `plan`. Raises InvariantError for an item that is no input, or one beyond the context."""
        results = tuple(self._evaluate(item) for item in plan.items)
        if self._clock is not None:
            self._clock.advance(self._cost_ns(plan))
        return StepResult(results)

    def _evaluate(self, item: Item) -> ItemResult:
        if not isinstance(item, Evaluate) or len(item.tokens) > self.facts.max_context:
            raise InvariantError(f"an encoder of {self.facts.max_context} positions was given {item}")
        values = expected_vector(item, self._values)
        return Vector(_of_length_1(values, self._values) if self.facts.normalized else values)


class FakeDiffusion:
    """Implements `Executor`: latents by slot. `run` moves `clock` by `cost_ns(plan)`."""

    def __init__(
        self,
        *,
        name: str = "fake-diffusion",
        clock: ModelledClock | None = None,
        cost_ns: Callable[[StepPlan], int] = no_cost,
    ) -> None:
        self.facts = _facts(name, "image", 77)
        self._latents: dict[int, tuple[int, bytes]] = {}  # by slot: updates done, and the latent
        self._clock, self._cost_ns = clock, cost_ns

    def latent(self, slot: int) -> bytes:
        """What a slot holds; empty before its first item."""
        return self._latents.get(slot, (0, b""))[1]

    def run(self, plan: StepPlan) -> StepResult:
        """Evaluate `plan`. Raises InvariantError for an update out of its turn, or of a latent that is not there."""
        results = tuple(self._evaluate(item) for item in plan.items)
        if self._clock is not None:
            self._clock.advance(self._cost_ns(plan))
        return StepResult(results)

    def _evaluate(self, item: Item) -> ItemResult:
        match item:
            case Encode(slot=slot, tokens=tokens, seed=seed):
                self._latents[slot] = 0, _hash(seed, *tokens)
            case Update(slot=slot, index=index, of=of):
                done, latent = self._latents.get(slot, (-1, b""))
                if index != done:
                    raise InvariantError(f"update {index} of slot {slot}, which has had {done}")
                self._latents[slot] = index + 1, _updated(latent, index, of)
            case DecodePixels(slot=slot):
                if slot not in self._latents:
                    raise InvariantError(f"slot {slot} holds no latent")
                return Pixels(_pixels(self._latents[slot][1]))
            case _:
                raise InvariantError(f"a diffusion model was given {item}")
        return Latent()


def _facts(name: str, pattern: str, max_context: int) -> ModelFacts:
    return ModelFacts(
        name=name,
        revision="0" * 12,
        pattern=pattern,
        vocab=997,
        max_context=max_context,
        weights_format="fp32",
        weights_bytes=0,
        state_format="fp32",
        block_bytes=0,
    )


def _hash(*numbers: int) -> bytes:
    return blake2b(repr(numbers).encode(), digest_size=16).digest()


def _of_length_1(values: bytes, size: int) -> bytes:
    numbers = struct.unpack(f"<{len(values) // 4}f", values)
    rows = (numbers[at : at + size] for at in range(0, len(numbers), size))
    scaled = (value / max(hypot(*row), 1e-12) for row in rows for value in row)
    return struct.pack(f"<{len(numbers)}f", *scaled)


def _updated(latent: bytes, index: int, of: int) -> bytes:
    return blake2b(latent + repr((index, of)).encode(), digest_size=16).digest()


def _pixels(latent: bytes) -> bytes:
    return blake2b(latent, digest_size=16, person=b"pixels").digest()
