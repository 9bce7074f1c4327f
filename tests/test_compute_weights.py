"""The cache of canonical weights: complete or absent, and quick to map."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headway.compute.models.spec import DecoderSpec
from headway.compute.text.weights import load_tensors
from headway.core.errors import ArtifactError, UnsupportedModel
from tiny_decoders import StateDict, files_of, oracle


def test_parts_are_fused_and_rounded_as_torch_rounds(tmp_path: Path) -> None:
    model = oracle("qwen2, tied")
    files = files_of(model)
    spec = DecoderSpec.from_config(files.config, "tiny")
    seen: list[tuple[int, int]] = []
    loaded = load_tensors(spec, files, "bf16", tmp_path, lambda done, total: seen.append((done, total)))
    found, size = loaded.tensors, loaded.bytes
    own = model.state_dict()
    attention = "model.layers.1.self_attn."
    expected = torch.cat([own[f"{attention}{part}_proj.weight"] for part in "qkv"]).bfloat16()
    assert torch.equal(found["layers.1.qkv.weight"], expected)
    assert torch.equal(found["layers.1.qkv.bias"], torch.cat([own[f"{attention}{p}_proj.bias"] for p in "qkv"]))
    assert torch.equal(found["norm"], own["model.norm.weight"])
    assert "head" not in found
    assert seen[-1] == (size, size)


def test_the_file_is_read_by_safetensors_and_not_written_twice(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    spec = DecoderSpec.from_config(files.config, "tiny")
    first = load_tensors(spec, files, "fp32", tmp_path).tensors
    (path,) = tmp_path.glob("*.safetensors")
    theirs = load_file(path)
    assert theirs.keys() == first.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in first.items())
    second = load_tensors(spec, replace(files, tensors=StateDict({})), "fp32", tmp_path).tensors
    assert torch.equal(second["embedding"], first["embedding"])


def resident_bytes(file: Path) -> int:
    """What this process holds of the pages of a mapped file."""
    held, name = 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):
            name = rest[4] if len(rest) > 4 else ""
        elif key == "Rss:" and name == str(file):
            held += int(rest[0]) << 10
    return held


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file is in memory")
def test_a_file_that_was_packed_is_in_memory_no_more_and_reads_as_before(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    loaded = load_tensors(DecoderSpec.from_config(files.config, "tiny"), files, "fp32", tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    before = {name: tensor.clone() for name, tensor in loaded.tensors.items()}
    assert resident_bytes(path) > 0
    loaded.unload()
    assert resident_bytes(path) == 0
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in before.items())


def test_a_missing_tensor_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    arrays = dict(files.tensors.read())
    del arrays["model.layers.1.mlp.up_proj.weight"]
    spec = DecoderSpec.from_config(files.config, "tiny")
    with pytest.raises(ArtifactError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_tensors(spec, replace(files, tensors=StateDict(arrays)), "fp32", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    spec = DecoderSpec.from_config(files.config, "tiny")
    extra = dict(files.tensors.read()) | {"model.layers.0.self_attn.q_proj.bias": np.zeros(48, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"q_proj\.bias"):
        load_tensors(spec, replace(files, tensors=StateDict(extra)), "fp32", tmp_path)
    wrong = dict(files.tensors.read()) | {"model.norm.weight": np.zeros(47, np.float32)}
    with pytest.raises(ArtifactError, match=r"model\.norm\.weight has the shape \[47\], expected \[48\]"):
        load_tensors(spec, replace(files, tensors=StateDict(wrong)), "fp32", tmp_path)
