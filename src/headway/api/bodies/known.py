"""Fields that clients of OpenAI, vLLM, SGLang and llama.cpp send and that Headway does not serve.

A hint is accepted and named in `headway-ignored`. Any other field is accepted at the values that ask for nothing, and
refused by name at a value that would have an effect. A field that a body's struct has is served there, whatever these
tables say.
"""

from __future__ import annotations

import re
from typing import Any

#: Hints: whatever they say, the answer is the same.
IGNORED = (
    # OpenAI: who asks, what to keep and bill, where to look for known prefixes (they are found without), how to write
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "verbosity",
    # vLLM and SGLang: names for a request or a session beside its id, how to batch a stream, what compiles a grammar
    "request_id", "rid", "session_id", "stream_interval", "guided_decoding_backend",
)  # fmt: skip

#: OpenAI's clients add hints year by year; all that begins so is one.
IGNORED_NAMES = r"(safety|prompt_cache)_[a-z0-9_]{1,64}"

_OFF = (False,)
_EMPTY: tuple[Any, ...] = ([],)
_NOTHING: tuple[Any, ...] = ()

OPENAI: dict[str, tuple[Any, ...]] = {
    "audio": _NOTHING,
    "best_of": (1,),
    "echo": _OFF,
    "function_call": ("none",),
    "functions": _EMPTY,
    "logprobs": _OFF,
    "modalities": (["text"],),
    "moderation": _NOTHING,
    "prediction": _NOTHING,
    "reasoning_effort": _NOTHING,
    "suffix": ("",),
    "top_logprobs": (0,),
    "web_search_options": _NOTHING,
}

VLLM: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": _OFF,  # of chat: its template writes them
    "allowed_token_ids": _NOTHING,
    "bad_words": _EMPTY,
    "chat_template": _NOTHING,
    "documents": _EMPTY,
    "early_stopping": _OFF,
    "ec_transfer_params": _NOTHING,
    "guided_whitespace_pattern": _NOTHING,
    "include_reasoning": (True,),
    "kv_transfer_params": _NOTHING,
    "length_penalty": (1,),  # of beam search
    "logits_processors": _EMPTY,
    "logprob_token_ids": _NOTHING,
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": _NOTHING,
    "repetition_detection": _NOTHING,
    "return_mm_kwargs": (True, False),  # of what only renders
    "return_prompt_text": _OFF,
    "return_token_ids": _OFF,
    "return_token_offsets": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "routed_experts_prompt_start": (0,),
    "spaces_between_special_tokens": (True, False),  # there are none, whatever it says
    "structural_tag": _NOTHING,
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": _NOTHING,
    "truncation_side": _NOTHING,
    "use_beam_search": _OFF,
    "vllm_xargs": ({},),
    "watermarking": _OFF,
}

SGLANG: dict[str, tuple[Any, ...]] = {
    "bootstrap_host": _NOTHING,
    "bootstrap_port": _NOTHING,
    "bootstrap_room": _NOTHING,
    "custom_logit_processor": _NOTHING,
    "custom_params": ({},),
    "data_parallel_rank": _NOTHING,
    "ebnf": _NOTHING,
    "extra_key": _NOTHING,
    "json_schema": _NOTHING,
    "lora_path": _NOTHING,
    "no_stop_trim": _OFF,
    "regex": _NOTHING,
    "return_cached_tokens_details": _OFF,
    "return_hidden_states": _OFF,
    "return_routed_experts": _OFF,
    "routed_dp_rank": _NOTHING,
    "separate_reasoning": (True,),
    "session_params": ({},),
    "stop_regex": _EMPTY,
    "stream_reasoning": (True,),
    "use_audio_in_video": _OFF,
}

LLAMA_CPP: dict[str, tuple[Any, ...]] = {
    "cache_prompt": (True,),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (-1,),
    "dynatemp_exponent": (1,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "id_slot": (-1,),
    "lora": _EMPTY,
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5,),
    "n_discard": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "post_sampling_probs": _OFF,
    "repeat_last_n": (64,),
    "repeat_penalty": (1,),
    "response_fields": _EMPTY,
    "return_progress": _OFF,
    "return_tokens": _OFF,
    "tfs_z": (1,),
    "timings_per_token": _OFF,
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
}

#: Known fields without support, and the values (besides null) at which they ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = OPENAI | VLLM | SGLANG | LLAMA_CPP


#: The same of `/v1/embeddings` and `/v1/rerank`: vLLM's, Jina's, Cohere's and Text Embeddings Inference's.
ENCODERS: dict[str, tuple[Any, ...]] = {
    "activation": _NOTHING,
    "additional_data": _NOTHING,
    "deadline_ms": _NOTHING,
    "embed_dtype": ("float32",),
    "embedding_type": ("float",),
    "embedding_types": (["float"],),
    "endianness": ("native", "little"),
    "images": _EMPTY,
    "late_chunking": _OFF,
    "max_chunks_per_doc": _NOTHING,
    "mm_processor_kwargs": ({},),
    "normalized": _NOTHING,
    "overlap_tokens": _NOTHING,
    "padding": _OFF,
    "rank_fields": _EMPTY,
    "raw_scores": _OFF,
    "return_embeddings": _OFF,
    "return_multivector": _OFF,
    "softmax": _NOTHING,
    "task": _NOTHING,
    "truncate": (False, "NONE"),
    "truncation": _OFF,
    "truncation_side": ("right",),
    "use_activation": (True,),
}


#: The same of `/v1/images/generations`: OpenAI's.
IMAGES: dict[str, tuple[Any, ...]] = {
    "background": ("auto", "opaque"),
    "complexity": _NOTHING,
    "frame_count": _NOTHING,
    "frame_duration_ms": _NOTHING,
    "moderation": ("auto",),
    "output_compression": (100,),
    "quality": ("auto", "standard"),
    "style": _NOTHING,
    "svg": _NOTHING,
}


def is_hint(field: str) -> bool:
    """Whether a field is accepted without effect, whatever it says."""
    return field in IGNORED or re.fullmatch(IGNORED_NAMES, field) is not None
