"""What state tiers do to the gap between tokens: a real model, with and without tiers.

    python -m benchmarks.space.tier_gaps FOLDER --label LABEL [--rounds 3] [--steps 160]

Run it at the root of the repository. Four streams of `smollm2-135m` (int8 weights) decode, in this process. Meanwhile
prompts that begin with one of three long prefixes come again and again, and now and then one that nobody has seen.
All sides are asked the same; only where the prefixes lie differs:

off         the pool holds all of them: nothing is copied
host        the pool holds one: the others come back from host memory
disk        the same with a file in FOLDER and no host tier; the operating system's cache holds the file

The sides take turns. The gap is the time from the end of a step to the end of the next, which is what a stream's
reader sees; steps with more than a block's positions of a prompt are long on every side, and not counted. Each run
is added to `benchmarks/results/tier_gaps.json` under its label, and the table takes medians over the runs of a label.
So versions can be compared that take turns: run it with PYTHONPATH at each one's `src` (and built native library).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.bench.machine import machine
from headway.compute.text.executor import TextExecutor
from headway.core.clock import RealClock
from headway.core.events import AnyEvent, Reloaded
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.patterns.text.ports import no_watcher
from headway.replica.loading import hosted_text
from headway.replica.options import ModelOptions
from headway.replica.tiers import open_tiers

MODEL, BLOCK, VOCAB = "smollm2-135m", 16, 49152
RESULT = Path(__file__).parent.parent / "results" / "tier_gaps.json"
SIDES = ("off", "host", "disk")
STREAMS, PREFIXES, PREFIX, NEW = 4, 3, 2048, 128
#: A known prefix is asked for once in so many steps, and a new prompt comes.
_AGAIN, _NEW = 20, 60
_SETTLED_S = 20.0


@dataclass
class Turn:
    """What one turn of a side showed: of each step that counts its gap, how long it copied and how many blocks, in
    ms; of each reload how long it took from the ask; and positions of prefixes that were computed again."""

    gaps: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    reloads: list[float] = field(default_factory=list)
    again: int = 0


class Side:
    """An engine of its own over an executor of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        held = PREFIXES if name == "off" else 1
        blocks = held * PREFIX // BLOCK + 100 + 200 * (name == "off")
        sizes: dict[str, Any] = {"host_tier_bytes": 1 << 29} if name == "host" else {}
        if name == "disk":
            shutil.rmtree(folder, ignore_errors=True)
            sizes = {"disk_tier": str(folder), "disk_tier_bytes": 1 << 29}
        bounds = EngineOptions(seats=8, step_tokens=512, admit="optimistic")
        options = ModelOptions(model=MODEL, block_tokens=BLOCK, engine=bounds, **sizes)
        self._executor = TextExecutor.load(
            resolve(MODEL), cache=Cache.at(None).converted, weights="int8", blocks=blocks, max_step_positions=512
        )
        self._tiers = open_tiers(self._executor, options)
        served = hosted_text(self._executor, blocks, options, no_watcher, None, self._tiers).served
        self._engine = Engine([served], RealClock(), emit=self._emit)
        self._chance = random.Random(7)
        self._prefixes = [self._tokens(PREFIX) for _ in range(PREFIXES)]
        self._steps = self._asked = 0
        self._began: dict[str, float] = {}
        self._turn = Turn()

    def prepare(self) -> None:
        """Compute the prefixes, so that they lie where they will be found."""
        for prefix in self._prefixes:
            self._ask(prefix, 1)
            self._settle()

    def turn(self, steps: int) -> Turn:
        """So many steps under the load, once new streams decode."""
        for _ in range(STREAMS):
            self._ask(self._tokens(24), steps + 40)
        for _ in range(8):
            self._engine.step()
        self._turn = Turn()
        for number in range(steps):
            if number % _AGAIN == 5:
                self._ask([*self._prefixes[self._steps // _AGAIN % PREFIXES], *self._tokens(4)], 1)
            if number % _NEW == 31:
                self._ask(self._tokens(NEW), 1)
            self._steps += 1
            self._step()
        found = self._turn
        self._settle()
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._tiers is not None:
            self._tiers.close(10.0)

    def _step(self) -> None:
        """As a replica does it."""
        began = time.perf_counter()
        plan = self._engine.plan()
        assert plan is not None
        result = self._executor.run(plan)
        self._engine.collect()
        self._engine.commit(result)
        gap_ms = 1e3 * (time.perf_counter() - began)
        prompt = plan.cost - STREAMS
        if prompt <= BLOCK:
            self._turn.gaps.append(gap_ms)
            self._turn.copies.append(sum(spent.ns for spent in result.spent) / 1e6)
            self._turn.blocks.append(len(plan.offloads) + len(plan.reloads))
        elif prompt > NEW + BLOCK:
            self._turn.again += prompt

    def _settle(self) -> None:
        until = time.perf_counter() + _SETTLED_S
        while self._engine.requests or not self._engine.idle or self._engine.awaiting:
            self._engine.step()
            if time.perf_counter() > until and not self._engine.requests:
                return

    def _emit(self, event: AnyEvent) -> None:
        if isinstance(event, Reloaded):
            self._turn.reloads.append(1e3 * (time.perf_counter() - self._began[event.id]))

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(100, VOCAB) for _ in range(count)]

    def _ask(self, prompt: Sequence[int], tokens: int) -> None:
        self._asked += 1
        id = f"r{self._asked}"
        self._began[id] = time.perf_counter()
        self._engine.add(TextRequest(id=id, prompt=tuple(prompt), max_tokens=tokens, ignore_eos=True))


def run(folder: Path, rounds: int, steps: int) -> dict[str, Any]:
    """Each side's turns, and what they show together."""
    sides = [Side(name, folder / name) for name in SIDES]
    for side in sides:
        side.prepare()
        side.turn(20)
    turns: list[list[Turn]] = [[] for _ in sides]
    for number in range(rounds):
        for place in range(len(sides)):
            place = (place + number) % len(sides)
            turns[place].append(sides[place].turn(steps))
    for side in sides:
        side.close()
    return {name: _summary(found) for name, found in zip(SIDES, turns, strict=True)}


def _summary(turns: Sequence[Turn]) -> dict[str, float]:
    """Medians over the turns of what each turn showed. `copying` are steps that copied at least one block."""
    return {
        "p50_ms": median(_at(turn.gaps, 0.5) for turn in turns),
        "p99_ms": median(_at(turn.gaps, 0.99) for turn in turns),
        "longest_ms": median(max(turn.gaps) for turn in turns),
        "copying_p50_ms": _middle(
            [gap for turn in turns for gap, n in zip(turn.gaps, turn.blocks, strict=True) if n]
        ),
        "copies_p50_ms": _middle([ms for turn in turns for ms, n in zip(turn.copies, turn.blocks, strict=True) if n]),
        "copies_longest_ms": median(max(turn.copies) for turn in turns),
        "most_blocks": max(max(turn.blocks) for turn in turns),
        "reload_ms": _middle([ms for turn in turns for ms in turn.reloads]),
        "reloads": sum(len(turn.reloads) for turn in turns),
        "computed_again": sum(turn.again for turn in turns),
    }


def _at(values: Sequence[float], part: float) -> float:
    """The value below which that part of them lies."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def table(result: dict[str, Any]) -> str:
    """Markdown: a row for each side of each label, medians over its runs."""
    columns = ("p50_ms", "p99_ms", "longest_ms", "copies_p50_ms", "copies_longest_ms", "most_blocks", "reload_ms")
    lines = ["| | runs | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for label in dict.fromkeys(run["label"] for run in result["runs"]):
        runs = [run for run in result["runs"] if run["label"] == label]
        for side in SIDES:
            cells = [f"{median(run['sides'][side][column] for run in runs):.2f}" for column in columns]
            lines.append(f"| {label}, {side} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--label", required=True, help="which version this is")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"runs": []}
    result["what"] = f"gaps between the tokens of {STREAMS} streams of {MODEL} (int8) beside prefixes of {PREFIX}"
    sides = run(args.folder, args.rounds, args.steps)
    result["runs"].append({"label": args.label, "sides": sides, **machine()})
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
