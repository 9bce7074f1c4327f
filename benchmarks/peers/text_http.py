"""Text over HTTP, as text.py measures it: `headway bench serve` asks every server in turn the first turns of MT-
bench."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from text_others import Others
from text_samples import Samples
from text_sides import Running

#: Requests at each number of concurrent ones.
REQUESTS = {1: 8, 8: 32, 32: 96}


def measure_http(args: argparse.Namespace, sides: list[Running], samples: Samples) -> None:
    """Rounds of all servers in turn at each concurrency, until `--seconds` are over."""
    ends, longest = time.monotonic() + args.seconds, 0.0
    for round_ in range(args.rounds):
        for concurrent in args.only or REQUESTS:
            if time.monotonic() + longest > ends:
                return
            began = time.monotonic()
            for place in range(len(sides)):
                side = sides[(place + round_) % len(sides)]
                others = Others(side.pid)
                row = load(args, side, concurrent, seed=time.time_ns() % (1 << 31))
                cores = others.cores()
                samples.add(
                    what="http", model=args.model, side=side.name, concurrent=concurrent, memory=side.memory(),
                    others=cores, at=round(time.time()), row=row,
                )  # fmt: skip
                print(
                    f"{concurrent:3} at once {side.name:24} {row['output_tok_s']:7.1f} tok/s, gap p99 "
                    f"{row['itl_ms']['p99']:.0f} ms, first token p50 {row['ttft_ms']['p50']:.0f} ms   others "
                    f"{cores:.2f} cores", flush=True,
                )  # fmt: skip
            longest = max(longest, time.monotonic() - began)


def load(args: argparse.Namespace, side: Running, concurrent: int, seed: int) -> dict[str, Any]:
    """One closed loop of streamed chats, 64 tokens each. Raises CalledProcessError, AssertionError if any failed."""
    words = (
        sys.executable, "-m", "headway", "bench", "serve", "--url", f"http://127.0.0.1:{side.port}", "--prompts",
        str(args.folder / "questions.jsonl"), "--concurrent", str(concurrent),
        "--requests", str(REQUESTS[concurrent]), "--output", "64", "--ignore-eos", "--seed", str(seed), "--json",
    )  # fmt: skip
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    row: dict[str, Any] = json.loads(told)["rows"][0]
    assert not row["failed"], row["errors"]
    return row
