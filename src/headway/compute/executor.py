"""The interface between the engine and whatever runs a model. Kernels replace what is behind it, never it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from headway.core.plan import Encode, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What images a diffusion model makes.

    width, height   of its own size, in pixels
    least, most     a side of another size; all sides are multiples of `multiple`
    most_updates    updates of one image, at most
    noise           the noise scheduler, in words
    """

    width: int
    height: int
    least: int
    most: int
    multiple: int
    most_updates: int
    noise: str = ""

    def takes(self, width: int, height: int) -> bool:
        """Whether it makes images of that size."""
        if (width, height) == (self.width, self.height):
            return True
        return all(self.least <= side <= self.most and side % self.multiple == 0 for side in (width, height))

    @property
    def sizes(self) -> str:
        """Which sizes it makes, in words."""
        own = f"{self.width}x{self.height}"
        if self.least > self.most:
            return f"it makes {own} only"
        return f"it makes {own}, and sides from {self.least} to {self.most} that are multiples of {self.multiple}"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine, the front and the start panel need to know about a loaded model.

    block_bytes   state of one block, all layers together
    weights_why   why its weights are in this format, where none was asked for: a clause with its numbers
    eos_ids       tokens that end an answer
    kernels       what runs the matrix products and attention, in words (probed at load)
    vector        values of one vector; 1 for a cross-encoder's score, 0 for a model that makes neither
    output        what a caller can use of it
    graph         the model's work on one input, stage by stage
    normalized    vectors leave with length 1
    images        of a model that makes them
    """

    name: str
    revision: str
    pattern: str
    vocab: int
    max_context: int
    weights_format: str
    weights_bytes: int
    state_format: str
    block_bytes: int
    eos_ids: tuple[int, ...] = ()
    kernels: dict[str, str] = field(default_factory=dict)
    vector: int = 0
    output: Literal["tokens", "vector", "score", "pixels"] = "tokens"
    graph: tuple[str, ...] = ()
    normalized: bool = False
    weights_why: str = ""
    images: ImageFacts | None = None


class Executor(Protocol):
    """Evaluates plans over a pool of `blocks` state blocks that it owns the bytes of.

    `run` is deterministic: a span's result depends on its tokens and the state that its blocks hold, not on the
    other spans of the plan. It writes state only into the blocks that the plan names. It raises when the step
    failed as a whole; the blocks that the plan names then hold nothing of value. A span whose numbers are not finite
    is no failure of the step: the result names it.
    """

    @property
    def facts(self) -> ModelFacts: ...

    def run(self, plan: StepPlan) -> StepResult: ...


class HostBytes(Protocol):
    """Slots of host memory, one block in each."""

    def bytes(self, slot: int) -> memoryview:
        """The bytes of one slot, to be read or written by whoever moves it elsewhere."""
        ...


class TieredExecutor(Executor, Protocol):
    """An executor that copies blocks between its pool and slots of host memory, as plans name them."""

    def keep_outside(self, slots: int) -> HostBytes:
        """Have host memory for `slots` blocks outside the pool, once. Returns it."""
        ...


@dataclass(frozen=True, slots=True)
class Sketch:
    """A small picture of a latent: three bytes for each pixel, row by row."""

    width: int
    height: int
    pixels: bytes


class LatentExecutor(Executor, Protocol):
    """An executor that keeps a latent and features for each slot, from its `Encode` until it is told to forget it."""

    def state_bytes(self, asked: Encode) -> int:
        """What the slot of such an image holds, from its encoding to its pixels."""
        ...

    @property
    def most_state_bytes(self) -> int:
        """The most that a slot can hold."""
        ...

    def forget(self, slot: int) -> None:
        """Nothing in this slot is needed any more. Does nothing for a slot that holds nothing."""
        ...

    def sketch(self, slot: int) -> Sketch | None:
        """What a slot's latent looks like by now, at a cost that no step notices; None for a slot that holds nothing.
        Changes nothing."""
        ...
