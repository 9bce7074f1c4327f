"""A program: do the bits of a tiny model's logits depend on batch composition, on the processor that its environment
allows?

Prints one line of JSON: what was told of the kernels, and each comparison that failed. It loads no transformers, so
that it runs in two seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from headway.artifacts.files import ModelFiles
from headway.artifacts.revision import ContentDigest
from headway.compute.models.spec import DecoderSpec
from headway.compute.text.executor import TextExecutor
from headway.compute.text.weights import parts
from headway.core.plan import Span

#: (heads, key and value heads, size of a head): the default model's, a small one, and one key head for all.
SHAPES = ((9, 3, 64), (6, 2, 16), (4, 1, 128))
ROOM = tuple(range(40))


class Random:
    """Random weights for every part of a decoder."""

    def __init__(self, spec: DecoderSpec) -> None:
        draw = np.random.default_rng(5)
        self._arrays = {
            name: draw.standard_normal(part.shape).astype(np.float32) * 0.2 for name, part in parts(spec).items()
        }

    def names(self) -> list[str]:
        return list(self._arrays)

    def read(self):
        yield from self._arrays.items()

    def digest(self) -> str:
        content = ContentDigest()
        for name, array in self._arrays.items():
            content.add(name, array.shape, "F32", array)
        return content.text()


def files(heads: int, kv_heads: int, head_dim: int) -> ModelFiles:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 97,
        "max_position_embeddings": 1024, "tie_word_embeddings": True,
    }  # fmt: skip
    name = f"{heads}-{kv_heads}-{head_dim}"
    tensors = Random(DecoderSpec.from_config(config, name))
    return ModelFiles(
        name, f"{heads}{kv_heads}{head_dim}", config, tensors, 0, Path(), None, None, False, (1,), {}, ""
    )


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 97, count).tolist())


def whole(executor: TextExecutor, known: tuple[int, ...]) -> torch.Tensor:
    return executor.logits((Span(0, known, ROOM),), [len(known) - 1])[0]


def in_chunks(executor: TextExecutor, known: tuple[int, ...], chunk: int) -> torch.Tensor:
    for start in range(0, len(known), chunk):
        part = known[start : start + chunk]
        last = executor.logits((Span(start, part, ROOM),), [len(part) - 1])[0]
    return last


def with_others(executor: TextExecutor, known: tuple[int, ...], others: int) -> torch.Tensor:
    """The last position beside `others` prompts of other lengths."""
    executor.logits((Span(0, known[:-1], ROOM),), [])
    spans = tuple(Span(0, tokens(1 + i % 5, i), (40 + i,)) for i in range(others))
    row = sum(len(span.tokens) for span in spans)
    return executor.logits((*spans, Span(len(known) - 1, known[-1:], ROOM)), [row])[0]


def differing(executor: TextExecutor) -> list[str]:
    found = []
    for length in (7, 40, 130, 300):
        known = tokens(length)
        expected = whole(executor, known)
        found += [
            f"{length} positions, {chunk} at a time"
            for chunk in (1, 3, 16, 50, 129)
            if chunk * 20 > length and not torch.equal(in_chunks(executor, known, chunk), expected)
        ]
        found += [
            f"{length} positions beside {others}"
            for others in (1, 7, 24)
            if not torch.equal(with_others(executor, known, others), expected)
        ]
    return found


def main() -> None:
    told, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            for weights in ("fp32", "bf16")[: 2 if shape == SHAPES[1] else 1]:
                executor = TextExecutor.load(
                    files(*shape),
                    cache=Path(folder),
                    blocks=64,
                    weights=weights,
                    threads=2,
                    max_step_positions=600,
                    native="off",
                )
                told.append(executor.facts.kernels["attention"])
                wrong += [f"{shape}, {weights}: {what}" for what in differing(executor)]
    json.dump({"kernels": sorted(set(told)), "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
