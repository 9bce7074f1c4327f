"""What deciding on admissions costs: the engine's own time for a step under each `--admit`.

    python -m benchmarks.space.admission_cost [--out FILE.json]

Run it at the root of the repository. This one is measured, not modelled: on the real engine over an executor that
computes nothing. All sequences decode, and in every step the head of the queue and the 32 behind it are judged and
must wait: under `optimistic` for blocks, under the others for what is kept. The admissions take turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.space.admissions import ADMISSIONS
from benchmarks.space.traces import Idle

from headway.bench.machine import machine
from headway.core.clock import ModelledClock
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model

BLOCK, FREE, MOST = 256, 4, 2048
SEQUENCES, WAITING = (32, 256), (0, 10_000)
#: Rounds, and steps of each engine in one: together fewer than the positions that are left in a block.
ROUNDS, STEPS = 20, 10
#: Of all blocks that are free, and of one more.
_PROMPTS = [(1 << 20,) * (asks * BLOCK - BLOCK // 2) for asks in (FREE, FREE + 1)]


@dataclass
class Row:
    """Microseconds of a step under each admission, with so many that run and that wait: medians."""

    sequences: int
    waiting: int
    step_us: dict[str, float]


def engine(admit: str, sequences: int, waiting: int, policy: str = "fcfs") -> Engine:
    """One where `sequences` decode, and `waiting` requests of as many callers wait for blocks, or for what `admit`
    keeps."""
    clock = ModelledClock()
    options = EngineOptions(seats=sequences + 1, step_tokens=sequences + 64, admit="optimistic", policy=policy)
    memory = StateMemory(BlockPool(sequences + FREE, BLOCK), prefix_cache=True)
    model = text_model(Idle(clock, 1), memory, options)
    made = Engine([model], clock)
    for number in range(sequences):
        made.add(_request(f"r{number}", (number,) * 8, MOST))
    while len(model.queues.running) < sequences:
        made.step()
    model.options = replace(options, admit=admit)
    for place in range(256):
        model.answers.add(10 + 7 * place)
    for number in range(waiting):
        made.add(newcomer(admit, number))
    return made


def newcomer(admit: str, number: int) -> TextRequest:
    """One who must wait: it asks for all blocks that are free, and under `optimistic` for one more."""
    prompt = _PROMPTS[admit == "optimistic"]
    due = 1e9 + number * 7 % 100
    return _request(f"w{number}", prompt, BLOCK // 4, priority=number % 3, deadline_ms=due, caller=f"c{number}")


def _request(id: str, prompt: tuple[int, ...], tokens: int, **fields: Any) -> TextRequest:
    return TextRequest(id=id, prompt=prompt, max_tokens=tokens, ignore_eos=True, **fields)


def measure(
    sequences: Sequence[int] = SEQUENCES, waiting: Sequence[int] = WAITING, rounds: int = ROUNDS
) -> list[Row]:
    """All of them."""
    return [_row(running, queued, rounds) for queued in waiting for running in sequences]


def _row(sequences: int, waiting: int, rounds: int) -> Row:
    engines = {admit: engine(admit, sequences, waiting) for admit in ADMISSIONS}
    took: dict[str, list[float]] = {admit: [] for admit in ADMISSIONS}
    for _ in range(rounds):
        for admit, made in engines.items():
            for _ in range(STEPS):
                started = time.perf_counter()
                made.step()
                took[admit].append(1e6 * (time.perf_counter() - started))
    return Row(sequences, waiting, {admit: median(each) for admit, each in took.items()})


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [f"| sequences | waiting | {', µs | '.join(ADMISSIONS)}, µs |", "|---" * (2 + len(ADMISSIONS)) + "|"]
    for row in rows:
        cells = [f"{row.step_us[admit]:,.0f}" for admit in ADMISSIONS]
        lines.append(f"| {row.sequences} | {row.waiting:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    rows = measure()
    print(table(rows))
    if args.out:
        kept = [{"sequences": row.sequences, "waiting": row.waiting,
                 "step_us": {admit: round(us, 1) for admit, us in row.step_us.items()}} for row in rows]  # fmt: skip
        Path(args.out).write_text(json.dumps({**machine(), "rows": kept}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
