"""Throughput without HTTP: the engine and the real executor in this process."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.compute.executor import Executor
from headway.core.clock import RealClock
from headway.core.events import AnyEvent, Committed, Stepped
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory, blocks_for
from headway.patterns.text.pattern import text_model
from headway.replica.messages import Told, decode_to_front, encode
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.metrics import Metrics
from headway.story.sinks.ring import EventRing


@dataclass(frozen=True)
class Shape:
    """`sequences` requests at once, each with `prompt` positions, emitting `emits` tokens; greedy, EOS ignored."""

    sequences: int
    prompt: int
    emits: int

    def blocks(self, block_tokens: int) -> int:
        """Blocks that hold all of it at once."""
        return self.sequences * blocks_for(self.prompt + self.emits, block_tokens)


@dataclass(frozen=True)
class Rates:
    """The results of one run. `decode_tok_s` counts steps that hold nothing but decode positions; `step_ms` is the
    median of those; `engine_us` the median time of such a step outside the executor (planning and books).

    `events_us` is what the story costs the replica in such a step (encoding its events for the socket; making them is
    part of `engine_us`), `front_us` what it costs the front, beside the steps: decoding, folding them into records,
    metrics and ring, and writing the event log.
    """

    sequences: int
    prefill_tok_s: float
    decode_tok_s: float
    step_ms: float
    engine_us: float
    events_us: float
    front_us: float


class _Timed:
    """An executor that notes how long each step ran."""

    def __init__(self, executor: Executor, clock: RealClock) -> None:
        self._executor, self._clock = executor, clock
        self.facts = executor.facts
        self.ran_ns: list[int] = []

    def run(self, plan: Any) -> Any:
        began = self._clock.now_ns()
        result = self._executor.run(plan)
        self.ran_ns.append(self._clock.now_ns() - began)
        return result


def run(executor: Executor, blocks: int, block_tokens: int, shape: Shape, step_tokens: int = 512) -> Rates:
    """Serve one shape once from an empty pool. Prompts differ from their first token, so nothing is reused."""
    clock = RealClock()
    timed = _Timed(executor, clock)
    events: list[AnyEvent] = []
    memory = StateMemory(BlockPool(blocks, block_tokens), prefix_cache=True)
    options = EngineOptions(seats=max(shape.sequences, 1), step_tokens=max(step_tokens, shape.sequences))
    engine = Engine([text_model(timed, memory, options)], clock, emit=events.append)
    vocab = executor.facts.vocab
    for i in range(shape.sequences):
        prompt = tuple((i * 7919 + j * 104729 + 11) % vocab for j in range(shape.prompt))
        engine.add(TextRequest(id=f"b{i}", prompt=prompt, max_tokens=shape.emits, ignore_eos=True))
    while engine.busy:
        engine.step()
    return _rates(shape, events, timed.ran_ns)


def _rates(shape: Shape, events: list[AnyEvent], ran_ns: list[int]) -> Rates:
    steps = [event for event in events if isinstance(event, Stepped)]
    commits = [event for event in events if isinstance(event, Committed)]
    prefill_ns = prefill = 0
    decode_ms, outside_us = [], []
    for step, commit, ran in zip(steps, commits, ran_ns, strict=True):
        ns = commit.at - step.at
        if any(member.doing != "decode" for member in step.members):
            prefill += sum(member.positions for member in step.members)
            prefill_ns += ns
        elif len(step.members) == shape.sequences:
            decode_ms.append(ns / 1e6)
            outside_us.append((ns - ran) / 1e3)
    step_ms = statistics.median(decode_ms) if decode_ms else float("nan")
    return Rates(
        sequences=shape.sequences,
        prefill_tok_s=prefill / (prefill_ns / 1e9) if prefill_ns else float("nan"),
        decode_tok_s=shape.sequences / step_ms * 1e3,
        step_ms=step_ms,
        engine_us=statistics.median(outside_us) if outside_us else float("nan"),
        **_story_us(events),
    )


def _story_us(events: list[AnyEvent]) -> dict[str, float]:
    """The cost of the events of one step, medians over all of them."""
    story = Story()
    metrics, ring = Metrics(story), EventRing("bench")
    encoding, folding = [], []
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        log = EventLog(Path(folder) / "events", epoch="bench", model="bench")
        for told in _by_step(events):
            began = time.perf_counter_ns()
            data = encode(Told(tuple(told)))
            encoded = time.perf_counter_ns()
            heard = decode_to_front(data)
            assert isinstance(heard, Told)
            for event in heard.events:
                metrics.fold(event)
                story.fold(event)
                ring.append(event)
                log.append(event)
            encoding.append((encoded - began) / 1e3)
            folding.append((time.perf_counter_ns() - encoded) / 1e3)
        log.close()
    return {"events_us": statistics.median(encoding), "front_us": statistics.median(folding)}


def _by_step(events: list[AnyEvent]) -> Iterator[list[AnyEvent]]:
    """What a replica tells at once: the events up to and with each commit."""
    told: list[AnyEvent] = []
    for event in events:
        told.append(event)
        if isinstance(event, Committed):
            yield told
            told = []


def measure(
    executor: Executor,
    blocks: int,
    block_tokens: int,
    shapes: list[Shape],
    rounds: int,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Every shape `rounds` times, in turn, so that drift of the machine hits all alike; medians per shape."""
    runs: dict[Shape, list[Rates]] = {shape: [] for shape in shapes}
    for _ in range(rounds):
        for shape in shapes:
            runs[shape].append(run(executor, blocks, block_tokens, shape))
            tick()
    for shape, rates in runs.items():
        rows = [asdict(rate) for rate in rates]
        yield asdict(shape) | {
            key: statistics.median(row[key] for row in rows) for key in rows[0] if key != "sequences"
        }
