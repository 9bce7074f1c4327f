"""What a config asks for is implemented, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headway.compute.models.rope import Rope
from headway.compute.models.spec import DecoderSpec
from headway.core.errors import ArtifactError, UnsupportedModel
from tiny_decoders import LINEAR, LLAMA3, SIZES

LLAMA = SIZES | {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rope_theta": 5000.0}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (LLAMA | {"architectures": ["GPT2LMHeadModel"]}, "the architecture GPT2LMHeadModel"),
    (LLAMA | {"architectures": None}, "the architecture"),
    (MISTRAL | {"sliding_window": 4096}, "sliding-window attention"),
    (QWEN2 | {"sliding_window": 4096, "use_sliding_window": True}, "sliding-window attention"),
    (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
    (LLAMA | {"attn_logit_softcapping": 50.0}, "a soft cap on attention scores"),
    (LLAMA | {"final_logit_softcapping": 30.0}, "a soft cap on logits"),
    (LLAMA | {"attention_sinks": True}, "attention sinks"),
    (LLAMA | {"num_local_experts": 8}, "a mixture of experts"),
    (LLAMA | {"num_experts": 8}, "a mixture of experts"),
    (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn'"),
    (LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "'dynamic'"),
    (LLAMA | {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
    (LLAMA | {"partial_rotary_factor": 0.5}, "partial rotary"),
    (LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial rotary"),
    (LLAMA | {"hidden_act": "gelu"}, "the activation 'gelu'"),
    (LLAMA | {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    (LLAMA | {"pretraining_tp": 2}, "pretraining_tp"),
    (LLAMA | {"num_key_value_heads": 4}, "6 query heads with 4 key-value heads"),
    (LLAMA | {"head_dim": 7}, "odd head dimension"),
    (MISTRAL | {"attention_bias": True}, "attention_bias"),
]


@pytest.mark.parametrize(("config", "feature"), REFUSED, ids=[feature for _, feature in REFUSED])
def test_what_is_not_implemented_is_refused_by_name(config: dict[str, Any], feature: str) -> None:
    with pytest.raises(UnsupportedModel, match=feature) as refusal:
        DecoderSpec.from_config(config, "some-model")
    assert "some-model uses" in str(refusal.value)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ArtifactError, match="intermediate_size"):
        DecoderSpec.from_config({k: v for k, v in LLAMA.items() if k != "intermediate_size"}, "m")
    with pytest.raises(ArtifactError, match="low_freq_factor"):
        Rope.from_config({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "m")


def test_a_window_that_is_not_in_effect_is_accepted() -> None:
    DecoderSpec.from_config(QWEN2 | {"sliding_window": 4096, "use_sliding_window": False}, "m")
    DecoderSpec.from_config(QWEN2 | {"sliding_window": 4096}, "m")
    DecoderSpec.from_config(MISTRAL | {"sliding_window": None}, "m")


def test_both_spellings_of_a_rotation_mean_the_same() -> None:
    old = {"rope_theta": 10000.0, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}}
    assert Rope.from_config({"rope_parameters": LLAMA3}, "m") == Rope.from_config(old, "m")
    assert Rope.from_config({"rope_theta": 5.0}, "m") == Rope(theta=5.0)


@pytest.mark.parametrize("given", [LLAMA3, LINEAR], ids=["llama3", "linear"])
def test_frequencies_are_those_of_transformers(given: dict[str, Any]) -> None:
    config = transformers.LlamaConfig(head_dim=64, rope_parameters=given)
    expected, scale = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, torch.device("cpu"))
    assert scale == 1.0
    found = Rope.from_config({"rope_parameters": given}, "m").frequencies(64)
    assert torch.allclose(found, expected, rtol=1e-6)
