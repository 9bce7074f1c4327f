"""Tiny models on disk, written by other people's libraries: GGUF by `gguf`, folders by `safetensors` and torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 2, 4, 2, 8
CORPUS = [
    "It's the first line, with numbers 1234567 and 3.14159; WE'LL see.\r\n\n  indented\tcode = [x for x in y]\n",
    "Ünïcödé, naïve café, 日本語のテキスト, emoji 👩‍👩‍👧 and \u00a0odd spaces  .  the there then therefore",
] * 4


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE that was trained on a few lines; three added tokens come last."""
    rules = Tokenizer(models.BPE())
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rules.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokens = sorted(rules.get_vocab(), key=rules.get_vocab().get)
    merges = [" ".join(merge) for merge in _merges(rules)]
    return [*tokens, "<|begin|>", "<|end|>", "<tool>"], merges


def _merges(rules: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(rules.to_str())["model"]["merges"]]


def weights(architecture: str, seed: int = 0, tied: bool = True) -> dict[str, np.ndarray]:
    """float32 weights under Hugging Face's names."""
    generator = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(vocabulary()[0]), HIDDEN)}
    for layer in range(LAYERS):
        own = {
            "input_layernorm.weight": (HIDDEN,),
            "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            "post_attention_layernorm.weight": (HIDDEN,),
            "mlp.gate_proj.weight": (MLP, HIDDEN),
            "mlp.up_proj.weight": (MLP, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, MLP),
        }
        if architecture == "qwen2":
            own |= {f"self_attn.{p}_proj.bias": own[f"self_attn.{p}_proj.weight"][:1] for p in "qkv"}
        if architecture == "qwen3":
            own |= {f"self_attn.{p}_norm.weight": (HEAD_DIM,) for p in "qk"}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    shapes["model.norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    tensors: Mapping[str, np.ndarray] | None = None,
    pre: str | None = "smollm",
    tokenizer_model: str = "gpt2",
    quantised: gguf.GGMLQuantizationType | None = None,
    extra: Mapping[str, Any] | None = None,
    raw: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A GGUF of `tensors` (Hugging Face's names, as `weights` gives them), converted as llama.cpp's script does.

    `extra` is more metadata, `raw` more tensors under GGUF's own names; `quantised` is the format of matrices.
    """
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model(tokenizer_model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kind = gguf.TokenType
    writer.add_token_types([kind.NORMAL] * (len(tokens) - 3) + [kind.CONTROL, kind.CONTROL, kind.USER_DEFINED])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_eos_token_id(len(tokens) - 2)
    for key, value in (extra or {}).items():
        if key == "general.alignment":
            writer.add_custom_alignment(value)
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], LAYERS)
    for name, tensor in (weights(architecture) if tensors is None else tensors).items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = interleaved(tensor, HEADS if "q_proj" in name else KV_HEADS)
        if quantised is not None and tensor.ndim == 2:
            writer.add_tensor(
                names.get_name(name, (".weight", ".bias")), gguf.quantize(tensor, quantised), raw_dtype=quantised
            )
        else:
            writer.add_tensor(names.get_name(name, (".weight", ".bias")), tensor)
    for name, tensor in (raw or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row, so that nobody needs to trust two reshapes: output row 2i+j of a head is its row j·(d/2)+i."""
    head_dim = rows.shape[0] // heads
    order = [
        head * head_dim + half * (head_dim // 2) + pair
        for head in range(heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return rows[order]
