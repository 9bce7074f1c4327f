"""The pool shrinks under a constant load: goodput, preemptions, the recompute tax and how much of the pool is in use
under each `--admit`.

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
from typing import Any

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
    """Markdown: goodput in tokens/s, with its part of the best, preemptions, recomputed share, occupancy."""
    head = "| blocks | admission | goodput, tokens/s | of the best | preemptions | recomputed | occupancy |"
    lines = [head, "|---" * 7 + "|"]
    for row in rows:
        lines += [
            f"| {row.blocks} | {admit} | {each.goodput:.0f} | {each.goodput / row.best:.0%} | {each.preemptions} | "
            f"{each.recompute_share:.1%} | {each.occupancy:.0%} |"
            for admit, each in row.outcomes.items()
        ]
    return "\n".join(lines)


#: A row of plots: what the axis is called, and what of an outcome, as it is kept, it shows.
_SHOWN = (
    ("goodput, tokens/s", lambda kept: kept["goodput"]),
    ("recomputed,\n% of positions", lambda kept: 100 * kept["recompute_share"]),
    ("pool in use, %", lambda kept: 100 * kept["occupancy"]),
)
_COLOURS = {"optimistic": "#c0392b", "headroom": "#1e7d4f", "reserve": "#7f7f7f", "predict": "#1f5fbf"}


def plot(document: dict[str, Any], path: str) -> None:
    """All three over a pool that shrinks, a column for each machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    machines = document["machines"]
    figure, axes = pyplot.subplots(3, len(machines), figsize=(4.6 * len(machines), 8), sharex=True,
                                   squeeze=False)  # fmt: skip
    for column, (machine, rows) in enumerate(machines.items()):
        sizes = [row["blocks"] for row in rows]
        for axis, (label, value) in zip(axes[:, column], _SHOWN, strict=True):
            for admit in ADMISSIONS:
                values = [value(row[admit]) for row in rows]
                axis.plot(sizes, values, marker="o", ms=3.5, lw=1.7, color=_COLOURS[admit], label=admit)
            axis.set(xscale="log", ylabel="" if column else label)
            axis.set_xticks([800, 400, 200, 100], [800, 400, 200, 100])
            axis.minorticks_off()
            axis.grid(axis="y", color="#e5e5e5", lw=0.7)
            axis.spines[["top", "right"]].set_visible(False)
        costs, per_second = MACHINES[machine]
        head = f"a step {costs.step_us / 1e3:g} ms, a position {costs.position_us:g} µs, {per_second:g} requests/s"
        axes[0][column].set_title(f"{machine}\n", fontweight="bold")
        axes[0][column].text(0.5, 1.03, head, transform=axes[0][column].transAxes, ha="center", fontsize=8)
        axes[2][column].set(xlabel="pool, blocks (it shrinks to the right)")
    for axis in axes.flat:
        axis.set_ylim(0, None)
    axes[0][0].invert_xaxis()
    axes[1][0].legend(loc="upper left", fontsize=9, frameon=False)
    figure.align_ylabels()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


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
    kept = {machine: [_kept(row) for row in rows] for machine, rows in measured.items()}
    document = {**described(), "requests": args.requests, "machines": kept}
    if args.out:
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(document, args.plot)


def _kept(row: Row) -> dict[str, Any]:
    """A row as it is kept."""
    return {"blocks": row.blocks} | {
        admit: {
            "goodput": round(each.goodput, 1), "of_best": round(each.goodput / row.best, 3),
            "preemptions": each.preemptions, "recompute_share": round(each.recompute_share, 4),
            "occupancy": round(each.occupancy, 4),
        }
        for admit, each in row.outcomes.items()
    }  # fmt: skip


if __name__ == "__main__":
    main()
