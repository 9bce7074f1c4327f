"""From a model's files to the decoder's tensors: laid out once in a cache file, mapped into memory ever after.

The cache file is a safetensors file of *canonical* tensors: products that read the same input are fused (rows of
q, k and v; rows of gate and up), row-major, matrices in the weights format, vectors in fp32. Parts are written
in place as they are read, so no more than one tensor of the model is in memory at a time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from headway.artifacts.files import ModelFiles
from headway.compute.models.spec import DecoderSpec
from headway.errors import ArtifactError, UnsupportedModel

Progress = Callable[[int, int], None]

#: Raised whenever the canonical layout changes, so that files of an older one are not read.
LAYOUT = 1
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_TAGS = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class Part:
    """Where one tensor of the model goes: `rows` from `start` of the canonical tensor `target`."""

    target: str
    start: int
    shape: tuple[int, ...]


def load_tensors(
    spec: DecoderSpec, files: ModelFiles, weights: str, cache: Path, progress: Progress | None = None
) -> tuple[dict[str, torch.Tensor], int]:
    """Canonical tensors as views of a mapped file, and their size in bytes. Do not write to them.

    The file is made at the first call for a revision and format; `progress(done_bytes, total_bytes)` counts its
    bytes. Raises UnsupportedModel for a tensor that the decoder has no place for, ArtifactError for one that is
    missing or has another shape.
    """
    path = cache / f"{files.revision}-{weights}-{LAYOUT}.safetensors"
    if not path.exists():
        _write(spec, files, DTYPES[weights], path, progress or (lambda done, total: None))
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return tensors, sum(tensor.nbytes for tensor in tensors.values())


def parts(spec: DecoderSpec) -> dict[str, Part]:
    """Every tensor that the model's files must hold, under Hugging Face's names."""
    hidden, heads, kv = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    found = {"model.embed_tokens.weight": Part("embedding", 0, (spec.vocab, hidden))}
    found["model.norm.weight"] = Part("norm", 0, (hidden,))
    if not spec.tied:
        found["lm_head.weight"] = Part("head", 0, (spec.vocab, hidden))
    products = (
        ("self_attn.q_proj", "qkv", 0, heads, hidden, spec.qkv_bias),
        ("self_attn.k_proj", "qkv", heads, kv, hidden, spec.qkv_bias),
        ("self_attn.v_proj", "qkv", heads + kv, kv, hidden, spec.qkv_bias),
        ("self_attn.o_proj", "o", 0, hidden, heads, spec.o_bias),
        ("mlp.gate_proj", "gate_up", 0, spec.intermediate, hidden, spec.mlp_bias),
        ("mlp.up_proj", "gate_up", spec.intermediate, spec.intermediate, hidden, spec.mlp_bias),
        ("mlp.down_proj", "down", 0, hidden, spec.intermediate, spec.mlp_bias),
    )
    for i in range(spec.layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        for source, target, start, out, size, bias in products:
            found[f"{theirs}{source}.weight"] = Part(f"{ours}{target}.weight", start, (out, size))
            if bias:
                found[f"{theirs}{source}.bias"] = Part(f"{ours}{target}.bias", start, (out,))
        found[f"{theirs}input_layernorm.weight"] = Part(f"{ours}attention_norm", 0, (hidden,))
        found[f"{theirs}post_attention_layernorm.weight"] = Part(f"{ours}mlp_norm", 0, (hidden,))
        if spec.qk_norm:
            found[f"{theirs}self_attn.q_norm.weight"] = Part(f"{ours}q_norm", 0, (spec.head_dim,))
            found[f"{theirs}self_attn.k_norm.weight"] = Part(f"{ours}k_norm", 0, (spec.head_dim,))
    return found


def _write(spec: DecoderSpec, files: ModelFiles, dtype: torch.dtype, path: Path, progress: Progress) -> None:
    """Fill a temporary file, then rename it: a file under its final name is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    expected = parts(spec)
    header, places, total = _header(expected, dtype)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            file.truncate(len(header) + total)
        buffer = np.memmap(temporary, dtype=np.uint8, mode="r+", offset=len(header))
        missing, done = set(expected), 0
        for name, array in files.tensors.read():
            if _ignored(spec, name):
                continue
            part = _check(files.name, expected, name, array)
            offset, kind, row_values = places[part.target]
            data = _bytes(array, kind)
            first = offset + part.start * row_values * kind.itemsize
            buffer[first : first + data.size] = data
            missing.discard(name)
            done += data.size
            progress(done, total)
        if missing:
            raise ArtifactError(f"{files.name} lacks {len(missing)} tensors, among them {min(missing)}")
        buffer.flush()
        del buffer
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _header(
    expected: dict[str, Part], dtype: torch.dtype
) -> tuple[bytes, dict[str, tuple[int, torch.dtype, int]], int]:
    """The file's header, where each canonical tensor lies (offset in bytes, dtype, values per row), total bytes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in expected.values():
        rows = max(shapes.get(part.target, (0,))[0], part.start + part.shape[0])
        shapes[part.target] = (rows, *part.shape[1:])
    entries, places, offset = {}, {}, 0
    for name, shape in shapes.items():
        kind = dtype if len(shape) == 2 else torch.float32
        size = int(np.prod(shape)) * kind.itemsize
        entries[name] = {"dtype": _TAGS[kind], "shape": shape, "data_offsets": (offset, offset + size)}
        places[name] = offset, kind, int(np.prod(shape[1:]))
        offset += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 64 + 56)  # data begins at a multiple of 64 bytes
    return len(text).to_bytes(8, "little") + text, places, offset


def _bytes(array: np.ndarray, kind: torch.dtype) -> np.ndarray:
    """The values in row order, rounded to `kind` (to nearest, ties to even)."""
    own = np.require(array, np.float32, ["C", "W"])  # torch accepts no read-only memory
    return torch.from_numpy(own).to(kind).reshape(-1).view(torch.uint8).numpy()


def _ignored(spec: DecoderSpec, name: str) -> bool:
    """Tensors that say nothing new: rotary frequencies (they follow from the config), and a tied head's copy."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tied and name == "lm_head.weight")


def _check(model: str, expected: dict[str, Part], name: str, array: np.ndarray) -> Part:
    part = expected.get(name)
    if part is None:
        raise UnsupportedModel(model, f"a place for the tensor {name} {list(array.shape)}")
    if array.shape != part.shape:
        raise ArtifactError(f"{model}: {name} has the shape {list(array.shape)}, not {list(part.shape)}")
    return part
