"""How long others wait for a token while long prompts are evaluated, with a fixed step budget and with one in time.

    python benchmarks/serving/gap.py [--rounds 3]

Eight streams decode while prompts of 2,000 tokens arrive, all by `headway bench serve`; a server for each side, in
turn.
Prints a table; JSON goes to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
from embeddings import RESULTS, headway, machine

SIDES = {"--step-tokens 512": ("--step-tokens", "512"), "--step-tokens auto": ()}


def bench(port: int, *words: str) -> subprocess.Popen[str]:
    asked = ("--url", f"http://127.0.0.1:{port}", "--warmup", "0", "--json", *words)
    return subprocess.Popen(
        [sys.executable, "-m", "headway", "bench", "serve", *asked], stdout=subprocess.PIPE, text=True
    )


def row(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.communicate()[0])["rows"][0]
    return found


def measure(port: int, tokens: int, prompts: int, round: int) -> dict[str, float]:
    row(bench(port, "--input", "600", "--output", "8", "--requests", "2", "--seed", f"{round}00"))
    streams = ("--input", "16", "--output", str(tokens), "--requests", "8", "--concurrent", "8")
    decoding = bench(port, *streams, "--seed", str(round))
    time.sleep(1)  # they are under way
    long = ("--input", "2000", "--output", "1", "--requests", str(prompts), "--rate", "0.5")
    arriving = row(bench(port, *long, "--seed", f"{round}1"))
    found = row(decoding)
    return {
        "gap_p50_ms": found["itl_ms"]["p50"],
        "gap_p99_ms": found["itl_ms"]["p99"],
        "gap_longest_ms": found["itl_ms"]["max"],
        "decode_tok_s": found["output_tok_s"],
        "prompt_ttft_p50_ms": arriving["ttft_ms"]["p50"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--tokens", type=int, default=300, help="of each of the eight streams")
    parser.add_argument("--prompts", type=int, default=4)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for round in range(args.rounds):
        for side, options in SIDES.items():
            with headway("--threads", args.threads, *options) as port:
                runs[side].append(measure(port, args.tokens, args.prompts, round))
            print(side, json.dumps(runs[side][-1]), file=sys.stderr)
    rows = {side: {key: median(run[key] for run in found) for key in found[0]} for side, found in runs.items()}
    RESULTS.mkdir(exist_ok=True)
    result = {"what": "eight streams beside prompts of 2,000 tokens", "rows": rows, "runs": runs, **machine()}
    (RESULTS / "gap.json").write_text(json.dumps(result, indent=1) + "\n")
    print("| | gap, p50 | p99 | longest | decode tok/s | a prompt's first token |\n|---|---|---|---|---|---|")
    for side, found in rows.items():
        cells = [f"{found[key]:.0f}" for key in found]
        print(f"| `{side}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
