"""From a model's files to the decoder's tensors: laid out once in a cache file, mapped into memory ever after.

The cache file is a safetensors file of *canonical* tensors: products that read the same input are fused (rows of
q, k and v; rows of gate and up), row-major, matrices in the weights format, vectors in fp32. Parts are written
in place as they are read, so no more than one tensor of the model is in memory at a time.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Callable
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from headway.artifacts.converted import ConvertedWeights, HeldFile
from headway.artifacts.files import ModelFiles
from headway.compute.finite import count_not_finite, rows_not_finite
from headway.compute.models.spec import DecoderSpec
from headway.core.errors import ArtifactError, ConfigError, UnsupportedModel

Progress = Callable[[int, int], None]
#: Where each canonical tensor lies: offset in bytes, dtype, values per row.
Places = dict[str, tuple[int, torch.dtype, int]]

#: Raised whenever the canonical layout, or what is checked while it is made, changes: files of an older one are not
#: read.
LAYOUT = 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_TAGS = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class Part:
    """Where one tensor of the model goes: `rows` from `start` of the canonical tensor `target`."""

    target: str
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """Canonical tensors as views of a mapped file (do not write to them), their size, and what keeps the files of the
    model in the cache."""

    tensors: dict[str, torch.Tensor]
    bytes: int
    held: tuple[HeldFile, ...]

    def unload(self) -> None:
        """Take the file's pages out of this process's memory, once they are packed. They stay in the system's cache
        of files, and what is still read of them, such as the embedding's rows, comes back as it is read. Only Linux
        says where a file is mapped; elsewhere nothing is done."""
        path = str(self.held[0].path.resolve())
        try:
            maps = Path("/proc/self/maps").read_text()
        except OSError:
            return
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in maps.splitlines():  # FIRST-END PERMISSIONS OFFSET DEVICE INODE PATH
            if line.endswith(f" {path}"):
                first, end = (int(address, 16) for address in line.split(maxsplit=1)[0].split("-"))
                madvise(first, end - first, mmap.MADV_DONTNEED)


def load_tensors(
    spec: DecoderSpec, files: ModelFiles, weights: str, cache: Path, progress: Progress | None = None
) -> Weights:
    """The file is made at the first call for these tensors and format; `progress(done_bytes, total_bytes)` counts
    its bytes. Raises UnsupportedModel for a tensor that the decoder has no place for, ArtifactError for one that is
    missing, has another shape, or holds a value that is not finite, ConfigError for one that the format cannot hold.
    """
    kept, expected = ConvertedWeights(cache), parts(spec)
    digest = kept.digest(files.revision, files.tensors.digest)
    decides = repr((digest, weights, LAYOUT, spec.tied, sorted((name, astuple(p)) for name, p in expected.items())))
    key = f"{weights}-{blake2b(decides.encode(), digest_size=12).hexdigest()}"
    while (held := kept.hold(key)) is None:
        header, places, total = _header(expected, DTYPES[weights])
        with kept.making(key, len(header) + total) as path:
            _write(spec, files, path, header, (places, total), progress or (lambda done, total: None))
    revision = kept.hold_revision(files.revision, digest)
    with safe_open(held.path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return Weights(tensors, sum(tensor.nbytes for tensor in tensors.values()), (held, revision))


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


def _write(
    spec: DecoderSpec, files: ModelFiles, path: Path, header: bytes, layout: tuple[Places, int], progress: Progress
) -> None:
    """Fill the file at `path`, which is as large as it must be. Every value is seen here, and none gets in that is
    not finite."""
    expected, (places, total) = parts(spec), layout
    buffer = np.memmap(path, dtype=np.uint8, mode="r+")
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    missing, done = set(expected), 0
    for name, array in files.tensors.read():
        if _ignored(spec, name):
            continue
        part = _check(files.name, expected, name, array)
        offset, kind, row_values = places[part.target]
        data = _bytes(files.name, name, array, kind)
        first = len(header) + offset + part.start * row_values * kind.itemsize
        buffer[first : first + data.size] = data
        missing.discard(name)
        done += data.size
        progress(done, total)
    if missing:
        raise ArtifactError(f"{files.name}: {len(missing)} tensors are missing, among them {min(missing)}")
    buffer.flush()


def _header(expected: dict[str, Part], dtype: torch.dtype) -> tuple[bytes, Places, int]:
    """The file's header, where each canonical tensor lies, total bytes."""
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


def _bytes(model: str, name: str, array: np.ndarray, kind: torch.dtype) -> np.ndarray:
    """The values in row order, rounded to `kind` (to nearest, ties to even). Raises ArtifactError for values that are
    not finite, ConfigError for some that `kind` cannot hold."""
    own = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))  # torch accepts no read-only memory
    rounded = own.to(kind).reshape(-1)
    if rows_not_finite(rounded[None]):
        bad = count_not_finite(own)
        if bad:
            raise ArtifactError(
                f"{model}: {bad} of the {own.numel()} values of the tensor {name} are not finite (NaN or infinite); "
                "the file is damaged, download it again"
            )
        raise ConfigError("--weights", f"{name} has {count_not_finite(rounded)} values too large for bf16; use fp32")
    return rounded.view(torch.uint8).numpy()


def _ignored(spec: DecoderSpec, name: str) -> bool:
    """Tensors that say nothing new: rotary frequencies (they follow from the config), and a tied head's copy."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tied and name == "lm_head.weight")


def _check(model: str, expected: dict[str, Part], name: str, array: np.ndarray) -> Part:
    part = expected.get(name)
    if part is None:
        raise UnsupportedModel(model, f"the tensor {name} of shape {list(array.shape)}")
    if array.shape != part.shape:
        raise ArtifactError(f"{model}: {name} has the shape {list(array.shape)}, expected {list(part.shape)}")
    return part
