"""The text executor: plans in, tokens out, over a pool of paged state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import psutil
import torch
import torch.nn.functional as F

from headway.artifacts.converted import HeldFile
from headway.artifacts.files import ModelFiles
from headway.compute.executor import ModelFacts
from headway.compute.finite import rows_not_finite
from headway.compute.int8_trial import KeptTrials, Trial
from headway.compute.kernels.kept_probes import KeptProbes
from headway.compute.kernels.paged import Attention, paged_attention
from headway.compute.kernels.rotary import Rotary
from headway.compute.kernels.state import HostSlots, PagedState
from headway.compute.kernels.state_format import STATE_FORMATS
from headway.compute.models.decoder import StepInput
from headway.compute.models.spec import DecoderSpec
from headway.compute.sampling.choose import choose
from headway.compute.sampling.logprobs import report
from headway.compute.text.decoders import ROUNDED_FROM, Ready, ready
from headway.compute.text.formats import TRIAL_BLOCKS, choose_weights
from headway.compute.text.logit_rows import answers, logit_rows, spans_of
from headway.compute.text.weights import Progress, load_tensors
from headway.core.errors import ConfigError
from headway.core.plan import Span, SpanResult, Spent, StepPlan, StepResult, TokenLogprob

#: Known tokens whose logits exist at the same time: a prompt's logits are many times its state.
_SCORED_TOGETHER = 32

#: (block, host slot) or (host slot, block).
Pairs: TypeAlias = Sequence[tuple[int, int]]


def state_format(state: str, weights: str) -> str:
    """`auto` resolved: fp32 with fp32 weights, else bf16. Raises ConfigError for a format that is none of them."""
    if state == "auto":
        return "fp32" if weights == "fp32" else "bf16"
    if state not in STATE_FORMATS:
        known = ", ".join(("auto", *STATE_FORMATS))
        raise ConfigError("--state", f"{state!r} is not one of {known}")
    return state


def block_bytes(spec: DecoderSpec, block_tokens: int, state: str) -> int:
    """Bytes of one block's keys and values, all layers, scales included; `state` is one of `STATE_FORMATS`."""
    return 2 * spec.layers * spec.kv_heads * block_tokens * STATE_FORMATS[state].head_bytes(spec.head_dim)


def pool_blocks(spec: DecoderSpec, block_tokens: int, state: str, memory_bytes: int) -> int:
    """Whole blocks in `memory_bytes`. Raises ConfigError if there is not even one."""
    one = block_bytes(spec, block_tokens, state)
    if memory_bytes < one:
        raise ConfigError("--memory", f"{memory_bytes} bytes are less than one block of {spec.name} ({one} bytes)")
    return memory_bytes // one


def check_free(spec: DecoderSpec, blocks: int, block_tokens: int, state: str) -> None:
    """Raises ConfigError if so many blocks would not fit into the memory that is free now."""
    need, free = blocks * block_bytes(spec, block_tokens, state), psutil.virtual_memory().available
    if need > free:
        text = f"{blocks}blocks of {spec.name} are {need >> 20}MiB of state, and {free >> 20}MiB are free"
        raise ConfigError("--memory", text)


class TextExecutor:
    """Implements `Executor` for the pattern `text`. Make one with `load`. Not safe for concurrent calls."""

    def __init__(
        self,
        facts: ModelFacts,
        made: Ready,
        state: PagedState,
        attention: Attention,
        max_step_positions: int,
        held: tuple[HeldFile, ...],
    ) -> None:
        """`held` keeps the model's files in the cache."""
        self._facts, self._decoder, self._state, self._held = facts, made.decoder, state, held
        self._attention, self._rows, self._max_step_positions = attention, made.rows, max_step_positions
        self.blocks = state.blocks
        self._host: HostSlots | None = None

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        *,
        cache: Path,
        blocks: int | None = None,
        memory_bytes: int | None = None,
        block_tokens: int = 16,
        weights: str = "auto",
        state: str = "auto",
        threads: int | None = None,
        max_step_positions: int = 512,
        native: str = "auto",
        progress: Progress | None = None,
        trial: Trial | None = None,
    ) -> TextExecutor:
        """Bring a model to where it can run: exactly one of `blocks` and `memory_bytes` sizes the pool.

        cache       folder of files made at the first start (see `text/weights.py`)
        threads     of torch, for the whole process; None leaves torch's choice
        native      which kernels of the native library to run, as `--native` has it
        progress    called with (done_bytes, total_bytes) while the cache file is made
        trial       what `auto` weights are tried on; None: int8 is not taken unasked

        Raises UnsupportedModel, ArtifactError, or ConfigError for options that cannot work.
        """
        if (blocks is None) == (memory_bytes is None):
            raise ValueError("give either blocks or memory_bytes")
        if threads is not None:
            torch.set_num_threads(threads)
        spec = DecoderSpec.from_config(files.config, files.name)
        with torch.inference_mode():
            choice = choose_weights(
                weights,
                native,
                trial,
                KeptTrials(cache / files.revision),
                lambda tried: cls.load(
                    files, cache=cache, blocks=TRIAL_BLOCKS, weights=tried, native=native, progress=progress
                ),
                vocab=spec.vocab,
                longest=spec.max_context,
            )
            weights = choice.weights
            state = state_format(state, weights)
            blocks = blocks or pool_blocks(spec, block_tokens, state, memory_bytes or 0)
            check_free(spec, blocks, block_tokens, state)
            loaded = load_tensors(spec, files, ROUNDED_FROM.get(weights, weights), cache, progress)
            probes = KeptProbes(cache / files.revision)
            paged = PagedState(spec, blocks, block_tokens, STATE_FORMATS[state])
            rotary = Rotary(spec, loaded.tensors, min(spec.max_context, blocks * block_tokens))
            attention = paged_attention(rotary, paged, native)
            made = ready(spec, loaded, weights, attention, probes)
            loaded.unload()
        facts = ModelFacts(
            name=files.name,
            revision=files.revision,
            pattern="text",
            vocab=spec.vocab,
            max_context=spec.max_context,
            weights_format=weights,
            weights_why=choice.why,
            weights_bytes=made.bytes,
            state_format=state,
            block_bytes=block_bytes(spec, block_tokens, state),
            eos_ids=files.eos_ids,
            kernels={"products": made.words, "attention": attention.words},
        )
        return cls(facts, made, paged, attention, max_step_positions, loaded.held)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """See `Executor.run`. Raises ValueError for a step of more positions than it was loaded for."""
        if plan.cost > self._max_step_positions:
            raise ValueError(f"a step of {plan.cost} positions; loaded for {self._max_step_positions}")
        spent = self._timed("offload", self._state.offload, plan.offloads)
        if plan.fills:
            self._state.copy(plan.fills)
        spent += self._timed("reload", self._state.reload, plan.reloads)
        spans = plan.spans
        results, spoiled = self._answer(spans) if spans else ((), ())
        # Attention hides a position by a weight of zero, and zero times NaN is NaN: none may stay in the pool.
        self._state.clear([spans[place] for place in spoiled])
        if plan.copies:
            self._state.copy(plan.copies)
        return StepResult(results, spoiled, spent)

    def keep_outside(self, slots: int) -> HostSlots:
        """Have host memory for `slots` blocks outside the pool, once: the slots that plans name. Returns it."""
        self._host = HostSlots(self._state, slots)
        return self._host

    def _timed(self, kind: str, copy: Callable[[Pairs, HostSlots], None], pairs: Pairs) -> tuple[Spent, ...]:
        """Copy blocks between the pool and host memory, and say how long that took."""
        if not pairs:
            return ()
        assert self._host is not None, "a plan names slots of host memory that was never asked for"
        began = time.perf_counter_ns()
        copy(pairs, self._host)
        return (Spent(kind, (), len(pairs), time.perf_counter_ns() - began),)

    @torch.inference_mode()
    def logits(self, spans: tuple[Span, ...], rows: list[int]) -> torch.Tensor:
        """Evaluate `spans` and give the logits at `rows` of their positions, counted through: [len(rows), vocab],
        fp32. Writes the state of the spans' positions."""
        return self._head(self._decoder(self._input(spans, rows)).hidden)

    def _answer(self, spans: tuple[Span, ...]) -> tuple[tuple[SpanResult, ...], tuple[int, ...]]:
        """The result of each span; and the places of the spans with numbers that are not finite."""
        asked = logit_rows(spans)
        wanted = [*asked.rows, *(row for row, _, _ in asked.scored)]
        found = self._decoder(self._input(spans, wanted, len(asked.rows)))
        hidden, spoiled, logits = found.hidden, found.spoiled, found.logits
        if logits is None:
            logits = self._head(hidden[: len(asked.rows)])
            spoiled += [asked.rows[row] for row in rows_not_finite(logits)]
        chosen = choose(logits, asked.picks, found.largest)
        said = [
            None if draw.logprobs is None else report(logits[row], token, draw.logprobs)
            for token, (row, draw) in zip(chosen, asked.picks, strict=True)
        ]
        scores: list[TokenLogprob] = []
        for first in range(0, len(asked.scored), _SCORED_TOGETHER):
            part = asked.scored[first : first + _SCORED_TOGETHER]
            at = len(asked.rows) + first
            rows = self._head(hidden[at : at + len(part)])
            spoiled += [part[row][0] for row in rows_not_finite(rows)]
            scores += [report(row, token, top) for row, (_, token, top) in zip(rows, part, strict=True)]
        return tuple(answers(spans, chosen, said, tuple(scores))), spans_of(spans, spoiled)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of every row of `hidden`, padded to a number of rows whose bits do not depend on it."""
        padding = self._rows(len(hidden)) - len(hidden)
        return self._decoder.logits(F.pad(hidden, (0, 0, 0, padding)) if padding else hidden)[: len(hidden)]

    def _input(self, spans: tuple[Span, ...], hidden_rows: list[int], logit_rows: int = 0) -> StepInput:
        tokens = [token for span in spans for token in span.tokens]
        rows = self._rows(len(tokens))
        tokens += [0] * (rows - len(tokens))
        return StepInput(tokens, self._attention.step(spans, rows), hidden_rows, logit_rows)
