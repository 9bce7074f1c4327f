"""From a model's files to the encoder's tensors.

*Canonical* tensors: products that read the same input are fused (rows of q, k and v; rows of gate and up), all in
fp32. They are not kept in a file of their own: safetensors are mapped as they are, and what is fused is packed at
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from headway.artifacts.files import ModelFiles
from headway.compute.finite import count_not_finite, rows_not_finite
from headway.compute.models.encoder_spec import EncoderSpec
from headway.core.errors import ArtifactError, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Part:
    """Where one tensor of the model goes: `rows` from `start` of the canonical tensor `target`."""

    target: str
    start: int
    shape: tuple[int, ...]


Parts = dict[str, Part]

#: What the files hold beside the encoder: positions counted out, and other heads than the one that is used.
_NOTHING_NEW = (".position_ids", ".token_type_ids", ".inv_freq")
_OTHER_HEADS = ("pooler.", "cls.", "lm_head.", "head.", "decoder.", "classifier.", "qa_outputs.")
_PREFIXES = {
    "bert": "bert.",
    "roberta": "roberta.",
    "mpnet": "mpnet.",
    "modernbert": "model.",
    "nomic": "nomic_bert.",
}
#: Nomic-BERT as published names its tensors otherwise than transformers does.
_NOMIC_NAMES = {
    "encoder.layers.": "layers.",
    "emb_ln.": "embeddings.LayerNorm.",
    ".attn.Wqkv.": ".self_attn.Wqkv.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".mlp.fc11.": ".mlp.up_proj.",
    ".mlp.fc12.": ".mlp.gate_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}


def load_tensors(spec: EncoderSpec, files: ModelFiles) -> dict[str, torch.Tensor]:
    """Canonical tensors, fp32; those that are whole in the files are views of them (do not write to them).

    Raises UnsupportedModel for a tensor that the encoder has no place for, ArtifactError for one that is missing, has
    another shape, or holds a value that is not finite.
    """
    expected = parts(spec, files)
    found: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for theirs, array in files.tensors.read():
        name = own_name(spec, theirs)
        if name not in expected and _ignored(spec, name):
            continue
        part = _check(files.name, expected.get(name), theirs, array)
        found.setdefault(part.target, []).append((part.start, _finite(files.name, theirs, array)))
    for name, part in expected.items():
        covered = {start for start, _ in found.get(part.target, ())}
        # A fused tensor may be there whole, or in its pieces.
        if part.start not in covered and not _whole(found.get(part.target, ()), part):
            raise ArtifactError(f"{files.name}: the tensor {name} {list(part.shape)} is missing")
    return {target: _joined(pieces) for target, pieces in found.items()}


def own_name(spec: EncoderSpec, name: str) -> str:
    """A tensor's name without what an architecture's head or an older release puts around it."""
    name = name.removeprefix(_PREFIXES[spec.kind])
    if spec.kind == "nomic":
        for theirs, ours in _NOMIC_NAMES.items():
            name = name.replace(theirs, ours)
    if "norm" in name.lower():
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def parts(spec: EncoderSpec, files: ModelFiles) -> Parts:
    """Every tensor that the model's files must hold, under transformers' names. One that may stand for several (a
    fused one) is there beside them."""
    found = dict(_FAMILIES[spec.kind](spec))
    found |= dict(_head(spec))
    for place, dense in enumerate(files.modules.dense if files.modules else ()):
        found |= dict(_product(f"{dense.folder}.linear", f"dense.{place}", (dense.outputs, dense.inputs), dense.bias))
    return found


Named = Iterator[tuple[str, Part]]


def _product(name: str, target: str, shape: tuple[int, int], bias: bool, start: int = 0) -> Named:
    yield f"{name}.weight", Part(f"{target}.weight", start, shape)
    if bias:
        yield f"{name}.bias", Part(f"{target}.bias", start, shape[:1])


def _norm(spec: EncoderSpec, name: str, target: str) -> Named:
    yield f"{name}.weight", Part(f"{target}.weight", 0, (spec.hidden,))
    if spec.norm_bias:
        yield f"{name}.bias", Part(f"{target}.bias", 0, (spec.hidden,))


def _table(name: str, target: str, shape: tuple[int, int]) -> Named:
    yield f"{name}.weight", Part(target, 0, shape)


def _bert(spec: EncoderSpec) -> Named:
    hidden, square = spec.hidden, (spec.hidden, spec.hidden)
    yield from _table("embeddings.word_embeddings", "embedding", (spec.vocab, hidden))
    yield from _table("embeddings.position_embeddings", "positions", (spec.positions, hidden))
    yield from _norm(spec, "embeddings.LayerNorm", "embedding_norm")
    if spec.types:
        yield from _table("embeddings.token_type_embeddings", "types", (spec.types, hidden))
    if spec.buckets:
        yield from _table("encoder.relative_attention_bias", "relative_bias", (spec.buckets, spec.heads))
    names = _MPNET if spec.kind == "mpnet" else _BERT
    for i in range(spec.layers):
        theirs, ours = f"encoder.layer.{i}.", f"layers.{i}."
        for place, name in enumerate(names[:3]):
            yield from _product(f"{theirs}{name}", f"{ours}qkv", square, True, place * hidden)
        yield from _product(f"{theirs}{names[3]}", f"{ours}o", square, True)
        yield from _norm(spec, f"{theirs}{names[4]}", f"{ours}attention_norm")
        yield from _product(f"{theirs}intermediate.dense", f"{ours}up", (spec.intermediate, hidden), True)
        yield from _product(f"{theirs}output.dense", f"{ours}down", (hidden, spec.intermediate), True)
        yield from _norm(spec, f"{theirs}output.LayerNorm", f"{ours}mlp_norm")


_BERT = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
)
_MPNET = ("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm")


def _modernbert(spec: EncoderSpec) -> Named:
    hidden = spec.hidden
    yield from _table("embeddings.tok_embeddings", "embedding", (spec.vocab, hidden))
    yield from _norm(spec, "embeddings.norm", "embedding_norm")
    yield from _norm(spec, "final_norm", "final_norm")
    for i in range(spec.layers):
        name = f"layers.{i}."
        if i:
            yield from _norm(spec, f"{name}attn_norm", f"{name}attention_norm")
        yield from _product(f"{name}attn.Wqkv", f"{name}qkv", (3 * hidden, hidden), spec.attention_bias)
        yield from _product(f"{name}attn.Wo", f"{name}o", (hidden, hidden), spec.attention_bias)
        yield from _norm(spec, f"{name}mlp_norm", f"{name}mlp_norm")
        yield from _product(f"{name}mlp.Wi", f"{name}up", (2 * spec.intermediate, hidden), spec.mlp_bias)
        yield from _product(f"{name}mlp.Wo", f"{name}down", (hidden, spec.intermediate), spec.mlp_bias)


def _nomic(spec: EncoderSpec) -> Named:
    hidden, square, inner = spec.hidden, (spec.hidden, spec.hidden), spec.intermediate
    yield from _table("embeddings.word_embeddings", "embedding", (spec.vocab, hidden))
    yield from _table("embeddings.token_type_embeddings", "types", (spec.types, hidden))
    yield from _norm(spec, "embeddings.LayerNorm", "embedding_norm")
    for i in range(spec.layers):
        name = f"layers.{i}."
        yield from _product(f"{name}self_attn.Wqkv", f"{name}qkv", (3 * hidden, hidden), False)
        for place, part in enumerate(("q_proj", "k_proj", "v_proj")):
            yield from _product(f"{name}self_attn.{part}", f"{name}qkv", square, False, place * hidden)
        yield from _product(f"{name}self_attn.o_proj", f"{name}o", square, False)
        yield from _norm(spec, f"{name}post_attention_layernorm", f"{name}attention_norm")
        yield from _product(f"{name}mlp.gate_proj", f"{name}up", (inner, hidden), False)
        yield from _product(f"{name}mlp.up_proj", f"{name}up", (inner, hidden), False, inner)
        yield from _product(f"{name}mlp.down_proj", f"{name}down", (hidden, inner), False)
        yield from _norm(spec, f"{name}post_mlp_layernorm", f"{name}mlp_norm")


_FAMILIES = {"bert": _bert, "roberta": _bert, "mpnet": _bert, "modernbert": _modernbert, "nomic": _nomic}


def _head(spec: EncoderSpec) -> Named:
    square, one = (spec.hidden, spec.hidden), (1, spec.hidden)
    match spec.head:
        case "pooler":
            yield from _product("pooler.dense", "head.dense", square, True)
            yield from _product("classifier", "head.out", one, True)
        case "dense":
            yield from _product("classifier.dense", "head.dense", square, True)
            yield from _product("classifier.out_proj", "head.out", one, True)
        case "dense_norm":
            yield from _product("head.dense", "head.dense", square, spec.head_bias)
            yield from _norm(spec, "head.norm", "head.norm")
            yield from _product("classifier", "head.out", one, True)


def _ignored(spec: EncoderSpec, name: str) -> bool:
    return name.endswith(_NOTHING_NEW) or name.startswith(_OTHER_HEADS)


def _check(model: str, part: Part | None, name: str, array: np.ndarray) -> Part:
    if part is None:
        raise UnsupportedModel(model, f"the tensor {name} of shape {list(array.shape)}")
    if array.shape != part.shape:
        raise ArtifactError(f"{model}: {name} has the shape {list(array.shape)}, expected {list(part.shape)}")
    return part


def _finite(model: str, name: str, array: np.ndarray) -> torch.Tensor:
    values = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))  # torch accepts no read-only memory
    if rows_not_finite(values.reshape(1, -1)):
        raise ArtifactError(
            f"{model}: {count_not_finite(values)} of the {values.numel()} values of the tensor {name} are not finite "
            "(NaN or infinite); the file is damaged, download it again"
        )
    return values


def _whole(pieces: list[tuple[int, torch.Tensor]] | tuple[()], part: Part) -> bool:
    return any(start == 0 and len(values) >= part.start + part.shape[0] for start, values in pieces)


def _joined(pieces: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
    if len(pieces) == 1:
        return pieces[0][1]
    return torch.cat([values for _, values in sorted(pieces, key=lambda piece: piece[0])])
