"""The encoder executor: plans of whole inputs in, vectors out. Nothing is kept from step to step."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from headway.artifacts.files import ModelFiles, Modules
from headway.compute.embed.formats import FORMATS, choose_weights, multiplies_bf16
from headway.compute.embed.pooling import Scores, Vectors, check_stages
from headway.compute.embed.shares import Shares
from headway.compute.embed.smoothing import smoothed
from headway.compute.embed.weights import load_tensors
from headway.compute.executor import ModelFacts
from headway.compute.finite import rows_not_finite
from headway.compute.kernels.attention import Scratch
from headway.compute.kernels.full_attention import FullAttention, Group
from headway.compute.kernels.linear import Products, probe_kernel
from headway.compute.models.encoder import Encoder, Inputs, matrices
from headway.compute.models.encoder_spec import EncoderSpec
from headway.core.errors import ArtifactError, ConfigError
from headway.core.plan import Evaluate, StepPlan, StepResult, Vector


class EncoderExecutor:
    """Implements `Executor` for the pattern `embed`. Make one with `load`. Not safe for concurrent calls."""

    def __init__(
        self,
        facts: ModelFacts,
        encoder: Encoder,
        products: Products,
        stages: Vectors | Scores,
        max_step_positions: int,
        threads: int = 1,
    ) -> None:
        self._facts, self._encoder, self._products, self._stages = facts, encoder, products, stages
        self._max_step_positions = max_step_positions
        self._narrow = facts.weights_format != "fp32" and multiplies_bf16()
        self._own = threading.local()  # each thread's scratch
        self._shares = Shares(threads)
        self._counted = np.arange(encoder.spec.max_context)

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        *,
        cache: Path,
        weights: str = "auto",
        threads: int | None = None,
        max_step_positions: int = 512,
        progress: object = None,
    ) -> EncoderExecutor:
        """Bring a model to where it can run.

        cache, progress      as of the text executor; an encoder's weights are packed as they are read, so nothing is
                             kept in the cache and there is nothing to wait for
        weights              see `embed/formats.py` for what "auto" is
        threads              that evaluate, and of torch for the whole process; None leaves torch's choice
        max_step_positions   positions of a step of several inputs; a single longer input takes a step of its own

        Raises UnsupportedModel, ArtifactError, or ConfigError for options that cannot work.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        spec, modules = EncoderSpec.from_config(files.config, files.name), files.modules or Modules()
        _check_stages(files.name, spec, modules)
        with torch.inference_mode():
            _check_format(weights)
            tensors = load_tensors(spec, files)
            stages = (
                Vectors(modules, spec.hidden, tensors)
                if spec.head == "none"
                else Scores(spec, modules.activation, tensors)
            )
            weights = choose_weights(spec, tensors, stages) if weights == "auto" else weights
            if weights == "int8":
                tensors = smoothed(spec, tensors)
            products = Products(probe_kernel(weights), matrices(spec, tensors))
            encoder = Encoder(spec, tensors, products)
        facts = ModelFacts(
            name=files.name,
            revision=files.revision,
            pattern="embed",
            vocab=spec.vocab,
            max_context=min(spec.max_context, modules.max_tokens or spec.max_context),
            weights_format=weights,
            weights_bytes=sum(tensor.nbytes for tensor in tensors.values()),
            state_format=weights,
            block_bytes=0,
            kernels={"products": products.words, "attention": "whole inputs, equal lengths together, no padding"},
            vector=stages.values,
            output="vector" if spec.head == "none" else "score",
            graph=files.graph,
            normalized=modules.normalize,
        )
        return cls(facts, encoder, products, stages, max_step_positions, torch.get_num_threads())

    def run(self, plan: StepPlan) -> StepResult:
        """See `Executor.run`. Raises ValueError for an input longer than the model's context, or several inputs of
        more positions together than it was loaded for."""
        inputs = [item for item in plan.items if isinstance(item, Evaluate)]
        if len(inputs) != len(plan.items):
            raise ValueError("an encoder's step holds whole inputs only")
        if not inputs:
            return StepResult(())
        longest = max(len(item.tokens) for item in inputs)
        if longest > self._encoder.spec.max_context:
            raise ValueError(f"an input of {longest} positions; the model takes {self._encoder.spec.max_context}")
        if len(inputs) > 1 and plan.cost > self._max_step_positions:
            raise ValueError(f"a step of {plan.cost} positions; loaded for {self._max_step_positions}")
        order = sorted(range(len(inputs)), key=lambda place: len(inputs[place].tokens))
        ordered = [inputs[place] for place in order]
        found: list[Vector | None] = [None] * len(inputs)
        spoiled: list[int] = []

        def evaluate(places: Sequence[int]) -> list[tuple[Vector, bool]]:
            return self._evaluate([ordered[place] for place in places])

        for places, results in self._shares.each([len(item.tokens) for item in ordered], evaluate):
            for place, (vector, finite) in zip(places, results, strict=True):
                found[order[place]] = vector
                spoiled += [] if finite else [order[place]]
        return StepResult(tuple(vector for vector in found if vector is not None), tuple(sorted(spoiled)))

    @torch.inference_mode()
    def _evaluate(self, inputs: Sequence[Evaluate]) -> list[tuple[Vector, bool]]:
        """What comes of `inputs`, sorted by length, and whether it is finite. Safe for concurrent calls."""
        groups = _groups([len(item.tokens) for item in inputs])
        found: list[tuple[Vector, bool]] = []
        for group, (states, firsts) in zip(groups, self._states(inputs, groups), strict=True):
            of_group = inputs[len(found) : len(found) + group.inputs]
            plain = [row for row, item in enumerate(of_group) if not item.raw and not item.pools]
            vectors = iter(self._plain(firsts if len(plain) == group.inputs else firsts[plain]) if plain else ())
            for row, item in enumerate(of_group):
                if item.raw or item.pools:
                    rows = states[row] if item.raw else self._ranges(states[row], item.pools)
                    found.append((Vector(rows.numpy().tobytes()), not rows_not_finite(rows)))
                else:
                    found.append(next(vectors))
        return found

    def _plain(self, states: torch.Tensor) -> list[tuple[Vector, bool]]:
        """The vectors of whole inputs of one length, [inputs, positions, hidden]."""
        vectors = self._stages(states)
        spoiled = set(rows_not_finite(vectors))
        return [(Vector(values.tobytes()), row not in spoiled) for row, values in enumerate(vectors.numpy())]

    def _states(
        self, inputs: Sequence[Evaluate], groups: Sequence[Group]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of each group, the hidden states that ranges and single positions are read from, and those that whole
        inputs are pooled from: [inputs, positions, hidden] each. The same for an input whatever others ask for."""
        packed = self._packed(inputs, groups)
        if not self._stages.first_only:
            states = self._encoder(packed)
            for group in groups:
                mine = states[group.first : group.end].view(group.inputs, group.length, -1)
                yield mine, mine
            return
        starts = [start for group in groups for start in range(group.first, group.end, group.length)]
        starts += [0] * (self._products.rows(len(starts)) - len(starts))
        asked = any(item.raw or item.pools for item in inputs)
        firsts, everything = self._encoder.first(packed, torch.tensor(starts), all_too=asked)
        at = 0
        for group in groups:
            own = firsts[at : at + group.inputs].unsqueeze(1)
            at += group.inputs
            states = own if everything is None else everything[group.first : group.end]
            yield states.view(group.inputs, -1, states.shape[-1]), own

    def _scratch(self) -> Scratch | None:
        """The calling thread's memory for attention in bf16."""
        if not self._narrow:
            return None
        if not hasattr(self._own, "scratch"):
            self._own.scratch = Scratch()
        scratch: Scratch = self._own.scratch
        return scratch

    def _ranges(self, states: torch.Tensor, pools: Sequence[tuple[int, int]]) -> torch.Tensor:
        """One vector for each range of positions of `states` [positions, hidden]: [ranges, values]."""
        return torch.cat([self._stages(states[start:end].unsqueeze(0)) for start, end in pools])

    def _packed(self, inputs: Sequence[Evaluate], groups: Sequence[Group]) -> Inputs:
        """`inputs` in the order of their rows."""
        spec = self._encoder.spec
        lengths = [len(item.tokens) for item in inputs]
        count = sum(lengths)
        rows = self._products.rows(count)
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


def _check_format(weights: str) -> None:
    if weights not in ("auto", *FORMATS):
        raise ConfigError("--weights", f"{weights} is not implemented for encoders; use auto, {', '.join(FORMATS)}")


def _groups(lengths: Sequence[int]) -> list[Group]:
    """Equal ones of `lengths`, which are sorted, together."""
    found, first = [], 0
    for length, equal in groupby(lengths):
        found.append(Group(first, len(list(equal)), length))
        first = found[-1].end
    return found


def _check_stages(name: str, spec: EncoderSpec, modules: Modules) -> None:
    pooled = spec.hidden * len(modules.pooling)
    wrong = check_stages(modules.dense, pooled)
    if wrong is not None:
        stage = modules.dense[wrong]
        comes = modules.dense[wrong - 1].outputs if wrong else pooled
        raise ArtifactError(f"{name}: {stage.folder} takes {stage.inputs} values, and gets {comes}")
