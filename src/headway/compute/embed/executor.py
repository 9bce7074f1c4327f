"""The encoder executor: plans of whole inputs in, vectors out. Nothing is kept from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from headway.artifacts.files import ModelFiles, Modules
from headway.compute.embed.formats import FORMATS, choose_weights, multiplies_bf16
from headway.compute.embed.pooling import Rows, Scores, Vectors, check_stages
from headway.compute.embed.shares import Shares
from headway.compute.embed.smoothing import smoothed
from headway.compute.embed.states import NativeStates, TorchStates, WholeInputs
from headway.compute.embed.weights import load_tensors
from headway.compute.executor import ModelFacts
from headway.compute.finite import all_finite
from headway.compute.int8_trial import Choice, KeptTrials, Trial
from headway.compute.kernels.linear import Products, probe_kernel
from headway.compute.models.encoder import Encoder, matrices
from headway.compute.models.encoder_spec import EncoderSpec
from headway.compute.native.encoder import NativeEncoder, not_covered
from headway.compute.native.library import Absent, choose, find, why_none
from headway.core.errors import ArtifactError, ConfigError
from headway.core.plan import Evaluate, StepPlan, StepResult, Vector

_NONE = Vector(b""), True


class EncoderExecutor:
    """Implements `Executor` for the pattern `embed`. Make one with `load`. Not safe for concurrent calls."""

    def __init__(
        self,
        facts: ModelFacts,
        states: WholeInputs,
        stages: Vectors | Scores,
        longest: int,
        max_step_positions: int,
        threads: int = 1,
    ) -> None:
        """`longest`: positions that the model takes, whatever its files say beside."""
        self._facts, self._states, self._stages = facts, states, stages
        self._longest, self._max_step_positions = longest, max_step_positions
        self._shares = Shares(1 if states.shares else threads)

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
        native: str = "auto",
        progress: object = None,
        trial: Trial | None = None,
    ) -> EncoderExecutor:
        """Bring a model to where it can run.

        cache, progress      as of the text executor; an encoder's weights are packed as they are read, so nothing is
                             kept in the cache but what a trial found, and there is nothing to wait for
        weights              see `embed/formats.py` for what "auto" is
        threads              that evaluate, and of torch for the whole process; None leaves torch's choice
        max_step_positions   positions of a step of several inputs; a single longer input takes a step of its own
        native               as `--native`: which native kernels to run, where they cover the model
        trial                what `auto` weights are tried on; None: int8 is not taken unasked

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
            choice = Choice(weights)
            if weights == "auto":

                def embed(tried: str, texts: Sequence[Sequence[int]]) -> list[Rows]:
                    return cls.load(files, cache=cache, weights=tried, native=native).vectors(texts)

                kept = KeptTrials(cache / files.revision)
                choice = choose_weights(spec, tensors, stages, native, trial, kept, embed)
            weights = choice.weights
            if weights == "int8":
                tensors = smoothed(spec, tensors)
            states = _states(spec, tensors, weights, native)
        facts = ModelFacts(
            name=files.name,
            revision=files.revision,
            pattern="embed",
            vocab=spec.vocab,
            max_context=min(spec.max_context, modules.max_tokens or spec.max_context),
            weights_format=weights,
            weights_why=choice.why,
            weights_bytes=sum(tensor.nbytes for tensor in tensors.values()),
            state_format=weights,
            block_bytes=0,
            kernels=states.words,
            vector=stages.values,
            output="vector" if spec.head == "none" else "score",
            graph=files.graph,
            normalized=modules.normalize,
        )
        return cls(facts, states, stages, spec.max_context, max_step_positions, torch.get_num_threads())

    def run(self, plan: StepPlan) -> StepResult:
        """See `Executor.run`. Raises ValueError for an input longer than the model's context, or several inputs of
        more positions together than it was loaded for."""
        inputs = [item for item in plan.items if isinstance(item, Evaluate)]
        if len(inputs) != len(plan.items):
            raise ValueError("an encoder's step holds whole inputs only")
        if not inputs:
            return StepResult(())
        longest = max(len(item.tokens) for item in inputs)
        if longest > self._longest:
            raise ValueError(f"an input of {longest} positions; the model takes {self._longest}")
        if len(inputs) > 1 and plan.cost > self._max_step_positions:
            raise ValueError(f"a step of {plan.cost} positions; loaded for {self._max_step_positions}")
        found: list[tuple[Vector, bool]] = [_NONE] * len(inputs)
        whole = self._pooled_natively(inputs)
        for place, result in whole.items():
            found[place] = result
        left = [place for place in range(len(inputs)) if place not in whole]
        left.sort(key=lambda place: len(inputs[place].tokens))

        def evaluate(places: Sequence[int]) -> list[tuple[Vector, bool]]:
            return self._evaluate([inputs[left[place]] for place in places])

        shared = self._shares.each([len(inputs[place].tokens) for place in left], evaluate) if left else ()
        for places, results in shared:
            for place, result in zip(places, results, strict=True):
                found[left[place]] = result
        spoiled = tuple(place for place, (_, finite) in enumerate(found) if not finite)
        return StepResult(tuple(vector for vector, _ in found), spoiled)

    def _pooled_natively(self, inputs: Sequence[Evaluate]) -> dict[int, tuple[Vector, bool]]:
        """By place, the vectors of those that are pooled as a whole, if the native library does that: a call of their
        own, so that no input's numbers depend on what others ask for."""
        states, stages = self._states, self._stages
        if not isinstance(states, NativeStates) or not isinstance(stages, Vectors) or stages.native is None:
            return {}
        places = [place for place, item in enumerate(inputs) if not item.raw and not item.pools]
        if not places:
            return {}
        vectors = states.pooled([inputs[place] for place in places], stages.native, unit=stages.unit)
        found = ((Vector(rows.tobytes()), all_finite(rows)) for rows in vectors)
        return dict(zip(places, found, strict=True))

    def vectors(self, texts: Sequence[Sequence[int]]) -> list[Rows]:
        """The vector of each whole input, fp32: one step for each."""
        plans = (StepPlan(step, (Evaluate(tuple(tokens)),)) for step, tokens in enumerate(texts))
        found = (vector for plan in plans for vector in self.run(plan).results)
        return [np.frombuffer(vector.values, np.float32) for vector in found if isinstance(vector, Vector)]

    @torch.inference_mode()
    def _evaluate(self, inputs: Sequence[Evaluate]) -> list[tuple[Vector, bool]]:
        """What comes of `inputs`, sorted by length, and whether it is finite."""
        states = self._states(inputs, first_only=self._stages.first_only)
        found = [self._pooled(item, *each) for item, each in zip(inputs, states, strict=True)]
        return [(Vector(rows.tobytes()), all_finite(rows)) for rows in found]

    def _pooled(self, item: Evaluate, states: Rows, whole: Rows) -> Rows:
        """What leaves of an input, of whose `states` those of `whole` are pooled as a whole."""
        if item.raw:
            return states
        if item.pools:
            return np.stack([self._stages(states[start:end]) for start, end in item.pools])
        return self._stages(whole)


def _states(spec: EncoderSpec, tensors: Mapping[str, torch.Tensor], weights: str, native: str) -> WholeInputs:
    """The native encoder, where it covers the model; else torch's operators, whose words say why."""
    library = find()
    level = choose(native, library)
    if weights == "int8" and level is not None and not isinstance(library, Absent):
        why = not_covered(spec)
        if why is None:
            return NativeStates(NativeEncoder(spec, tensors, library, level, torch.get_num_threads()))
        why = f"do not cover {why}"
    elif weights == "int8":
        why = why_none(native, library)
    else:
        why = f"do not cover {weights}"
    products = Products(probe_kernel(weights), matrices(spec, tensors))
    states = TorchStates(Encoder(spec, tensors, products), products, narrow=weights != "fp32" and multiplies_bf16())
    states.words["attention"] += f"; native kernels {why}"
    return states


def _check_format(weights: str) -> None:
    if weights not in ("auto", *FORMATS):
        raise ConfigError("--weights", f"{weights} is not implemented for encoders; use auto, {', '.join(FORMATS)}")


def _check_stages(name: str, spec: EncoderSpec, modules: Modules) -> None:
    pooled = spec.hidden * len(modules.pooling)
    wrong = check_stages(modules.dense, pooled)
    if wrong is not None:
        stage = modules.dense[wrong]
        comes = modules.dense[wrong - 1].outputs if wrong else pooled
        raise ArtifactError(f"{name}: {stage.folder} takes {stage.inputs} values, and gets {comes}")
