"""Deterministic executors for encoders and diffusion models, whose results expose any mistake in the books.

A vector is a hash of its whole input: one that was cut, or mixed with another, gives other values. A latent is a hash
of all that made it: an update that is left out, done twice, or done to another's latent changes the pixels.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from math import hypot
from typing import Literal

from headway.compute.executor import ImageFacts, ModelFacts, Sketch
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
    Spent,
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


def expected_picture(asked: Encode, preview_after: int | None = None) -> bytes:
    """The pixels that the fake diffusion model must give, whatever else is in its steps: of an image, or of its
    preview after so many updates."""
    latent = expected_latent(asked, asked.updates if preview_after is None else preview_after)
    return _pixels(latent, asked, preview=preview_after is not None)


def expected_latent(asked: Encode, after: int) -> bytes:
    """What its slot must hold after so many updates."""
    latent = _begun(asked)
    for index in range(after):
        latent = _updated(latent, index, asked.updates)
    return latent


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
    """Implements `LatentExecutor`: latents by slot, until `forget`. `run` moves `clock` by `cost_ns(plan)`, and tells
    what the updates of a step spent, where it has nothing else and all are of one size; or, with `part_ns`, by what
    that says of each part (its kind, its size and its rows), and tells all of it. `images` are the sizes that it
    makes, and `latent_bytes` what it says that each takes."""

    def __init__(
        self,
        *,
        name: str = "fake-diffusion",
        vocab: int = 997,
        images: ImageFacts | None = None,
        latent_bytes: int = 0,
        clock: ModelledClock | None = None,
        cost_ns: Callable[[StepPlan], int] = no_cost,
        part_ns: Callable[[str, tuple[int, ...], int], int] | None = None,
    ) -> None:
        facts = _facts(name, "image", 77)
        self.facts = replace(
            facts, vocab=vocab, output="pixels", graph=("encode ×1", "update ×N", "decode_pixels ×1"), images=images
        )
        self._latents: dict[int, tuple[Encode, int, bytes]] = {}  # by slot: what was asked, updates done, the latent
        self._clock, self._cost_ns, self._part_ns = clock, cost_ns, part_ns
        self.most_state_bytes = latent_bytes

    def state_bytes(self, asked: Encode) -> int:
        return self.most_state_bytes

    def latent(self, slot: int) -> bytes:
        """What a slot holds; empty before its first item, and once it is forgotten."""
        found = self._latents.get(slot)
        return found[2] if found else b""

    def forget(self, slot: int) -> None:
        """Nothing in this slot is needed any more."""
        self._latents.pop(slot, None)

    def sketch(self, slot: int) -> Sketch | None:
        """One pixel, of the latent's first bytes."""
        latent = self.latent(slot)
        return Sketch(1, 1, latent[:3]) if latent else None

    def run(self, plan: StepPlan) -> StepResult:
        """Evaluate `plan`. Raises InvariantError for an update out of its turn, or of a latent that is not there."""
        results = tuple(self._evaluate(item) for item in plan.items)
        if self._clock is None:
            return StepResult(results)
        if self._part_ns is not None:
            parts = [Spent(*part, self._part_ns(*part)) for part in self._parts(plan)]
            self._clock.advance(sum(part.ns for part in parts))
            return StepResult(results, spent=tuple(parts))
        cost_ns = self._cost_ns(plan)
        self._clock.advance(cost_ns)
        updated = [self._latents[item.slot][0] for item in plan.items if isinstance(item, Update)]
        sizes = {(asked.width, asked.height) for asked in updated}
        if len(updated) < len(results) or len(sizes) != 1:
            return StepResult(results)
        rows = sum(1 + asked.guided for asked in updated)
        return StepResult(results, spent=(Spent("update", sizes.pop(), rows, cost_ns),))

    def _parts(self, plan: StepPlan) -> list[tuple[str, tuple[int, ...], int]]:
        """What is evaluated together: kind, size and rows of each part."""
        rows = Counter[tuple[str, tuple[int, ...]]]()
        for item in plan.items:
            match item:
                case Encode():
                    rows["encode", ()] += 1 + item.guided
                case Update(slot=slot):
                    asked = self._latents[slot][0]
                    rows["update", (asked.width, asked.height)] += 1 + asked.guided
                case DecodePixels(slot=slot):
                    asked = self._latents[slot][0]
                    rows["decode_pixels", (asked.width, asked.height)] += 1
        return [(kind, size, count) for (kind, size), count in rows.items()]

    def _evaluate(self, item: Item) -> ItemResult:
        match item:
            case Encode(slot=slot):
                self._latents[slot] = item, 0, _begun(item)
            case Update(slot=slot, index=index, of=of):
                asked, done, latent = self._latents.get(slot, (None, -1, b""))
                if asked is None or (index, of) != (done, asked.updates):
                    raise InvariantError(f"update {index} of {of} of slot {slot}, which has had {done}")
                self._latents[slot] = asked, index + 1, _updated(latent, index, of)
            case DecodePixels(slot=slot, preview=preview):
                if slot not in self._latents:
                    raise InvariantError(f"slot {slot} holds no latent")
                asked, _, latent = self._latents[slot]
                return Pixels(_pixels(latent, asked, preview=preview))
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


def _hash(*numbers: float) -> bytes:
    return blake2b(repr(numbers).encode(), digest_size=16).digest()


def _begun(asked: Encode) -> bytes:
    """Noise from the seed, beside the features of all that was asked."""
    guidance = (*asked.negative, asked.guidance) if asked.guided else ()
    return _hash(asked.seed, *asked.tokens, *guidance, asked.width, asked.height)


def _of_length_1(values: bytes, size: int) -> bytes:
    numbers = struct.unpack(f"<{len(values) // 4}f", values)
    rows = (numbers[at : at + size] for at in range(0, len(numbers), size))
    scaled = (value / max(hypot(*row), 1e-12) for row in rows for value in row)
    return struct.pack(f"<{len(numbers)}f", *scaled)


def _updated(latent: bytes, index: int, of: int) -> bytes:
    return blake2b(latent + repr((index, of)).encode(), digest_size=16).digest()


def _pixels(latent: bytes, asked: Encode, *, preview: bool) -> bytes:
    """As many as were asked for, or a few where no size was."""
    digest = blake2b(latent, digest_size=16, person=b"preview" if preview else b"pixels").digest()
    count = asked.width * asked.height * 3 or len(digest)
    return (digest * (count // len(digest) + 1))[:count]
