"""The interface between the engine and whatever runs a model. Kernels replace what is behind it, never it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from headway.core.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine, the front and the start panel need to know about a loaded model.

    block_bytes   state of one block, all layers together
    eos_ids       tokens that end an answer
    kernels       what runs the matrix products and attention, in words (probed at load)
    vector        values of one vector; 1 for a cross-encoder's score, 0 for a model that makes neither
    output        what a caller can use of it
    graph         the model's work on one input, stage by stage
    normalized    vectors leave with length 1
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
