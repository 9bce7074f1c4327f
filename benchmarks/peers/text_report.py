"""What the samples of text.py say: medians as JSON and Markdown tables, and a plot."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from text_plot import PANELS, bars, curves, ours

RESULTS = Path(__file__).parent.parent / "results"
Sample = dict[str, Any]
Rows = dict[str, dict[str, dict[str, float]]]


def decode(sample: Sample) -> float:
    """Tokens per second after every sequence had its first."""
    return sample["after"] / (sample["took_s"] - sample["first_s"])


def prefill(sample: Sample) -> float:
    return sample["sequences"] * sample["prompt"] / sample["took_s"]


def whole(sample: Sample) -> float:
    """Prompt and answer tokens per second of the whole job."""
    return sample["sequences"] * (sample["prompt"] + sample["emits"]) / sample["took_s"]


def gather(samples: Iterable[Sample]) -> Rows:
    """By measure, then side: the median, the extremes and the number of rounds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for measure, value in measures(sample):
            found[measure][sample["side"]].append(value)
    return {
        measure: {
            side: {"median": median(values), "low": min(values), "high": max(values), "rounds": len(values)}
            for side, values in sides.items()
        }
        for measure, sides in found.items()
    }


def measures(sample: Sample) -> Iterable[tuple[str, float]]:
    """Names and values of what a sample measured."""
    what = sample["what"]
    if what in ("about", "bandwidth"):
        return
    model = "" if sample["model"] == "smollm2-135m" else f"{sample['model']}: "
    if what == "http":
        row, at = sample["row"], f"HTTP {sample['concurrent']}"
        yield f"{model}{at}, output tok/s", row["output_tok_s"]
        if sample["concurrent"] == 1:
            yield f"{model}{at}, decode tok/s", 1e3 / row["tpot_ms"]["mean"]
        yield f"{model}{at}, p99 gap ms", row["itl_ms"]["p99"]
        yield f"{model}{at}, p50 first token ms", row["ttft_ms"]["p50"]
        return
    if what == "memory":
        for part in ("replica", "weights", "pool", "beyond"):
            yield f"{model}memory: {part}, MiB", sample[f"{part}_mib"]
        return
    sequences, prompt = sample["sequences"], sample["prompt"]
    if what == "table":
        yield f"{model}decode {sequences}", decode(sample)
        if sequences == 32:
            yield f"{model}whole job 32", whole(sample)
    elif what in ("prefill", "long"):
        yield f"{model}prefill {sequences} x {prompt:,}", prefill(sample)
    elif what == "busy":
        beside = " beside a busy process" if sample["busy"] else ""
        yield f"{model}decode {sequences}{beside}", decode(sample)
    elif what == "sequences":
        yield f"{model}decode of {sequences} sequences", decode(sample)
    elif what == "contexts":
        yield f"{model}decode after {prompt:,} positions", decode(sample)


#: A sample counts if others kept no more than this many cores busy meanwhile.
MOST_OTHERS = 0.15


#: Between these many cores, others were as good as one busy process.
ONE_BUSY = (0.8, 1.2)


def undisturbed(sample: Sample) -> bool:
    """Whether it was alone, or is about being beside one busy process. A sample that was beside one by chance becomes
    about that."""
    others = sample.get("others", 0.0)
    if sample["what"] in ("table", "busy") and ONE_BUSY[0] <= others <= ONE_BUSY[1]:
        sample |= {"what": "busy", "busy": True}
        return True
    return others <= MOST_OTHERS


def report(samples: list[Sample], machine: dict[str, Any]) -> None:
    """Write text_peers.json and text_peers.png, and print tables."""
    kept = [sample for sample in samples if undisturbed(sample)]
    rows = gather(kept)
    versions = {
        sample["side"]: sample["about"] for sample in samples if sample["what"] == "about" and sample["about"]
    }
    memory: dict[str, int] = defaultdict(int)
    for sample in samples:
        if "memory" in sample:
            memory[sample["side"]] = max(memory[sample["side"]], sample["memory"] >> 20)
    ready = {sample["side"]: round(sample["ready_s"], 1) for sample in samples if sample["what"] == "about"}
    result = {
        "what": "text generation beside peers", "machine": machine, "versions": versions, "rows": rows,
        "left_out_as_disturbed": len(samples) - len(kept), "most_others_cores": MOST_OTHERS,
        "most_memory_mib": dict(memory), "ready_s": ready, "bandwidth": bandwidth(samples),
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "text_peers.json").write_text(json.dumps(result, indent=1) + "\n")
    for title, wanted in TABLES.items():
        columns = [measure for measure in rows if wanted(measure)]
        if columns:
            print(f"\n{title}\n\n{table(rows, columns)}")
    for limit in result["bandwidth"]:
        print(f"\n{limit['says']}")
    with contextlib.suppress(ImportError):  # plots are an extra
        bars(result, RESULTS / "text_peers.png")
        curves(result, RESULTS / "text_peers_curves.png")


def bandwidth(samples: list[Sample]) -> list[dict[str, Any]]:
    """For each side of Headway whose weights are known, how near to the machine's limit it decodes one sequence: what
    memory gives, over the bytes of weights that a token needs."""
    rates = [sample["bytes_s"] for sample in samples if sample["what"] == "bandwidth"]
    alone = gather(sample for sample in samples if undisturbed(sample))
    found = []
    for sample in samples if rates else ():
        read = sample["about"].get("read_bytes") if sample["what"] == "about" else None
        if not read or sample["model"] != "smollm2-135m":
            continue
        side, limit = sample["side"], median(rates) / read
        decodes = {"in process": alone.get("decode 1", {}).get(side)}
        served = side.replace("headway-", "headway-serve-", 1)
        decodes["over HTTP"] = alone.get("HTTP 1, decode tok/s", {}).get(served)
        parts = {where: row["median"] / limit for where, row in decodes.items() if row}
        says = ", ".join(f"{part:.2f} of it {where}" for where, part in parts.items())
        words = f"{side}: {median(rates) / 1e9:.1f} GB/s over {read / 1e6:.1f} MB is {limit:.0f} tok/s; {says}"
        found = [each for each in found if each["side"] != side] + [
            {
                "side": side,
                "bytes_s": median(rates),
                "read_bytes": read,
                "limit_tok_s": limit,
                "part": parts,
                "says": words,
            }
        ]
    return found


TABLES: dict[str, Callable[[str], bool]] = {
    "tok/s": lambda name: name in {*PANELS, "whole job 32"} and not name.startswith("HTTP"),
    "over HTTP": lambda name: name.startswith("HTTP"),
    "beside a busy process": lambda name: "busy" in name,
    "by number of sequences": lambda name: name.startswith("decode of"),
    "by context": lambda name: name.startswith("decode after"),
    "memory": lambda name: name.startswith("memory"),
    "another model": lambda name: ": " in name and not name.startswith("memory"),
}  # fmt: skip


def table(rows: Rows, columns: list[str]) -> str:
    """Markdown: a row for each side, and one for the best of Headway over the best of the others."""
    sides = list(dict.fromkeys(side for column in columns for side in rows[column]))
    sides.sort(key=lambda side: (not ours(side), side))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for side in sides:
        cells = [f"{rows[column][side]['median']:,.0f}" if side in rows[column] else "" for column in columns]
        lines.append(f"| {side} | " + " | ".join(cells) + " |")
    lines.append(
        "| best of Headway / best peer | " + " | ".join(_ratio(rows[column], column) for column in columns) + " |"
    )
    return "\n".join(lines)


def _ratio(row: dict[str, dict[str, float]], column: str) -> str:
    pick = min if column.endswith("ms") else max
    best = {
        mine: pick((found["median"] for side, found in row.items() if ours(side) is mine), default=None)
        for mine in (True, False)
    }
    return f"{best[True] / best[False]:.2f}" if best[True] and best[False] else ""
