"""What a decode step costs the engine alone, beside the engine of another source tree.

    python benchmarks/engine/step_cost.py BEFORE/src AFTER/src [--rounds 7]

The two alternate, each time in a process of its own, over an executor that computes nothing; the medians of all
rounds are compared. With requests that wait and cannot be admitted a step should cost no more than without them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

#: (decoding sequences, waiting requests, steps)
CASES = ((32, 0, 300), (32, 10_000, 300), (256, 0, 100), (1_000, 0, 40), (1_000, 10_000, 40))


def measure() -> list[float]:
    """Microseconds that a step takes at the median, for each case."""
    from headway.compute.fake import FakeExecutor
    from headway.core.clock import RealClock
    from headway.core.plan import SpanResult, StepResult
    from headway.core.request import TextRequest
    from headway.engine.loop import Engine
    from headway.engine.served import EngineOptions
    from headway.memory.pool import BlockPool
    from headway.memory.reserve import StateMemory
    from headway.patterns.text.pattern import text_model

    class Nothing:
        facts = FakeExecutor(blocks=1, block_tokens=16).facts

        def run(self, plan):  # type: ignore[no-untyped-def]
            return StepResult(tuple(SpanResult((1,) * len(span.draws)) for span in plan.items))

    found = []
    for sequences, waiting, steps in CASES:
        blocks = 64 * sequences
        options = EngineOptions(seats=sequences, step_tokens=max(512, 8 * sequences))
        model = text_model(Nothing(), StateMemory(BlockPool(blocks, 16), prefix_cache=True), options)
        engine = Engine([model], RealClock())
        for i in range(sequences):
            engine.add(TextRequest(id=f"r{i}", prompt=(i % 997, *range(7)), max_tokens=900))
        for _ in range(3):
            engine.step()
        for i in range(waiting):
            engine.add(TextRequest(id=f"w{i}", prompt=tuple(range(40)), max_tokens=5))
        times = []
        for _ in range(steps):
            began = time.perf_counter_ns()
            engine.step()
            times.append((time.perf_counter_ns() - began) / 1e3)
        found.append(statistics.median(times))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", metavar="SRC")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if not args.trees:
        print(json.dumps(measure()))
        return
    before, after = args.trees
    rounds: dict[str, list[list[float]]] = {before: [], after: []}
    for _ in range(args.rounds):
        for tree in rounds:
            ran = subprocess.run(
                [sys.executable, __file__], env={**os.environ, "PYTHONPATH": tree}, capture_output=True, check=True
            )
            rounds[tree].append(json.loads(ran.stdout))
    print("| decoding | waiting | before, µs | after, µs | ratio |\n|---|---|---|---|---|")
    for place, (sequences, waiting, _) in enumerate(CASES):
        was, now = (statistics.median(row[place] for row in rounds[tree]) for tree in (before, after))
        print(f"| {sequences:,} | {waiting:,} | {was:,.0f} | {now:,.0f} | {now / was:.2f} |")


if __name__ == "__main__":
    main()
