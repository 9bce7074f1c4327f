"""Where a decode step's time goes: `python benchmarks/native/phases.py --weights bf16 --sequences 1 8 32`.

The engine and the executor in this process, every part of a step wrapped in a clock; of each part the median over the
steps of a job, in milliseconds. Clocks cost under a tenth of a microsecond each. `rest` is what no clock covers:
Python between operators. Only for weights that torch's operators multiply: the native decoder is one call.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.core.config import Environment, yielding_threads

yielding_threads()  # before torch is imported
from headway.bench.machine import machine  # noqa: E402
from headway.bench.offline import Shape, run  # noqa: E402
from headway.compute.models import decoder as decoders  # noqa: E402
from headway.compute.text import executor as executors  # noqa: E402

BLOCK_TOKENS = 16


class Clocks:
    """Nanoseconds by part, of the step that runs."""

    def __init__(self) -> None:
        self._step: dict[str, int] = defaultdict(int)
        self.steps: list[dict[str, int]] = []

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        step = self._step

        def timed(*given: Any, **more: Any) -> Any:
            began = time.perf_counter_ns()
            result = function(*given, **more)
            step[part] += time.perf_counter_ns() - began
            return result

        return timed

    def whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Like `around`, for a step as a whole; `steps` then has one more."""

        def timed(*given: Any) -> Any:
            self._step.clear()
            began = time.perf_counter_ns()
            result = function(*given)
            self.steps.append({**self._step, "executor": time.perf_counter_ns() - began})
            return result

        return timed


def watch(executor: Any, clocks: Clocks) -> None:
    """Put a clock around each part of this executor."""
    model = executor._decoder
    model._layers = [
        dataclasses.replace(
            layer,
            **{part: clocks.around("products", getattr(layer, part)) for part in ("qkv", "o", "gate_up", "down")},
            **{part: clocks.around("norms", getattr(layer, part)) for part in ("attention_norm", "mlp_norm")},
        )
        for layer in model._layers
    ]
    model._head = clocks.around("head", model._head)
    decoders._swiglu = clocks.around("swiglu", decoders._swiglu)
    executors.choose = clocks.around("sampling", executors.choose)
    of_a_step = executor._attention.step

    def step(*given: Any) -> Any:
        return clocks.around("attention", of_a_step(*given))

    executor._attention.step = clocks.around("work list", step)
    executor.run = clocks.whole(executor.run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--emits", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cache = Environment.read().cache
    shapes = [Shape(count, args.prompt, args.emits) for count in args.sequences]
    blocks = max(shape.blocks(BLOCK_TOKENS) for shape in shapes) + 1
    executor = executors.TextExecutor.load(
        resolve(args.model, cache=cache), cache=Cache.at(cache).converted, blocks=blocks, block_tokens=BLOCK_TOKENS,
        weights=args.weights, threads=args.threads,
    )  # fmt: skip
    clocks = Clocks()
    watch(executor, clocks)
    for shape in shapes:
        parts: dict[str, list[float]] = defaultdict(list)
        for _ in range(args.rounds):
            clocks.steps.clear()
            rates = run(executor, blocks, BLOCK_TOKENS, shape)
            for step in clocks.steps[-args.emits // 2 :]:
                for part, took_ns in step.items():
                    parts[part].append(took_ns / 1e6)
                parts["rest"].append((2 * step["executor"] - sum(step.values())) / 1e6)
            parts["engine"].append(rates.engine_us / 1e3)
            parts["events"].append(rates.events_us / 1e3)
            parts["front's books, beside"].append(rates.front_us / 1e3)
        row = {part: round(statistics.median(took), 3) for part, took in parts.items()}
        print(json.dumps({"sequences": shape.sequences, **row}), flush=True)
    print(json.dumps({**machine(), "weights": args.weights}))


if __name__ == "__main__":
    main()
