"""How much quicker the native kernels, rounded weights and rounded state make a step:
`python benchmarks/native/steps.py`.

Each shape is run by every side (`WEIGHTS:NATIVE` or `WEIGHTS:NATIVE:STATE`, as these options have it) in turn, in one
process, over and over; what counts is the ratio within a round. Prints the median step of each side, its positions
per second, and the median of the ratios with their quartiles; absolute times are those of this machine at this
moment. `--json FILE` keeps it all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.core.config import Environment, yielding_threads
from headway.core.plan import Draw, Sampling, Span, StepPlan

yielding_threads()  # before torch is imported
from headway.bench.machine import machine  # noqa: E402
from headway.compute.text.executor import TextExecutor  # noqa: E402

BLOCK_TOKENS = 16


def decode(sequences: int, context: int) -> tuple[Span, ...]:
    """The newest position of each of `sequences`, all of `context` positions."""
    return tuple(_span(i, context - 1, 1, context) for i in range(sequences))


def prefill(sequences: int, positions: int, start: int) -> tuple[Span, ...]:
    """A chunk of `positions` from `start` of each of `sequences`."""
    return tuple(_span(i, start, positions, start + positions) for i in range(sequences))


def _span(index: int, start: int, count: int, end: int) -> Span:
    each = -(-end // BLOCK_TOKENS)
    blocks = tuple(range(index * each, (index + 1) * each))
    tokens = np.random.default_rng(index).integers(100, 40000, count)
    return Span(start, tuple(tokens.tolist()), blocks, (Draw(0, end, Sampling()),))


SHAPES = {
    "decode 1 × 200": decode(1, 200),
    "decode 8 × 200": decode(8, 200),
    "decode 32 × 200": decode(32, 200),
    "decode 1 × 4000": decode(1, 4000),
    "decode 1 × 8000": decode(1, 8000),
    "decode 8 × 2000": decode(8, 2000),
    "prefill 4 × 128": prefill(4, 128, 0),
    "prefill 32 × 128": prefill(32, 128, 0),
    "prefill 1 × 512": prefill(1, 512, 0),
    "prefill 1 × 512 from 3584": prefill(1, 512, 3584),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--sides", default="bf16:off,bf16:auto,int8:auto", help="the first is what others are compared with"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each shape and choice in a round")
    parser.add_argument("--only", default="", help="shapes whose name contains one of these, separated by commas")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--cpu", action="store_true", help="processor time instead of wall time: for a busy machine, with --threads 1"
    )
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    sides = args.sides.split(",")
    shapes = {name: spans for name, spans in SHAPES.items() if any(part in name for part in args.only.split(","))}
    blocks = max(sum(len(span.blocks) for span in spans) for spans in shapes.values())
    executors = [_load(args, side, blocks) for side in sides]
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, {about['capability']}, torch {about['torch']}, {about['date']}")
    for side, executor in zip(sides, executors, strict=True):
        print(f"{side}: {executor.facts.kernels}")
    results = {}
    for name, spans in shapes.items():
        rows = [[_step_ms(one, spans, args.seconds, clock) for one in executors] for _ in range(args.rounds)]
        results[name] = {side: _side(rows, place, spans) for place, side in enumerate(sides)}
        told = (
            f"{side} {found['ms']:.2f} ms, {found['positions_per_s']:.0f}/s"
            + (f", {found['ratio'][1]:.2f} × ({found['ratio'][0]:.2f} to {found['ratio'][2]:.2f})" if place else "")
            for place, (side, found) in enumerate(results[name].items())
        )
        print(f"{name:28}{'   '.join(told)}", flush=True)
    if args.json:
        kernels = {side: one.facts.kernels for side, one in zip(sides, executors, strict=True)}
        found = {"machine": about, "model": args.model, "kernels": kernels, "steps": results}
        args.json.write_text(json.dumps(found, indent=1) + "\n")


def _side(rows: list[list[float]], place: int, spans: tuple[Span, ...]) -> dict[str, Any]:
    """Of a side: its median step, and how much quicker than the first it was, as quartiles of the rounds' ratios."""
    ratios = [row[0] / row[place] for row in rows]
    middle = statistics.median(row[place] for row in rows)
    positions = sum(len(span.tokens) for span in spans)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"ms": middle, "positions_per_s": positions / middle * 1e3, "ratio": quartiles}


def _load(args: argparse.Namespace, side: str, blocks: int) -> TextExecutor:
    weights, native, state = (*side.split(":"), "auto")[:3]
    cache: Path | None = Environment.read().cache
    return TextExecutor.load(
        resolve(args.model, cache=cache), cache=Cache.at(cache).converted, blocks=blocks, weights=weights,
        state=state, block_tokens=BLOCK_TOKENS, threads=args.threads, native=native, max_step_positions=4096,
    )  # fmt: skip


def _step_ms(executor: TextExecutor, spans: tuple[Span, ...], seconds: float, clock: Callable[[], float]) -> float:
    """The median step of at least `seconds` of them."""
    plan, took, ends = StepPlan(0, spans), [], clock() + seconds
    executor.run(plan)
    while clock() < ends or len(took) < 3:
        began = clock()
        executor.run(plan)
        took.append((clock() - began) * 1e3)
    return statistics.median(took)


if __name__ == "__main__":
    main()
