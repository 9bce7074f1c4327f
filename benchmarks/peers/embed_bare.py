"""Texts per second of the bare encoder against sentence-transformers, same model and texts, alternating in one run.

    python benchmarks/peers/embed_bare.py [MODEL] [--texts 256] [--threads 2] [--rounds 5]

Needs sentence-transformers beside Headway. Mixed lengths: log-uniform from 4 to 250 words. Headway's steps hold up
to 512 positions, in the order in which a server that goes by length would take them; sentence-transformers sorts by
length and pads. Printed are the medians of the rounds, and their ratio; then the time of one and of four short texts
against the bare transformers model, padding and tokenising left out on both sides.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from headway.artifacts import resolve
from headway.compute.embed.executor import EncoderExecutor
from headway.core.plan import Evaluate, StepPlan

STEP_POSITIONS = 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="minilm-l6")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    files = resolve(args.model)
    peer = SentenceTransformer(str(files.tokenizer.parent), device="cpu")
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(4), np.log(250), args.texts)).astype(int)
    words = [word for word in peer.tokenizer.get_vocab() if word.isalpha() and len(word) > 3]
    texts = [" ".join(rng.choice(words, length)) for length in lengths]
    items = [Evaluate(tuple(peer.tokenizer(text, truncation=True, max_length=256)["input_ids"])) for text in texts]
    sides: dict[str, Callable[[], object]] = {
        "sentence-transformers": lambda: peer.encode(texts, batch_size=args.batch),
        "transformers, ids given": lambda: _padded(peer, items, args.batch),
    }
    executors = {}
    for weights in ("fp32", "bf16", "int8"):
        executors[weights] = EncoderExecutor.load(files, cache=Path("unused"), weights=weights)
        sides[f"headway {weights}"] = lambda executor=executors[weights]: _steps(executor, items)
    medians = _medians(sides, args.rounds)
    print(f"{args.model}, {args.texts} texts of 4 to 250 words, {args.threads} threads")
    for name, seconds in medians.items():
        ratio = medians["sentence-transformers"] / seconds
        print(f"  {name:26} {args.texts / seconds:8.1f} texts/s   {ratio:5.2f} ×")
    for count in (1, 4):
        few = tuple(items[int(i)] for i in np.argsort(lengths)[args.texts // 2 : args.texts // 2 + count])
        sides = {"transformers": lambda few=few: _padded(peer, few, len(few))}
        for weights, executor in executors.items():
            sides[f"headway {weights}"] = lambda executor=executor, few=few: executor.run(StepPlan(0, few))
        medians = _medians(sides, args.rounds * 20)
        told = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in medians.items())
        print(f"  {count} text(s) of {[len(item.tokens) for item in few]} tokens: {told}")


def _steps(executor: EncoderExecutor, items: Sequence[Evaluate]) -> None:
    step: list[Evaluate] = []
    for item in sorted(items, key=lambda item: len(item.tokens)):
        if step and sum(each.cost for each in step) + item.cost > STEP_POSITIONS:
            executor.run(StepPlan(0, tuple(step)))
            step = []
        step.append(item)
    executor.run(StepPlan(0, tuple(step)))


@torch.inference_mode()
def _padded(peer: SentenceTransformer, items: Sequence[Evaluate], batch: int) -> None:
    ordered = sorted(items, key=lambda item: -len(item.tokens))
    for first in range(0, len(ordered), batch):
        part = ordered[first : first + batch]
        ids = torch.zeros(len(part), len(part[0].tokens), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(part):
            ids[row, : len(item.tokens)] = torch.tensor(item.tokens)
            mask[row, : len(item.tokens)] = 1
        states = peer[0].model(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        torch.nn.functional.normalize(pooled).numpy()


def _medians(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each side, which take turns; the first round is left out."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


if __name__ == "__main__":
    main()
