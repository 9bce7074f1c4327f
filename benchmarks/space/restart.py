"""A restart with the disk tier: the first token of a long prompt when it is cold, warm, and from disk.

    python -m benchmarks.space.restart FOLDER [--positions 4096] [--rounds 3]

Run it at the root of the repository, on a quiet machine. Three servers, one after the other, share a disk tier in
FOLDER:

cold         the first server has never seen the prompt
warm         the same server again: its state is in the pool
disk         after a restart, the tier's file being dropped from the operating system's cache before
disk, cached after another restart, the file being in that cache

A prompt is random token ids, another one in each round. Measured at the client: from sending the request to the first
token of its stream. The medians over the rounds go to `benchmarks/results/restart.json`, the plot (which needs
matplotlib) beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
from embeddings import RESULTS, headway, machine

MODEL = "smollm2-135m"
VOCAB = 49152
WAYS = ("cold", "warm", "disk", "disk, cached")


def first_token(port: int, prompt: list[int], id: str) -> float:
    """Milliseconds to the first token of an answer to `prompt`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True}
    headers = {"content-type": "application/json", "x-request-id": id}
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(fields), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    for line in answer:
        if line.startswith(b"data: {"):
            break
    took_ms = 1e3 * (time.perf_counter() - began)
    answer.read()
    connection.close()
    return took_ms


def asked(port: int, path: str) -> Any:
    """The JSON of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def ask(port: int, way: str, prompts: Iterable[list[int]], rows: list[dict[str, Any]]) -> None:
    """Each prompt once; a row of each."""
    for number, prompt in enumerate(prompts):
        id = f"{way.replace(', ', '-')}-{number}"
        row = {"way": way, "round": number, "first_token_ms": first_token(port, prompt, id)}
        record = asked(port, f"/v1/requests/{id}")
        rows.append(row | {"reused": record["prefix"]["reused"], "reload": record.get("reload")})


def settle(port: int, positions: int, prompts: int, block_tokens: int = 16) -> None:
    """Wait until all whole blocks of the prompts are on disk."""
    for _ in range(600):
        tiers = {tier["name"]: tier["blocks"] for tier in asked(port, "/v1/pool")["tiers"]}
        if tiers["disk"] >= prompts * (positions // block_tokens):
            return
        time.sleep(0.1)
    raise AssertionError("the blocks do not come to the disk")


def forget(folder: Path) -> None:
    """Drop the tier's file from the operating system's cache."""
    for path in folder.glob("*/blocks"):
        file = os.open(path, os.O_RDWR)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run(folder: Path, positions: int, rounds: int, *options: str) -> dict[str, Any]:
    """All four ways, and what the records say of them."""
    seeded = random.Random(7)
    prompts = [[seeded.randrange(100, VOCAB) for _ in range(positions)] for _ in range(rounds)]
    words = (MODEL, "--disk-tier", str(folder), "--disk-tier-bytes", "2GiB", *options)
    rows: list[dict[str, Any]] = []
    with headway(*words) as port:
        first_token(port, [5, 6, 7], "warms-up")
        for prompt in prompts:
            ask(port, "cold", [prompt], rows)
            ask(port, "warm", [prompt], rows)
        settle(port, positions, rounds)
        facts = asked(port, "/v1/models")["data"][0]["headway"]
    for way in WAYS[2:]:
        if way == "disk":
            forget(folder)
        with headway(*words) as port:
            first_token(port, [5, 6, 7], "warms-up")
            ask(port, way, prompts, rows)
    return {
        "what": f"first token of {MODEL} on a prompt of {positions} positions, across restarts with the disk tier",
        "positions": positions, "rounds": rounds, "rows": rows, "block_bytes": facts["block_bytes"],
        "weights": facts["weights"], **machine(),
    }  # fmt: skip


def medians(result: dict[str, Any]) -> dict[str, float]:
    """The first token of each way, in ms."""
    rows = result["rows"]
    return {way: median(row["first_token_ms"] for row in rows if row["way"] == way) for way in WAYS}


def table(result: dict[str, Any]) -> str:
    """Markdown: a row for each way."""
    found = medians(result)
    lines = ["| | first token, ms | of cold | positions reused |", "|---|---|---|---|"]
    for way, ms in found.items():
        reused = {row["reused"] for row in result["rows"] if row["way"] == way}
        lines.append(f"| {way} | {ms:,.0f} | {ms / found['cold']:.1%} | {', '.join(map(str, sorted(reused)))} |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """A bar for each way, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = medians(result)
    figure, axis = pyplot.subplots(figsize=(7, 3.2))
    bars = axis.barh(list(found), list(found.values()), color=["#888888", "#2a9d8f", "#264653", "#457b9d"])
    axis.bar_label(bars, [f"{ms:,.0f} ms" for ms in found.values()], padding=3, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(right=3 * max(found.values()))
    axis.invert_yaxis()
    axis.set_xlabel("to the first token, ms")
    where = f"{result['cpu']}, {result['cores']} cores, {result['date']}"
    axis.set_title(f"{MODEL}, a prompt of {result['positions']:,} positions; {where}", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--redraw", action="store_true", help="only draw the plot of the result that is there")
    args = parser.parse_args()
    place = RESULTS / "restart.json"
    if args.redraw:
        return plot(json.loads(place.read_text()), place.with_suffix(".png"))
    result = run(args.folder, args.positions, args.rounds)
    place.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    with contextlib.suppress(ImportError):  # the plot is an extra
        plot(result, place.with_suffix(".png"))
    return None


if __name__ == "__main__":
    main()
