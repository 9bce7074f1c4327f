"""How long an update takes in each number format: `python benchmarks/images/formats.py`.

`emoji-64` in this process; the formats take turns, so that their ratios mean something on a machine that others use
too. An image with guidance has two rows in an update. Prints the median and the shortest, in milliseconds.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from headway.artifacts import resolve
from headway.bench.machine import machine
from headway.compute.image.executor import DiffusionExecutor
from headway.core.plan import Encode, StepPlan, Update

FORMATS = ("fp32", "bf16", "int8")
IMAGES, ROUNDS, UPDATES = (2, 4, 8, 16), 3, 20
PROMPT = (101, 2417, 6207, 102)


def updates(executor: DiffusionExecutor, images: int) -> list[float]:
    """Milliseconds of each of the updates of so many images, all guided."""
    executor.run(StepPlan(0, tuple(Encode(slot, PROMPT, slot, UPDATES, (101, 102), 3.0) for slot in range(images))))
    took = []
    for index in range(UPDATES):
        plan = StepPlan(1, tuple(Update(slot, index, UPDATES) for slot in range(images)))
        began = time.perf_counter()
        executor.run(plan)
        took.append(1e3 * (time.perf_counter() - began))
    for slot in range(images):
        executor.forget(slot)
    return took


def main() -> None:
    files = resolve("emoji-64")
    with tempfile.TemporaryDirectory() as folder:
        executors = {each: DiffusionExecutor.load(files, cache=Path(folder), weights=each) for each in FORMATS}
        print(machine())
        for images in IMAGES:
            took: dict[str, list[float]] = {each: [] for each in FORMATS}
            for _ in range(ROUNDS):
                for name, executor in executors.items():
                    took[name] += updates(executor, images)
            words = (f"{name} {median(each):.1f} (shortest {min(each):.1f})" for name, each in took.items())
            print(f"{2 * images} rows: " + ", ".join(words))


if __name__ == "__main__":
    main()
