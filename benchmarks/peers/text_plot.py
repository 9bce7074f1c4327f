"""Plots of what text.py measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: What the bars show.
PANELS = (
    "decode 1", "decode 8", "decode 32", "prefill 32 x 128", "prefill 1 x 512", "prefill 1 x 8,000",
    "HTTP 1, output tok/s", "HTTP 8, output tok/s", "HTTP 32, output tok/s",
)  # fmt: skip
#: Of each kind of side a colour.
OURS, THEIRS = ("#c8502d", "#e08b3e", "#7a2e1d", "#f0b890"), ("#5b6b7c", "#9aa5b1", "#2f6f8f", "#7fb3a6", "#8d7bb0")


def ours(side: str) -> bool:
    return side.startswith("headway")


def bars(result: dict[str, Any], path: Path) -> None:
    """A panel for each measure, the sides in it by speed; bars to the median, lines from the slowest round to the
    quickest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["rows"]
    if not (panels := [panel for panel in PANELS if panel in rows]):
        return
    down = -(-len(panels) // 3)
    figure, axes = pyplot.subplots(down, 3, figsize=(13, 0.6 + 2.9 * down), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for panel, axis in zip(panels, axes.flat, strict=False):
        sides = sorted(rows[panel], key=lambda side: rows[panel][side]["median"])
        found = [rows[panel][side] for side in sides]
        values = [each["median"] for each in found]
        errors = [[each["median"] - each["low"] for each in found], [each["high"] - each["median"] for each in found]]
        colours = ["#c8502d" if ours(side) else "#9aa5b1" for side in sides]
        axis.barh(sides, values, color=colours, xerr=errors, error_kw={"lw": 0.7, "ecolor": "#444444"})
        axis.set_title(panel.replace(", output tok/s", " at once, output") + ", tok/s", fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        for place, each in enumerate(found):
            axis.text(each["high"], place, f" {each['median']:,.0f}", va="center", fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"smollm2-135m, 2 threads, 128 in / 64 out, greedy; {_machine(result)}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


CURVES = {
    "decode of (.+) sequences": "sequences, 128 positions each",
    "decode after (.+) positions": "positions before, one sequence",
}


def curves(result: dict[str, Any], path: Path) -> None:
    """Decode by the number of sequences and by the context, a line for each side; nothing if neither was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = {label: _lines(result["rows"], pattern) for pattern, label in CURVES.items()}
    lines = {label: found for label, found in lines.items() if found}
    if not lines:
        return
    figure, axes = pyplot.subplots(1, len(lines), figsize=(6.5 * len(lines), 4), squeeze=False)
    for (label, found), axis in zip(lines.items(), axes.flat, strict=True):
        colours = {True: iter(OURS), False: iter(THEIRS)}
        for side in sorted(found, key=lambda side: (not ours(side), side)):
            places, values = zip(*sorted(found[side].items()), strict=True)
            axis.plot(places, values, marker="o", ms=3, color=next(colours[ours(side)], "black"), label=side)
        axis.set_xscale("log", base=2)
        axis.set_xticks(
            ticks := sorted({place for line in found.values() for place in line}), [f"{t:,}" for t in ticks]
        )
        axis.set_xlabel(label, fontsize=8)
        axis.set_title("decode, tok/s", fontsize=9, loc="left")
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"smollm2-135m, 2 threads; {_machine(result)}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _lines(rows: dict[str, Any], pattern: str) -> dict[str, dict[int, float]]:
    """By side, the median at each number that the measure's name has."""
    found: dict[str, dict[int, float]] = {}
    for measure, sides in rows.items():
        if (named := re.fullmatch(pattern, measure)) is not None:
            for side, row in sides.items():
                found.setdefault(side, {})[int(named[1].replace(",", ""))] = row["median"]
    return found


def _machine(result: dict[str, Any]) -> str:
    about = result["machine"]
    return f"{about['cpu']}, {about['cores']} cores, {about['capability']}, {about['date']}"
