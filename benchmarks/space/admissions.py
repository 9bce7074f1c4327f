"""The pool shrinks under a constant load: goodput, preemptions and the recompute tax under each `--admit`.

    python -m benchmarks.space.admissions [--out FILE.json] [--plot FILE.png]

Run it at the root of the repository. Time is modelled (`load.Costs`), so the numbers are the same everywhere. The
plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.space.kept import described
from benchmarks.space.load import Asked, Costs, Outcome, Setting, conversations, serve

from headway.engine.served import EngineOptions

ADMISSIONS = ("optimistic", "headroom", "reserve", "predict")
DEFAULT = EngineOptions().admit
SIZES = (800, 600, 450, 350, 300, 250, 200, 150, 120, 100)
#: What a position costs beside a step, from prompts that are cheap (an accelerator) to dear ones (a processor).
MACHINES = {
    "accelerator": (Costs(), 6.0),
    "between": (Costs(10_000, 250, 0.2), 4.0),
    "processor": (Costs(10_000, 1_000, 0.5), 2.0),
}


@dataclass(frozen=True)
class Row:
    """One size of the pool, in blocks, and what came of the load under each admission."""

    blocks: int
    outcomes: dict[str, Outcome]

    @property
    def best(self) -> float:
        return max(outcome.goodput for outcome in self.outcomes.values())


def measure(asked: Sequence[Asked], sizes: Iterable[int] = SIZES, costs: Costs | None = None) -> list[Row]:
    """The load at each size of the pool under each admission."""
    return [
        Row(blocks, {admit: serve(asked, Setting(blocks, admit), costs) for admit in ADMISSIONS}) for blocks in sizes
    ]


def table(rows: Sequence[Row]) -> str:
    """Markdown: for each admission goodput (tokens/s), its part of the best, preemptions, recomputed share."""
    head = "| blocks | " + " | ".join(f"{admit}: tokens/s, of best, preempted, recomputed" for admit in ADMISSIONS)
    lines = [f"{head} |", "|---" * (len(ADMISSIONS) + 1) + "|"]
    for row in rows:
        cells = [
            f"{each.goodput:.0f}, {each.goodput / row.best:.0%}, {each.preemptions}, {each.recompute_share:.1%}"
            for each in row.outcomes.values()
        ]
        lines.append(f"| {row.blocks} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(measured: dict[str, list[Row]], path: str) -> None:
    """Goodput and recomputed share over the size of the pool, a column for each machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(measured), figsize=(5 * len(measured), 7), sharex=True, squeeze=False)
    for column, (machine, rows) in enumerate(measured.items()):
        sizes = [row.blocks for row in rows]
        for admit in ADMISSIONS:
            goodputs = [row.outcomes[admit].goodput for row in rows]
            shares = [100 * row.outcomes[admit].recompute_share for row in rows]
            axes[0][column].plot(sizes, goodputs, marker="o", label=admit)
            axes[1][column].plot(sizes, shares, marker="o", label=admit)
        axes[0][column].set(title=machine, ylabel="goodput, tokens/s", ylim=(0, None))
        axes[1][column].set(xlabel="pool, blocks", ylabel="recomputed, % of positions", ylim=(0, None))
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    measured = {}
    for machine, (costs, per_second) in MACHINES.items():
        rows = measured[machine] = measure(conversations(args.requests, per_second), costs=costs)
        worst = min(row.outcomes[DEFAULT].goodput / row.best for row in rows)
        print(f"\n{machine}: a step {costs.step_us / 1e3:g} ms, a position {costs.position_us:g} us, "
              f"{per_second:g} requests/s\n\n{table(rows)}\n\n{DEFAULT} is at least {worst:.0%} of the best",
              flush=True)  # fmt: skip
    if args.out:
        kept = {machine: [_kept(row) for row in rows] for machine, rows in measured.items()}
        document = {**described(), "requests": args.requests, "machines": kept}
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(measured, args.plot)


def _kept(row: Row) -> dict[str, object]:
    """A row as it is kept."""
    return {"blocks": row.blocks} | {
        admit: {
            "goodput": round(each.goodput, 1), "of_best": round(each.goodput / row.best, 3),
            "preemptions": each.preemptions, "recompute_share": round(each.recompute_share, 4),
        }
        for admit, each in row.outcomes.items()
    }  # fmt: skip


if __name__ == "__main__":
    main()
