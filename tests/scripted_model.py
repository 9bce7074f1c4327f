"""A model that says what a test wants: each of its tokens is followed by one certain token.

A Llama whose attention and MLP add nothing: the state is the last token, one value for each, and the output layer
names the next one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|im_end|>"
_HEADS = 4
_STRENGTH = 2.0  # the next token's logit is this times the root of the width, the others' are 0


def write_scripted(
    folder: Path, template: str, scripts: Sequence[Sequence[str]], special: Sequence[str] = ()
) -> Path:
    """A folder with a model that continues each script's first piece with the others, and then ends.

    Every piece is a token of its own, so a piece that occurs twice must be followed by the same one. Those in
    `special` are special tokens. The first pieces are known to the template as any text.
    """
    rules = Tokenizer(models.BPE(vocab=_bytes(), merges=[]))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rules.decoder = decoders.ByteLevel()
    pieces = list(dict.fromkeys(piece for script in scripts for piece in script))
    rules.add_tokens([piece for piece in pieces if piece not in special])
    rules.add_special_tokens([END, *special])
    folder.mkdir(parents=True, exist_ok=True)
    rules.save(str(folder / "tokenizer.json"))
    follows = {
        rules.token_to_id(piece): rules.token_to_id(follower)
        for script in scripts
        for piece, follower in zip(script, [*script[1:], END], strict=True)
    }
    size = rules.get_vocab_size()
    width = -(-size // (2 * _HEADS)) * 2 * _HEADS
    save_file(_weights(size, width, follows), folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": width,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": _HEADS, "num_key_value_heads": _HEADS,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "eos_token_id": rules.token_to_id(END),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    told = {"eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


def _bytes() -> dict[str, int]:
    return {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _weights(size: int, width: int, follows: dict[int, int]) -> dict[str, np.ndarray]:
    embedding, output = np.zeros((size, width), np.float32), np.zeros((size, width), np.float32)
    embedding[np.arange(size), np.arange(size)] = 1.0
    for token, follower in follows.items():
        output[follower, token] = _STRENGTH
    nothing, one = np.zeros((width, width), np.float32), np.ones(width, np.float32)
    layer = {
        **{f"self_attn.{name}_proj.weight": nothing.copy() for name in "qkvo"},
        **{f"mlp.{name}_proj.weight": np.zeros((8, width), np.float32) for name in ("gate", "up")},
        "mlp.down_proj.weight": np.zeros((width, 8), np.float32),
        "input_layernorm.weight": one.copy(),
        "post_attention_layernorm.weight": one.copy(),
    }
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": output,
        "model.norm.weight": one,
        **{f"model.layers.0.{name}": tensor for name, tensor in layer.items()},
    }
