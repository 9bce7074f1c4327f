"""A GGUF file's metadata as the dictionary that Hugging Face's `config.json` would hold.

Every metadata key of the architecture must be known: one that is not could change what the model computes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headway.artifacts.gguf_header import Header
from headway.core.errors import ArtifactError, UnsupportedModel

ROPE_FREQS = "rope_freqs.weight"
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_REQUIRED = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
#: Read below, or without effect on the result (`rope.scaling.finetuned` says how the weights came about).
_OTHER = {
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
}
#: Meta's choice for Llama 3.1 and later (`rope_scaling` of their config.json), all but the factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def translate(name: str, header: Header, rope_freqs: np.ndarray | None) -> dict[str, Any]:
    """Raises UnsupportedModel, naming what is not implemented."""
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture is None:
        raise missing(name, "general.architecture")
    if architecture not in _CLASSES:
        raise UnsupportedModel(name, f"the GGUF architecture {architecture!r}")
    if metadata.get("split.count", 0) > 1:
        raise UnsupportedModel(name, f"a GGUF split over {metadata['split.count']} files (merge them first)")
    prefix = architecture + "."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    _refuse_missing(name, prefix, metadata)
    _refuse_unknown(name, prefix, own)
    _refuse_layers_that_differ(name, prefix, own)
    _refuse_nonsense(name, prefix, own)
    config = {key: own[source] for key, source in _REQUIRED.items()}
    heads = config["num_attention_heads"]
    head_dim = own.get("attention.key_length", config["hidden_size"] // heads)
    _refuse_shapes(name, prefix, own, head_dim)
    names = {tensor.name for tensor in header.tensors}
    theta = own.get("rope.freq_base", 10000.0)
    return config | {
        "architectures": [_CLASSES[architecture]],
        "model_type": architecture,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_act": "silu",
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(name, own, rope_freqs, theta, head_dim),
        # Qwen2's biases belong to its architecture: its config has no such key.
        "attention_bias": architecture != "qwen2" and "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "tie_word_embeddings": "output.weight" not in names,
    }


def _refuse_missing(name: str, prefix: str, metadata: dict[str, Any]) -> None:
    required = [prefix + key for key in _REQUIRED.values()]
    for key in (*required, "tokenizer.ggml.tokens"):
        if key not in metadata:
            raise missing(name, key)


def missing(name: str, key: str) -> ArtifactError:
    """The error for a key that must be there: to guess at it would change what the model computes."""
    return ArtifactError(f"{name}: required GGUF key {key} is missing")


def _refuse_nonsense(name: str, prefix: str, own: dict[str, Any]) -> None:
    counts = {"attention.head_count_kv", "attention.key_length", *_REQUIRED.values()} - {_REQUIRED["rms_norm_eps"]}
    for key in sorted(counts & own.keys()):
        if not isinstance(own[key], int) or own[key] < 1:
            raise ArtifactError(f"{name}: GGUF key {prefix}{key} is {own[key]!r}; it must be a number above 0")
    for key in (_REQUIRED["rms_norm_eps"], "rope.freq_base", "rope.scaling.factor"):
        value = own.get(key, 1.0)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ArtifactError(f"{name}: GGUF key {prefix}{key} is {value!r}; it must be a number above 0")


def _refuse_unknown(name: str, prefix: str, own: dict[str, Any]) -> None:
    known = {*_REQUIRED.values(), *_OTHER}
    for key, value in own.items():
        # A feature that is present but off (`expert_count` = 0) needs nothing.
        if key not in known and value not in (0, False):
            raise UnsupportedModel(name, f"the GGUF key {prefix}{key} = {value!r}")


def _refuse_layers_that_differ(name: str, prefix: str, own: dict[str, Any]) -> None:
    for key in (*_REQUIRED.values(), "attention.head_count_kv"):
        if isinstance(own.get(key), np.ndarray):
            raise UnsupportedModel(name, f"a different {prefix}{key} per layer")


def _refuse_shapes(name: str, prefix: str, own: dict[str, Any], head_dim: int) -> None:
    """Refuse heads of several sizes, and rotation of a part of each head."""
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, head_dim) != head_dim:
            raise UnsupportedModel(name, f"{prefix}{key} = {own[key]} with a head dimension of {head_dim}")


def _rope_scaling(
    name: str, own: dict[str, Any], freqs: np.ndarray | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    kind = own.get("rope.scaling.type", "none")
    if kind == "none" and freqs is None:
        return None
    if kind == "none" and freqs is not None:
        scaling = {"rope_type": "llama3", "factor": float(freqs.max()), **_LLAMA3}
        if np.allclose(freqs, llama3_divisors(scaling, theta, head_dim), rtol=1e-4):
            return scaling
        raise UnsupportedModel(name, f"custom RoPE frequencies ({ROPE_FREQS}) that are not Llama 3's")
    if kind == "linear" and freqs is None:
        if "rope.scaling.factor" not in own:
            raise missing(name, "rope.scaling.factor")
        return {"rope_type": "linear", "factor": own["rope.scaling.factor"]}
    raise UnsupportedModel(name, f"RoPE scaling of type {kind!r}")


def llama3_divisors(scaling: dict[str, Any], theta: float, head_dim: int) -> np.ndarray:
    """What Llama 3.1's scaling divides each rotary frequency by, shape (head_dim / 2,).

    Wavelengths under original/high keep their frequency, those over original/low are divided by the factor, and
    between them 1/divisor is interpolated linearly in original/wavelength (Meta's `apply_scaling`).
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (scaling["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    divisors: np.ndarray = 1.0 / ((1.0 - smooth) / scaling["factor"] + smooth)
    return divisors
