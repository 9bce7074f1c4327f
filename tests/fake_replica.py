"""Whole processes without a model: the replica's own program over a fake executor.

    python tests/fake_replica.py SOCKET OPTIONS FRONT     a replica (`Link` starts it)
    python tests/fake_replica.py serve …                   `headway serve` over such replicas
    python tests/fake_replica.py restless …                the same; it replaces a replica at once

`--threads` says how many milliseconds a step takes. With state tiers a block is 256 KiB: moving it takes a while. The
first token of a prompt may order what a healthy replica never does. Where the word "slow" is in a text or a grammar,
tokenising or compiling it takes its time.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from headway.artifacts import resolve
from headway.artifacts.files import ModelFiles
from headway.compute.fake import FakeExecutor
from headway.core.events import (
    Admitted,
    Arrived,
    Finished,
    Grown,
    Levels,
    NoProgress,
    Offloaded,
    Recovery,
    Stepped,
)
from headway.core.plan import Grammar, StepPlan, StepResult
from headway.core.recovery import Demand, Rates
from headway.core.request import Guide, Watch
from headway.core.tiers import Backlog
from headway.replica import process
from headway.replica.grammars import Grammars
from headway.replica.link import Link
from headway.replica.loading import LoadedModel, hosted_text
from headway.replica.messages import Ready, ToFront, Told, encode
from headway.replica.options import ModelOptions, ReplicaOptions
from headway.replica.tiers import open_tiers
from headway.text.answer import AnswerTexts
from headway.text.grammar.guide import GrammarCompiler
from headway.text.tokenizer import Tokenizer

VOCABULARY = 49_152
#: What a first token orders: the step fails; the process says what is no message, what contradicts itself (about the
#: request "nonsense"; also in what it tells of a step), or what is true of no request; it ends; it tells that writes
#: to its tiers stand, or move again, or that it is in a recovery loop.
FAIL, GARBAGE, NONSENSE, GHOSTS, EXIT, STANDS, MOVES, LOOPS, NO_STEP = range(11, 20)
SLOW_TOKENISING_S, SLOW_COMPILING_S = 0.9, 2.5


class Obedient(FakeExecutor):
    """Does what prompts order."""

    def __init__(self, blocks: int, block_tokens: int, step_s: float, say: Callable[[Any], None]) -> None:
        super().__init__(blocks=blocks, block_tokens=block_tokens, vocab=VOCABULARY)
        self._step_s, self._say = step_s, say

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self._step_s)
        for order in {span.tokens[0] for span in plan.items if span.start == 0}:
            self._obey(order)
        return super().run(plan)

    def _obey(self, order: int) -> None:
        if order == FAIL:
            raise RuntimeError("the step was told to fail")
        if order == EXIT:
            sys.exit(3)
        if order == GARBAGE:
            self._say(b"\xc1garbage")
        if order == NONSENSE:
            admitted = Admitted(
                at=0, step=1, id="nonsense", resumed=False, indexes=(7,), tables=((),), inherited=(0,)
            )
            self._say(Told((admitted,)))
        if order == NO_STEP:
            told = Stepped(
                at=0, step=1, budget=1, members=(), grown=(Grown("nonsense", 7, (1,)),), waits={}, head=None,
                waiting=0, levels=Levels(0, 0, 1, 0, 0),
            )  # fmt: skip
            self._say(Told((told,)))
        if order == STANDS:
            writes = Backlog("disk", writing=4, queued=24, pinned=4, slots=4, moved=0)
            self._say(Told((NoProgress(at=0, step=1, model="fake", writes=writes, times=3),)))
        if order == MOVES:
            self._say(Told((Offloaded(at=0, model="fake", blocks={"disk": 4}, tiers=(), moves_again=True),)))
        if order == LOOPS:
            now, kept = Rates(10, 2000, 4000, 140), (Demand(3, 600), Demand(1, 200))
            self._say(
                Told(
                    (
                        Recovery(
                            at=0,
                            step=1,
                            model="fake",
                            phase="began",
                            cut=True,
                            now=now,
                            best=Rates(goodput=228),
                            offered=kept[0],
                            rejected=kept[1],
                            needed=2,
                        ),
                    )
                )
            )
        if order == GHOSTS:
            arrived = Arrived(at=0, id="ghost", pattern="text", prompt=1, n=1, max_tokens=1, priority=0, order=(0,))
            self._say(Told((arrived, Finished(at=0, id="nobody", reason="length"))))


def load(options: ReplicaOptions, say: Callable[[ToFront], None]) -> list[LoadedModel]:
    """In the place of `headway.replica.process.load`."""
    return [_load(model, options, say) for model in options.models]


def _load(model: ModelOptions, options: ReplicaOptions, say: Callable[[ToFront], None]) -> LoadedModel:
    blocks = model.blocks or 64
    kind = Obedient if model.host_tier_bytes is None and model.disk_tier is None else Tiered
    executor = kind(blocks, model.block_tokens, (options.threads or 0) / 1000, say)
    text = Text(model, options.cache)
    tiers = open_tiers(executor, model)  # type: ignore[arg-type]
    return hosted_text(executor, blocks, model, text.watch, Grammars(text, _slow), tiers)


class Tiered(Obedient):
    """Implements `TieredExecutor`: what a block holds lies in a host slot many times over, and one that does not say
    the same each time is never brought back."""

    _TIMES = 2048

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._facts = replace(self._facts, block_bytes=self._facts.block_bytes * self._TIMES)

    def keep_outside(self, slots: int) -> HostSlots:
        self.host = HostSlots(slots, self._facts.block_bytes, self._TIMES)  # type: ignore[assignment]
        return self.host


class HostSlots:
    def __init__(self, slots: int, block_bytes: int, times: int) -> None:
        self._size, self._times = block_bytes, times
        self._bytes = memoryview(bytearray(slots * block_bytes))

    def bytes(self, slot: int) -> memoryview:
        return self._bytes[slot * self._size : (slot + 1) * self._size]

    def __setitem__(self, slot: int, content: list[int]) -> None:
        self.bytes(slot)[:] = array("Q", content).tobytes() * self._times

    def __getitem__(self, slot: int) -> list[int]:
        return whole(self.bytes(slot), self._times)


def whole(block: memoryview, times: int = Tiered._TIMES) -> list[int]:
    """What the bytes of a block hold. Raises AssertionError where they are of more than one."""
    once = bytes(block[: len(block) // times])
    assert block == once * times, "a block holds bytes of two"
    return list(array("Q", once))


class Text:
    """What has to do with text is read when it is needed, which it is seldom: a replica starts in half the time."""

    def __init__(self, options: ModelOptions, cache: str) -> None:
        self._options, self._cache = options, cache

    @cached_property
    def _files(self) -> ModelFiles:
        return resolve(self._options.model, cache=Path(self._cache), offline=True)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self._files)

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self._files.tokenizer, self._files.eos_ids, VOCABULARY)

    @cached_property
    def _texts(self) -> AnswerTexts:
        return AnswerTexts(self._tokenizer)

    def watch(self, stop: tuple[str, ...], min_tokens: int) -> Watch:
        return self._texts(stop, min_tokens)

    def knows(self, grammar: Grammar) -> bool:
        return self._compiler.knows(grammar)

    def compile(self, grammar: Grammar, sequences: int) -> list[Guide]:
        return self._compiler.compile(grammar, sequences)


def _slow(grammar: Grammar) -> None:
    time.sleep(SLOW_COMPILING_S if "slow" in grammar.source else 0)


def ready(models: Sequence[LoadedModel], load_ms: float) -> Ready:
    """In the place of `headway.replica.process.ready`, which loads torch."""
    return Ready(tuple(model.ready() for model in models), threads=1, load_ms=load_ms, resident_bytes=0)


class SlowTokenizer(Tokenizer):
    def encode(self, text: str, **how: Any) -> list[int]:
        time.sleep(SLOW_TOKENISING_S if "slow" in text else 0)
        return super().encode(text, **how)


def serve(words: list[str], *, at_once: bool) -> int:
    """`headway serve`, its front over such replicas."""
    from headway.cli import main
    from headway.front import models, state
    from headway.replica import link

    if at_once:
        link._RESTART_PAUSE_S = 0.01
    models.Tokenizer = SlowTokenizer  # type: ignore[attr-defined]
    state.Link = partial(Link, program=(__file__,))  # type: ignore[attr-defined,assignment]
    return main(["serve", *words])


def replica(descriptor: str, options_json: str, front: str) -> int:
    """`headway.replica.process`, its model a fake."""
    process.load, process.ready = load, ready
    process.encode = lambda message: message if isinstance(message, bytes) else encode(message)
    return process.main(int(descriptor), options_json, int(front))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    sys.exit(serve(rest, at_once=kind == "restless") if kind in ("serve", "restless") else replica(kind, *rest))
