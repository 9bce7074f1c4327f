"""How far a burst of embeddings stretches the gap between tokens, and what is left for it: see README.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
from embeddings import RESULTS, headway, load, machine, texts

SEQUENCES, EMBEDDERS = 8, 16


async def generate(port: int, ends: float, gaps: list[float], begins: float) -> None:
    """One stream after another until `ends`; the gaps between their chunks from `begins` on, in ms."""
    while time.perf_counter() < ends:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        fields = {"model": "smollm2-135m", "prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}
        body = json.dumps(fields).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        before = None
        while time.perf_counter() < ends and (line := await reader.readline()):
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                now = time.perf_counter()
                if before is not None and before >= begins:
                    gaps.append(1e3 * (now - before))
                before = now
        writer.close()


async def phase(port: int, seconds: float, *, text: bool, embed: bool, given: list[str]) -> dict[str, float]:
    """Both loads, or one of them, for `seconds` after a second of warming up."""
    gaps: list[float] = []
    begins = time.perf_counter() + 1
    ends = begins + seconds
    streams = [generate(port, ends, gaps, begins) for _ in range(SEQUENCES if text else 0)]

    async def burst() -> dict[str, float]:
        await asyncio.sleep(1)
        return await load(port, given, EMBEDDERS, seconds)

    *_, embedded = await asyncio.gather(*streams, burst() if embed else asyncio.sleep(0, {"texts_per_s": 0.0}))
    told = {"texts_per_s": embedded["texts_per_s"], "p99_ms": 0.0, "median_ms": 0.0}
    if gaps:
        told |= {"p99_ms": quantiles(gaps, n=100)[98], "median_ms": median(gaps)}
    return told


def run(slowdowns: list[float], seconds: float, rounds: int, weights: str) -> dict[str, Any]:
    """For each bound the medians over `rounds` of the three phases in turn."""
    given, rows = texts(), []
    for slowdown in slowdowns:
        models = [f"smollm2-135m:weights={weights}", "--model", "minilm-l6"]
        with headway(*models, "--max-slowdown", str(slowdown)) as port:
            sides: dict[str, list[dict[str, float]]] = {"text": [], "both": [], "embeddings": []}
            for _ in range(rounds):
                for name, found in sides.items():
                    on = {"text": name != "embeddings", "embed": name != "text"}
                    found.append(asyncio.run(phase(port, seconds, given=given, **on)))
        middle = {
            name: {key: median(each[key] for each in found) for key in found[0]} for name, found in sides.items()
        }
        row = {
            "max_slowdown": slowdown,
            "gap_alone_ms": middle["text"]["median_ms"], "gap_beside_ms": middle["both"]["median_ms"],
            "p99_alone_ms": middle["text"]["p99_ms"], "p99_beside_ms": middle["both"]["p99_ms"],
            "texts_per_s_alone": middle["embeddings"]["texts_per_s"],
            "texts_per_s_beside": middle["both"]["texts_per_s"],
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
    return {"what": "eight sequences beside sixteen embedding clients", "weights": weights, "rows": rows, **machine()}


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| `--max-slowdown` | gap alone, median (p99) ms | gap beside embeddings, median (p99) ms | p99 ratio "
        "| texts/s alone | beside |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in result["rows"]:
        ratio = row["p99_beside_ms"] / row["p99_alone_ms"]
        lines.append(
            f"| {row['max_slowdown']:g} | {row['gap_alone_ms']:.0f} ({row['p99_alone_ms']:.0f}) "
            f"| {row['gap_beside_ms']:.0f} ({row['p99_beside_ms']:.0f}) | {ratio:.2f} "
            f"| {row['texts_per_s_alone']:.0f} | {row['texts_per_s_beside']:.0f} |"
        )
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Gap ratio and the share of the embedding rate that is kept, by bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["rows"]
    names = [f"{row['max_slowdown']:g}" for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5))
    left.bar(names, [row["p99_beside_ms"] / row["p99_alone_ms"] for row in rows], color="tab:orange")
    bounds = {name: row["max_slowdown"] for name, row in zip(names, rows, strict=True) if row["max_slowdown"] < 100}
    left.plot(list(bounds), list(bounds.values()), "k_", markersize=24, label="the bound")
    left.set(title="p99 gap between tokens, beside / alone", xlabel="--max-slowdown")
    left.legend()
    right.bar(names, [row["texts_per_s_beside"] / row["texts_per_s_alone"] for row in rows], color="tab:blue")
    right.set(title="texts embedded per second, beside / alone", xlabel="--max-slowdown", ylim=(0, 1))
    figure.suptitle(f"{result['cpu']}, {result['cores']} cores, {result['date']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slowdowns", nargs="+", type=float, default=[1.5, 2, 3, 1000])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", default="bf16")
    args = parser.parse_args()
    result = run(args.slowdowns, args.seconds, args.rounds, args.weights)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "text_and_embeddings.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    with contextlib.suppress(ImportError):  # the plot is an extra
        plot(result, RESULTS / "text_and_embeddings.png")


if __name__ == "__main__":
    main()
