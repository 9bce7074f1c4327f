"""Draws the two stories of `recovery_loop.py` over time, from its result.

    python -m benchmarks.space.recovery_plot RESULT.json FILE.png

Run it at the root of the repository.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

TITLES = {"eager": "Admission is too eager", "short": "Memory is short"}
COLOURS = {"calm": "#eef5ee", "loop": "#fde5e2", "cut": "#e6eefb", "advised": "#eef5ee"}
LINES = {"came": "#8a8a8a", "admitted": "#1f5fbf", "recomputed": "#c0392b", "goodput": "#1e7d4f"}


def spans(story: dict[str, Any], calm_s: int, restart_s: int) -> list[tuple[float, float, str, str]]:
    """From second to second: which of `COLOURS`, and what it is called."""
    found: list[tuple[float, str, str]] = [(0, "calm", "calm"), (calm_s, "loop", "loop")]
    cuts = 0
    for told in story["told"]:
        if told["at_s"] >= restart_s:
            break
        if told["phase"] == "began":
            cuts += 1
            found.append((told["at_s"], "cut", "admission cut" if cuts == 1 else "cut for longer"))
        elif told["phase"] == "over":
            found.append((told["at_s"], "loop", "lifted,\nloop again"))
    found.append((restart_s, "advised", "restarted,\nas advised"))
    end = story["seconds"][-1]["second"] + 1.0
    return [(a[0], b[0], a[1], a[2]) for a, b in pairwise([*found, (end, "", "")])]


def plot(document: dict[str, Any], path: str) -> None:
    """A column for each story: requests, recomputed positions and goodput by second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    stories = document["stories"]
    figure, axes = pyplot.subplots(
        3, len(stories), figsize=(7 * len(stories), 7.6), sharex="col", squeeze=False, height_ratios=(1, 1, 1)
    )
    for column, (name, story) in enumerate(stories.items()):
        three = [axes[row][column] for row in range(3)]
        marked = spans(story, document["calm_s"], document["restart_s"])
        seconds = [each["second"] + 0.5 for each in story["seconds"]]
        shown: tuple[tuple[str, Iterable[str]], ...] = (
            ("requests/s", ("came", "admitted")),
            ("recomputed positions/s", ("recomputed",)),
            ("goodput, tokens/s", ("goodput",)),
        )
        for axis, (label, keys) in zip(three, shown, strict=True):
            for begin, end, kind, _ in marked:
                axis.axvspan(begin, end, color=COLOURS[kind], lw=0, zorder=0)
            for begin, _, _, _ in marked[1:]:
                axis.axvline(begin, color="#999999", lw=0.7, ls=":", zorder=1)
            for key in keys:
                values = [each[key] for each in story["seconds"]]
                axis.plot(seconds, values, color=LINES[key], lw=1.8, zorder=3, label=key)
                if key == "recomputed":
                    axis.fill_between(seconds, values, color=LINES[key], alpha=0.25, lw=0, zorder=2)
            axis.set_ylim(0, 1.18 * max(each[key] for key in keys for each in story["seconds"]))
            axis.set_xlim(0, marked[-1][1])
            axis.set_ylabel(label if not column else "")
            axis.yaxis.set_major_formatter("{x:,.0f}")
            axis.spines[["top", "right"]].set_visible(False)
        _name_spans(three[0], marked)
        three[0].set_title(TITLES[name], loc="left", fontsize=13, fontweight="bold", pad=34)
        three[0].legend(loc="lower right", ncols=2, fontsize=9, frameon=False)
        three[2].set_xlabel(f"seconds; from {document['restart_s']} s on: {story['advised']}")
    figure.align_ylabels()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _name_spans(axis: Any, marked: Sequence[tuple[float, float, str, str]]) -> None:
    """Above the axis."""
    for begin, end, _, words in marked:
        axis.text((begin + end) / 2, 1.03, words, transform=axis.get_xaxis_transform(), ha="center", va="bottom",
                  fontsize=9)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("image")
    args = parser.parse_args()
    plot(json.loads(args.result.read_text(encoding="utf-8")), args.image)


if __name__ == "__main__":
    main()
