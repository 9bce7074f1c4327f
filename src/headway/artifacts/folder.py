"""Hugging Face folders: `config.json`, `tokenizer.json`, and safetensors read through memory maps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from headway.artifacts import modules, revision
from headway.artifacts.files import DenseStage, ModelFiles, Modules, Tensors, check_id
from headway.artifacts.jsonfile import optional, required
from headway.artifacts.location import Location
from headway.artifacts.onnx import OnnxTensors
from headway.artifacts.revision import ContentDigest
from headway.core.errors import ArtifactError, ModelNotFound, UnsupportedModel

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
#: Formats of safetensors that are read, as numpy sees them; BF16 is widened by hand. I64 holds index buffers.
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8"}


def load(name: str, location: Location, words: Path | None = None, tokenizer: Path | None = None) -> ModelFiles:
    """Read everything but the weights; the tokenizer's files may lie in a folder of their own, `words`, and its
    `tokenizer.json` elsewhere. Raises
    UnsupportedModel for pickled or quantised weights, ModelNotFound for a missing file, ArtifactError for a damaged
    one."""
    folder = location.path
    words = words or folder
    config = required(folder / "config.json") if location.config is None else location.config
    if "quantization_config" in config:
        raise UnsupportedModel(name, "quantised weights (quantization_config in config.json)")
    rules = tokenizer or words / "tokenizer.json"
    if not rules.is_file():
        raise ModelNotFound(
            f"tokenizer.json not found in {words}; other files (tokenizer.model, vocab.json) are not read, "
            "convert them with the transformers library"
        )
    tokenizer_config = optional(words / "tokenizer_config.json")
    around = location.modules or modules.read(name, folder, config, tokenizer_config)
    shards, tensors = _weights(name, folder, around)
    known = Tokenizer.from_file(str(rules))
    special = _special(tokenizer_config, optional(words / "special_tokens_map.json"))
    bos_id = known.token_to_id(special["bos_token"]) if "bos_token" in special else None
    eos_ids = _eos_ids(config, optional(folder / "generation_config.json"), known, special)
    for id in eos_ids if around is None else ():
        check_id(name, "eos_token_id", id, config.get("vocab_size"))
    return ModelFiles(
        name=name,
        revision=revision.of_identity(location.identity) if location.identity else revision.of_files(shards),
        config=config,
        tensors=tensors,
        weights_bytes=sum(shard.stat().st_size for shard in shards),
        tokenizer=rules,
        chat_template=_chat_template(folder, tokenizer_config),
        bos_id=bos_id,
        add_bos=bos_id is not None and _adds_bos(known, tokenizer_config, bos_id),
        eos_ids=eos_ids,
        special=special,
        source=location.source or str(folder),
        modules=around,
    )


def _weights(name: str, folder: Path, around: Modules | None) -> tuple[list[Path], Tensors]:
    """The files that hold weights, and their tensors. Of ONNX files only encoders' are read."""
    onnx = folder / "model.onnx"
    if around is not None and onnx.is_file() and not any(folder.glob("*.safetensors*")):
        return [onnx], OnnxTensors(name, onnx)
    shards = dict.fromkeys(shards_of(name, folder), "")
    shards |= {_dense_file(name, folder, stage): f"{stage.folder}." for stage in (around.dense if around else ())}
    return list(shards), FolderTensors(name, shards)


def shards_of(name: str, folder: Path, stem: str = "model") -> list[Path]:
    """The safetensors files, in order, each once. Raises ModelNotFound, or UnsupportedModel for other weights."""
    index = folder / f"{stem}.safetensors.index.json"
    single = folder / f"{stem}.safetensors"
    if index.exists():
        shards = [folder / shard for shard in dict.fromkeys(required(index)["weight_map"].values())]
    else:
        shards = [single] if single.exists() else []
    for shard in shards:
        if not shard.is_file() or shard.parent != folder:
            raise ModelNotFound(f"{index} lists {shard.name}, which is not in the folder")
    if shards:
        return shards
    other = [path for suffix in ("*.bin", "*.pt", "*.pth", "*.onnx") for path in sorted(folder.rglob(suffix))]
    if not other:
        raise ModelNotFound(f"{folder} has no weights ({stem}.safetensors, or its index and shards)")
    kind = "ONNX weights" if other[0].suffix == ".onnx" else "pickled weights, which can run code when read"
    raise UnsupportedModel(name, f"{kind} ({other[0].name}; only safetensors are read)")


def _dense_file(name: str, folder: Path, stage: DenseStage) -> Path:
    file = folder / stage.folder / "model.safetensors"
    if not file.is_file():
        raise ModelNotFound(f"{name}: {stage.folder} has no model.safetensors; pickled weights are not read")
    return file


def _text(token: Any) -> str | None:
    """A token in these files is a string, or an object that holds one, or null."""
    text: str | None = token["content"] if isinstance(token, dict) else token
    return text


def _special(*sources: dict[str, Any]) -> dict[str, str]:
    found = {}
    for role in _SPECIAL:
        texts = [text for source in sources if (text := _text(source.get(role))) is not None]
        if texts:
            found[role] = texts[0]
    return found


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The file wins over the config; among several named ones the one called default counts."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _adds_bos(tokenizer: Tokenizer, tokenizer_config: dict[str, Any], bos_id: int) -> bool:
    """What the config says, else what the tokenizer's own post-processing does to a text."""
    if tokenizer_config.get("add_bos_token") is not None:
        return bool(tokenizer_config["add_bos_token"])
    return tokenizer.encode("a").ids[:1] == [bos_id]


def _eos_ids(
    config: dict[str, Any], generation: dict[str, Any], tokenizer: Tokenizer, special: dict[str, str]
) -> tuple[int, ...]:
    ids: list[int | None] = []
    for source in (config, generation):
        value = source.get("eos_token_id")
        ids += value if isinstance(value, list) else [value]
    ids.append(tokenizer.token_to_id(special.get("eos_token", "")))
    return tuple(dict.fromkeys(id for id in ids if id is not None))


class FolderTensors:
    """The weights of safetensors files, one memory map per file. Raises UnsupportedModel for a format that is not
    read, ArtifactError for a file that is truncated."""

    def __init__(self, name: str, shards: dict[Path, str]) -> None:
        """`shards`: files, and what their tensors' names begin with here."""
        self._name, self._prefixes = name, shards
        self._headers = {shard: self._header(shard) for shard in shards}

    def names(self) -> list[str]:
        return [self._prefixes[shard] + name for shard, header in self._headers.items() for name in header]

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor once, as float32. Those stored so are views of the file, not copies; writing to one
        leaves the file as it is."""
        for shard, header in self._headers.items():
            data, prefix = np.memmap(shard, np.uint8, "c"), self._prefixes[shard]
            for name, entry in header.items():
                start, end = entry["data_offsets"]
                kind = entry["dtype"]
                values = data[start:end].view(_DTYPES[kind]).reshape(entry["shape"])
                yield prefix + name, widened_bf16(values) if kind == "BF16" else values.astype("<f4", copy=False)

    def digest(self) -> str:
        content = ContentDigest()
        for shard, header in self._headers.items():
            data = np.memmap(shard, np.uint8, "r")
            for name, entry in header.items():
                content.add(
                    self._prefixes[shard] + name, entry["shape"], entry["dtype"], data[slice(*entry["data_offsets"])]
                )
        return content.text()

    def _header(self, shard: Path) -> dict[str, Any]:
        """Names to entries whose `data_offsets` count from the start of the file, in the order of the bytes.

        The format (github.com/huggingface/safetensors): 8 bytes of header size, the header in JSON, the data.
        """
        with shard.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            file_bytes = shard.stat().st_size
            if 8 + size > file_bytes:
                raise ArtifactError(f"{shard} is not a complete safetensors file")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                raise UnsupportedModel(self._name, f"weights in {entry['dtype']} ({name})")
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            values_bytes = math.prod(entry["shape"]) * np.dtype(_DTYPES[entry["dtype"]]).itemsize
            if end > file_bytes or end - start != values_bytes:
                raise ArtifactError(f"{shard} is truncated or damaged at {name}")
            entry["data_offsets"] = (start, end)
        return dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"]))


def widened_bf16(values: np.ndarray) -> np.ndarray:
    """float32 of the same shape: a bf16 is the upper half of a float32's bits."""
    return (values.astype("<u4") << 16).view("<f4")
