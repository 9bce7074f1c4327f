"""Where an encoder's time goes: `python benchmarks/native/encoder_phases.py [MODEL]`.

Steps of texts of `--tokens` random tokens, by int8 weights. Of each number of texts (`--texts`), milliseconds for
each text, the least of the rounds: `cpu` and `wall` are the process's in the executor's steps; the parts are those
that the native library tells apart, of all its threads together; `python` is what an executor's step takes beside the
library's call. One text is shared by all threads; more are shared out among them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headway.artifacts import resolve
from headway.core.config import Environment, yielding_threads

yielding_threads()  # before torch is imported
from headway.bench.machine import machine  # noqa: E402
from headway.compute.embed.executor import EncoderExecutor  # noqa: E402
from headway.compute.embed.states import NativeStates  # noqa: E402
from headway.core.plan import Evaluate, StepPlan  # noqa: E402

#: As in native/headway.h.
PARTS = ("embed", "qkv", "attention", "out", "up and gelu", "round wide", "down", "norms", "waiting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="minilm-l6")
    parser.add_argument("--native", default="auto")
    parser.add_argument("--texts", type=int, nargs="+", default=[10, 1])
    parser.add_argument("--tokens", type=int, default=51)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each round")
    args = parser.parse_args()
    cache = Environment.read().cache
    executor = EncoderExecutor.load(
        resolve(args.model, cache=cache), cache=cache, weights="int8", threads=args.threads, native=args.native,
        max_step_positions=max(args.texts) * args.tokens,
    )  # fmt: skip
    states = executor._states
    assert isinstance(states, NativeStates)
    chance = np.random.default_rng(0)
    for texts in args.texts:
        words = chance.integers(1000, executor.facts.vocab, (texts, args.tokens)).tolist()
        plan = StepPlan(0, tuple(Evaluate(tuple(text)) for text in words))
        rows = [_round(executor, states, plan, args.seconds) for _ in range(args.rounds)]
        print(json.dumps({"texts": texts, **{part: round(min(row[part] for row in rows), 4) for part in rows[0]}}))
    told = {"model": args.model, "tokens": args.tokens, "threads": args.threads}
    print(json.dumps({**machine(), **told, "kernels": executor.facts.kernels["products"]}))


def _round(executor: EncoderExecutor, states: NativeStates, plan: StepPlan, seconds: float) -> dict[str, float]:
    """Milliseconds for each text of the plan."""
    encoder: Any = states._encoder
    library = encoder._library
    spent_ns = np.zeros(len(PARTS), np.int64)
    run, native_ns = library.encoder_run, [0]

    def timed(*given: Any) -> Any:
        began = time.perf_counter_ns()
        result = run(*given)
        native_ns[0] += time.perf_counter_ns() - began
        return result

    executor.run(plan)
    library.encoder_clock(encoder._handle, spent_ns.ctypes.data)
    library.encoder_run = timed
    try:
        steps, wall_ns, cpu_ns = _repeat(lambda: executor.run(plan), seconds)
    finally:
        library.encoder_run = run
        library.encoder_clock(encoder._handle, None)
    each = 1e6 * steps * len(plan.items)
    found = {"cpu": cpu_ns / each, "wall": wall_ns / each, "python": (wall_ns - native_ns[0]) / each}
    return found | {part: int(ns) / each for part, ns in zip(PARTS, spent_ns, strict=True)}


def _repeat(step: Callable[[], object], seconds: float) -> tuple[int, int, int]:
    """How often `step` ran, and nanoseconds of the wall clock and of all processors meanwhile."""
    count, began, cpu = 0, time.perf_counter_ns(), time.process_time_ns()
    while time.perf_counter_ns() - began < seconds * 1e9:
        step()
        count += 1
    return count, time.perf_counter_ns() - began, time.process_time_ns() - cpu


if __name__ == "__main__":
    main()
