"""GGUF files as if they were Hugging Face folders: names, config and row order are translated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from gguf.quants import dequantize

from headway.artifacts import bpe, gguf_config, revision
from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles, check_id
from headway.artifacts.gguf_header import Header, TensorPlace, read_header
from headway.artifacts.location import Location
from headway.artifacts.revision import ContentDigest
from headway.core.errors import UnsupportedModel

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOKEN_ID = re.compile(r"tokenizer\.ggml\.\w+_token_id")
#: Frequencies, not weights: `gguf_config` turns them into the config's `rope_scaling`.
_ROPE_FREQS = gguf_config.ROPE_FREQS


def load(name: str, location: Location, cache: Cache) -> ModelFiles:
    """Read the header of the file at `location`; build its `tokenizer.json` in the cache if that is not there yet.

    Raises UnsupportedModel, naming the architecture, metadata key, tensor or tokenizer that is not implemented,
    or ArtifactError for a damaged file.
    """
    header = read_header(location.path)
    config = gguf_config.translate(name, header, rope_freqs(header))
    tensors = GgufTensors(name, header, config)
    identity = location.identity
    version = revision.of_files([location.path]) if identity is None else revision.of_identity(identity)
    metadata = header.metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    _check_ids(name, metadata, tokens)
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelFiles(
        name=name,
        revision=version,
        config=config,
        tensors=tensors,
        weights_bytes=sum(tensor.size_bytes for tensor in header.tensors),
        tokenizer=bpe.build_once(name, metadata, cache.converted / version),
        chat_template=metadata.get("tokenizer.chat_template"),
        bos_id=bos_id,
        add_bos=bpe.adds_bos(metadata) and bos_id is not None,
        eos_ids=_eos_ids(metadata),
        special=_special(metadata, tokens),
        source=location.source or str(location.path),
    )


def _check_ids(name: str, metadata: dict[str, Any], tokens: list[str]) -> None:
    """Raises ArtifactError for a special token (its end, its beginning, padding, …) that the vocabulary lacks."""
    for key, value in metadata.items():
        if _TOKEN_ID.fullmatch(key):
            check_id(name, key, value, len(tokens))


def _eos_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """The ends of a text (eos), of a turn (eot) and of a message (eom), each once."""
    keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(metadata[key] for key in keys if key in metadata))


def _special(metadata: dict[str, Any], tokens: list[str]) -> dict[str, str]:
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    keys = {f"{role}_token": f"tokenizer.ggml.{gguf}_token_id" for gguf, role in roles.items()}
    return {role: tokens[metadata[key]] for role, key in keys.items() if key in metadata}


def rope_freqs(header: Header) -> np.ndarray | None:
    """The per-frequency divisors that some conversions store as a tensor, shape (head dimension / 2,)."""
    place = next((tensor for tensor in header.tensors if tensor.name == _ROPE_FREQS), None)
    return None if place is None else read_tensor(header, place)


def read_tensor(header: Header, place: TensorPlace) -> np.ndarray:
    """One tensor as float32. Raises NotImplementedError for a format that the `gguf` package cannot dequantise."""
    data = _stored(header, place)
    if place.format.name in ("F32", "F16"):
        values = data.view(np.float32 if place.format.name == "F32" else np.float16)
        return values.astype(np.float32).reshape(place.shape)
    return dequantize(data.reshape(*place.shape[:-1], -1), place.format).reshape(place.shape)


def _stored(header: Header, place: TensorPlace) -> np.ndarray:
    return np.memmap(header.path, np.uint8, "r", place.offset_bytes, (place.size_bytes,))


class GgufTensors:
    """The weights of a GGUF file under Hugging Face's names. Raises UnsupportedModel for an unknown tensor."""

    def __init__(self, name: str, header: Header, config: dict[str, Any]) -> None:
        self._name = name
        self._header = header
        # llama.cpp rotates neighbouring pairs in its llama architecture, so conversion interleaved these rows.
        interleaved = config["model_type"] == "llama"
        heads = (("self_attn.q_proj", "num_attention_heads"), ("self_attn.k_proj", "num_key_value_heads"))
        self._interleaved_heads = {part: config[key] for part, key in heads if interleaved}
        self._places = {
            self._translate(tensor.name): tensor for tensor in header.tensors if tensor.name != _ROPE_FREQS
        }

    def names(self) -> list[str]:
        return list(self._places)

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor once, float32, dequantised when its turn comes. Raises UnsupportedModel for a format that
        cannot be dequantised."""
        for name, place in self._places.items():
            try:
                tensor = read_tensor(self._header, place)
            except NotImplementedError as error:
                raise UnsupportedModel(self._name, f"weights in {place.format.name}") from error
            heads = next((n for part, n in self._interleaved_heads.items() if part in name), None)
            yield name, tensor if heads is None else deinterleave(tensor, heads)

    def digest(self) -> str:
        content = ContentDigest(self._interleaved_heads)
        for name, place in self._places.items():
            content.add(name, place.shape, place.format.name, _stored(self._header, place))
        return content.text()

    def _translate(self, gguf_name: str) -> str:
        if gguf_name in _WHOLE:
            return _WHOLE[gguf_name]
        match = _LAYER.fullmatch(gguf_name)
        if match is None or match[2] not in _IN_LAYER:
            raise UnsupportedModel(self._name, f"the tensor {gguf_name}")
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"


def deinterleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Per head, rows (x0, y0, x1, y1, …) of rotated pairs to Hugging Face's order (x0, x1, …, y0, y1, …)."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
