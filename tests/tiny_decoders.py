"""Tiny decoders with random weights, by transformers: the oracle of what a text model computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from headway.artifacts.files import ModelFiles
from headway.artifacts.revision import ContentDigest
from headway.compute.text.executor import TextExecutor
from headway.core.plan import Draw, Sampling, Span

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

#: What is told apart → (family, config beyond `SIZES`).
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, untied, with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3 rotation": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, linear rotation": ("Llama", {"rope_parameters": LINEAR}),
    "llama, wide heads": ("Llama", {"head_dim": 16}),
    "llama, one key head each": ("Llama", {"num_key_value_heads": 6}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, with biases": ("Qwen3", {"head_dim": 8, "attention_bias": True}),
}


@dataclass(frozen=True)
class StateDict:
    """A torch module's weights as `Tensors`."""

    arrays: dict[str, np.ndarray]

    def names(self) -> list[str]:
        return list(self.arrays)

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        yield from self.arrays.items()

    def digest(self) -> str:
        content = ContentDigest()
        for name, array in self.arrays.items():
            content.add(name, array.shape, "F32", array)
        return content.text()


def oracle(variant: str) -> transformers.PreTrainedModel:
    family, extra = DECODERS[variant]
    config = getattr(transformers, f"{family}Config")(**SIZES | extra)
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # transformers starts biases at 0 and norms at 1, which hides mistakes
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def files_of(model: transformers.PreTrainedModel, **changed: Any) -> ModelFiles:
    config = model.config.to_dict() | {"architectures": [type(model).__name__]} | changed
    arrays = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    return ModelFiles(
        name="tiny",
        revision="0123456789ab",
        config=config,
        tensors=StateDict(arrays),
        weights_bytes=sum(array.nbytes for array in arrays.values()),
        tokenizer=Path("tokenizer.json"),
        chat_template=None,
        bos_id=None,
        add_bos=False,
        eos_ids=(1,),
        special={},
        source="random weights",
    )


def load(
    model: transformers.PreTrainedModel, cache: Path, weights: str = "fp32", threads: int = 1, **options: Any
) -> TextExecutor:
    return TextExecutor.load(files_of(model), cache=cache, weights=weights, blocks=64, threads=threads, **options)


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, SIZES["vocab_size"], count).tolist())


def greedy(position: int) -> Draw:
    return Draw(index=0, position=position, sampling=Sampling())


def cut(known: tuple[int, ...], blocks: tuple[int, ...], chunk: int, start: int = 0) -> list[Span]:
    """Spans that evaluate `known` from `start` on, `chunk` positions at a time."""
    return [Span(first, known[first : first + chunk], blocks) for first in range(start, len(known), chunk)]


def last_logits(executor: TextExecutor, spans: list[Span]) -> torch.Tensor:
    """Evaluate the spans one per step; the logits after the last position."""
    for span in spans[:-1]:
        executor.logits((span,), [])
    return executor.logits((spans[-1],), [len(spans[-1].tokens) - 1])[0]
