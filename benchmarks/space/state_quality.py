"""What the data type of the state does to quality: the perplexity of smollm2-135m on this project's own prose.

    python -m benchmarks.space.state_quality [--out FILE.json]

Weights are fp32 on both sides, so only the state (KV cache) differs.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.bench.machine import machine
from headway.compute.text.executor import TextExecutor
from headway.core.plan import Score, Span, StepPlan
from headway.text.tokenizer import Tokenizer

#: Positions of a window, and those of them that a step evaluates: the later ones read state that was stored before.
WINDOW, CHUNK, WINDOWS = 1024, 128, 8
TEXTS = ("README.md", "CHANGELOG.md", "docs/api.md", "docs/speed.md", "LICENSE")


def perplexity(state: str, windows: list[tuple[int, ...]]) -> float:
    """Of all tokens of the windows but the first of each."""
    files = resolve("smollm2-135m")
    executor = TextExecutor.load(
        files, cache=Cache.at(None).converted, weights="fp32", state=state, blocks=WINDOW // 16 + 1,
        max_step_positions=CHUNK,
    )  # fmt: skip
    blocks, logprobs = tuple(range(WINDOW // 16 + 1)), []
    for tokens in windows:
        for start in range(0, WINDOW, CHUNK):
            following = tokens[start + 1 : start + CHUNK + 1]
            span = Span(start, tokens[start : start + CHUNK], blocks, score=Score(0, following, 0))
            (result,) = executor.run(StepPlan(start, (span,))).results
            logprobs += [each.logprob for each in result.scores]
    return math.exp(-sum(logprobs) / len(logprobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    text = "\n".join(Path(name).read_text(encoding="utf-8") for name in TEXTS)
    tokens = Tokenizer(resolve("smollm2-135m")).encode(text)
    windows = [tuple(tokens[i * WINDOW : (i + 1) * WINDOW]) for i in range(min(WINDOWS, len(tokens) // WINDOW))]
    found = {state: perplexity(state, windows) for state in ("fp32", "bf16")}
    change = found["bf16"] / found["fp32"] - 1
    print(f"{len(windows)} windows of {WINDOW} tokens: {found}, bf16 changes it by {change:+.4%}")
    if args.out:
        document = {**machine(), "windows": len(windows), "window": WINDOW, "perplexity": found, "change": change}
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
