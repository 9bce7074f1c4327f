"""Hugging Face folders; oracles: torch and safetensors, which write the files, and transformers, which reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

import tiny_models
from headway.artifacts import bpe, resolve
from headway.artifacts.folder import widened_bf16
from headway.core.errors import ArtifactError, ModelNotFound, UnsupportedModel

TOKENS, MERGES = tiny_models.vocabulary()
BEGIN, END = len(TOKENS) - 3, len(TOKENS) - 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with everything but weights."""
    types = [1] * BEGIN + [3, 3, 4]
    names = {"model": "gpt2", "pre": "smollm", "tokens": TOKENS, "merges": MERGES, "token_type": types}
    built = bpe.build_once("tiny", {f"tokenizer.ggml.{name}": value for name, value in names.items()}, tmp_path)
    built.rename(tmp_path / "tokenizer.json")
    write(tmp_path / "config.json", {"model_type": "llama", "eos_token_id": END})
    write(tmp_path / "tokenizer_config.json", {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}})
    return tmp_path


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(tensor) for name, tensor in tiny_models.weights("llama", seed).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_format_is_widened_as_torch_widens_it(folder: Path, dtype: torch.dtype) -> None:
    stored = {name: tensor.to(dtype) for name, tensor in tensors().items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    files = resolve(str(folder))
    read = dict(files.tensors.read())
    assert read.keys() == stored.keys() == set(files.tensors.names())
    for name, tensor in read.items():
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, stored[name].float().numpy()), name


def test_all_65536_bf16_values_are_widened_bit_for_bit() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(widened_bf16(bits).view(np.uint32), expected.view(np.uint32))


def test_shards_are_read_as_one_model(folder: Path) -> None:
    stored = tensors()
    names = sorted(stored)
    parts = {"model-1-of-2.safetensors": names[:5], "model-2-of-2.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: stored[name] for name in part}, folder / file)
    index = {name: file for file, part in parts.items() for name in part}
    write(folder / "model.safetensors.index.json", {"weight_map": index})
    files = resolve(str(folder))
    assert sorted(files.tensors.names()) == names
    assert all(np.array_equal(tensor, stored[name].numpy()) for name, tensor in files.tensors.read())
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="model-2-of-2"):
        resolve(str(folder))


def test_writing_to_a_tensor_that_was_read_leaves_the_file_alone(folder: Path) -> None:
    save_file(tensors(), folder / "model.safetensors")
    before = (folder / "model.safetensors").read_bytes()
    for _, tensor in resolve(str(folder)).tensors.read():
        tensor += 1
    assert (folder / "model.safetensors").read_bytes() == before


def test_every_end_token_of_every_file_ends_an_answer(folder: Path) -> None:
    save_file(tensors(), folder / "model.safetensors")
    write(folder / "generation_config.json", {"eos_token_id": [END, 7, 9]})
    write(folder / "config.json", {"eos_token_id": [5, 7]})
    assert resolve(str(folder)).eos_ids == (5, 7, END, 9)


def test_the_template_file_wins_over_the_config_and_default_over_other_names(folder: Path) -> None:
    save_file(tensors(), folder / "model.safetensors")
    config = {"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}
    assert resolve(str(folder)).chat_template is None
    write(folder / "tokenizer_config.json", config)
    assert resolve(str(folder)).chat_template == "D"
    (folder / "chat_template.jinja").write_text("F", encoding="utf-8")
    assert resolve(str(folder)).chat_template == "F"


def test_whether_a_text_starts_with_the_begin_token_comes_from_config_or_post_processing(folder: Path) -> None:
    save_file(tensors(), folder / "model.safetensors")
    files = resolve(str(folder))
    assert (files.bos_id, files.add_bos, files.special["eos_token"]) == (BEGIN, False, "<|end|>")
    rules = Tokenizer.from_file(str(files.tokenizer))
    rules.post_processor = processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", BEGIN)])
    rules.save(str(folder / "tokenizer.json"))
    assert resolve(str(folder)).add_bos
    write(folder / "tokenizer_config.json", {"bos_token": "<|begin|>", "add_bos_token": False})
    assert not resolve(str(folder)).add_bos


def test_the_revision_follows_the_weights(folder: Path) -> None:
    save_file(tensors(1), folder / "model.safetensors")
    before = resolve(str(folder)).revision
    write(folder / "generation_config.json", {"temperature": 1})
    assert resolve(str(folder)).revision == before
    save_file(tensors(2), folder / "model.safetensors")
    assert resolve(str(folder)).revision != before


def test_weights_that_are_not_read_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="has no weights"):
        resolve(str(folder))
    torch.save(tensors(), folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"pickled weights.*pytorch_model\.bin"):
        resolve(str(folder))
    save_file({"w": torch.zeros(4, dtype=torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="F8_E4M3"):
        resolve(str(folder))
    write(folder / "config.json", {"quantization_config": {"quant_method": "gptq"}})
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        resolve(str(folder))


def test_damaged_and_missing_files_are_named(folder: Path) -> None:
    save_file(tensors(), folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match=r"model\.safetensors"):
            resolve(str(folder))
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"config\.json is not JSON"):
        resolve(str(folder))
    (folder / "tokenizer.json").unlink()
    write(folder / "config.json", {})
    with pytest.raises(ModelNotFound, match=r"^tokenizer\.json not found in "):
        resolve(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json not found"):
        resolve(str(folder))


def test_an_end_token_outside_the_vocabulary_is_refused(folder: Path) -> None:
    save_file(tensors(), folder / "model.safetensors")
    write(folder / "config.json", {"vocab_size": 50, "eos_token_id": [7, 50]})
    with pytest.raises(ArtifactError, match=r"eos_token_id is 50, which is outside the vocabulary \(0 to 49\)"):
        resolve(str(folder))
