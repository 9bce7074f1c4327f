"""What a decoder-only text model is made of, read from its `config.json`; what is not implemented is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.compute.models.numbers import count, positive
from headway.compute.models.rope import Rope
from headway.core.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture reads the config's bias and norm switches.

    qkv_bias, o_bias, mlp_bias   True: always; False: never; a string: the config's key that says so
    qk_norm                      queries and keys are normalised per head before the rotation
    windowed                     `sliding_window` is in effect unless `use_sliding_window` says otherwise
    """

    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False
    windowed: bool = True


FAMILIES = {
    "LlamaForCausalLM": Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"),
    "MistralForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windowed=False),
    "Qwen3ForCausalLM": Family(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm=True, windowed=False),
}

#: Config keys that change a model's mathematics in a way that is not implemented, unless unset (or at the value).
REFUSED_KEYS: dict[str, tuple[str, Any]] = {
    "quantization_config": ("weights quantised in its own format", None),
    "attn_logit_softcapping": ("a soft cap on attention scores", None),
    "final_logit_softcapping": ("a soft cap on logits", None),
    "attention_sinks": ("attention sinks", None),
    "num_local_experts": ("a mixture of experts", None),
    "num_experts": ("a mixture of experts", None),
    "n_routed_experts": ("a mixture of experts", None),
    "no_rope_layers": ("layers without rotary embedding", None),
    "pretraining_tp": ("products split as in its training (pretraining_tp)", 1),
    "attention_multiplier": ("its own scale of attention scores", None),
    "embedding_multiplier": ("scaled embeddings", 1),
    "residual_multiplier": ("scaled residuals", 1),
    "logits_scaling": ("scaled logits", 1),
}


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The shape of a Llama-family decoder (Touvron et al. 2023): RMSNorm before attention and MLP, rotary
    positions, grouped key and value heads, SwiGLU. Sizes count values; `max_context` counts positions."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: Rope

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str) -> DecoderSpec:
        """Raises UnsupportedModel that names the feature, or ArtifactError that names the missing key."""
        architecture, family = _family(config, name)
        _refuse(config, name, family)
        heads = count(config, name, "num_attention_heads")
        hidden = count(config, name, "hidden_size")
        kv_heads = count(config, name, "num_key_value_heads", heads)
        head_dim = count(config, name, "head_dim", hidden // heads)
        if heads % kv_heads:
            raise UnsupportedModel(name, f"{heads} query heads with {kv_heads} key-value heads (not a multiple)")
        if head_dim % 2:
            raise UnsupportedModel(name, f"rotary embedding (RoPE) with an odd head dimension ({head_dim})")
        return cls(
            name=name,
            architecture=architecture,
            layers=count(config, name, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=count(config, name, "intermediate_size"),
            vocab=count(config, name, "vocab_size"),
            max_context=count(config, name, "max_position_embeddings"),
            norm_eps=positive(config, name, "rms_norm_eps", 1e-6),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=_switch(config, family.qkv_bias),
            o_bias=_switch(config, family.o_bias),
            mlp_bias=_switch(config, family.mlp_bias),
            qk_norm=family.qk_norm,
            rope=Rope.from_config(config, name),
        )


def _family(config: Mapping[str, Any], name: str) -> tuple[str, Family]:
    architectures = config.get("architectures") or ["(none named)"]
    for architecture in architectures:
        if architecture in FAMILIES:
            return architecture, FAMILIES[architecture]
    raise UnsupportedModel(name, f"the architecture {architectures[0]}")


def _refuse(config: Mapping[str, Any], name: str, family: Family) -> None:
    for key, (feature, harmless) in REFUSED_KEYS.items():
        if config.get(key) not in (None, False, harmless):
            raise UnsupportedModel(name, f"{feature} ({key})")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(name, f"the activation {activation!r}")
    windowed = config.get("use_sliding_window", family.windowed)
    if windowed and config.get("sliding_window") is not None:
        raise UnsupportedModel(name, f"sliding-window attention (sliding_window {config['sliding_window']})")
    for kind in config.get("layer_types") or ():
        if kind != "full_attention":
            raise UnsupportedModel(name, f"layers of type {kind!r}")
    honoured = {family.qkv_bias, family.o_bias, family.mlp_bias}
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key) and key not in honoured:
            raise UnsupportedModel(name, f"{key}, which its architecture does not have")


def _switch(config: Mapping[str, Any], switch: bool | str) -> bool:
    return bool(config.get(switch, False)) if isinstance(switch, str) else switch
