"""GGUF files read as Hugging Face models; oracles: the `gguf` package's reader and transformers' GGUF loader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import tiny_models
from headway.artifacts import resolve
from headway.artifacts.files import ModelFiles
from headway.artifacts.gguf import deinterleave
from headway.artifacts.gguf_config import llama3_divisors
from headway.artifacts.gguf_header import read_header
from headway.compute.models.spec import DecoderSpec
from headway.core.errors import ArtifactError, ModelNotFound, UnsupportedModel


def load(path: Path) -> ModelFiles:
    return resolve(str(path), cache=path.parent / "cache")


def test_the_header_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    extra = {"general.alignment": 64, "general.languages": ["en", "日本"], "general.file_type": 7, "a.b": -0.1}
    path = tiny_models.write_gguf(tmp_path / "m.gguf", extra=extra, quantised=gguf.GGMLQuantizationType.Q8_0)
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    for key, value in ours.metadata.items():
        expected = theirs.fields[key].contents()
        if isinstance(value, float):
            assert np.float32(value) == np.float32(expected), key
        else:
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected, key
    assert len(ours.metadata) == len([key for key in theirs.fields if not key.startswith("GGUF.")])
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.format) == (other.name, other.tensor_type)
        assert mine.shape == tuple(other.shape.tolist())[::-1]
        assert (mine.offset_bytes, mine.size_bytes) == (other.data_offset, other.n_bytes)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_are_those_that_were_converted_and_the_config_is_that_of_transformers(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    original = tiny_models.weights(architecture, tied=tied)
    extra = {"qwen3.attention.key_length": tiny_models.HEAD_DIM} if architecture == "qwen3" else {}
    path = tiny_models.write_gguf(tmp_path / "m.gguf", architecture, tensors=original, extra=extra)
    files = load(path)
    tensors = dict(files.tensors.read())
    assert list(tensors) == files.tensors.names()
    assert tensors.keys() == original.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, original[name]), name
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file="m.gguf")
    config = theirs.to_dict()
    for key in ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "vocab_size", "max_position_embeddings", "hidden_act"):  # fmt: skip
        assert files.config[key] == config[key], key
    assert np.float32(files.config["rms_norm_eps"]) == np.float32(config["rms_norm_eps"])
    assert files.config["head_dim"] == tiny_models.HEAD_DIM
    assert files.config["rope_theta"] == theirs.rope_parameters["rope_theta"]
    assert files.config["tie_word_embeddings"] is tied
    spec = DecoderSpec.from_config(files.config, "tiny")
    assert (spec.qkv_bias, spec.qk_norm) == (architecture == "qwen2", architecture == "qwen3")


def test_rows_are_put_back_as_transformers_puts_them() -> None:
    rows = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    theirs = LlamaTensorProcessor()._reverse_permute_weights(rows, 3)
    assert np.array_equal(deinterleave(rows, 3), theirs)
    assert np.array_equal(deinterleave(tiny_models.interleaved(rows, 3), 3), rows)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "BF16", "F16"])
def test_quantised_weights_come_back_close_to_what_they_were(tmp_path: Path, kind: str) -> None:
    original = tiny_models.weights("llama")
    path = tiny_models.write_gguf(tmp_path / "m.gguf", tensors=original, quantised=gguf.GGMLQuantizationType[kind])
    files = load(path)
    bits = files.weights_bytes * 8 / sum(tensor.size for tensor in original.values())
    worst = {"Q4_0": 0.5, "Q4_1": 0.25, "Q5_0": 0.2, "Q8_0": 0.02, "BF16": 0.02, "F16": 0.003}[kind]
    assert bits < 17.5
    for name, tensor in files.tensors.read():
        assert np.abs(tensor - original[name]).max() < worst, name


def test_the_revision_changes_with_the_weights_and_not_between_starts(tmp_path: Path) -> None:
    first = tiny_models.write_gguf(tmp_path / "m.gguf", tensors=tiny_models.weights("llama", seed=1))
    before = load(first).revision
    assert load(first).revision == before and len(before) == 12 and int(before, 16) >= 0
    tiny_models.write_gguf(tmp_path / "m.gguf", tensors=tiny_models.weights("llama", seed=2))
    assert load(first).revision != before


def test_the_tokenizer_is_built_once(tmp_path: Path) -> None:
    path = tiny_models.write_gguf(tmp_path / "m.gguf")
    built = load(path).tokenizer.stat()
    again = load(path).tokenizer.stat()
    assert (built.st_mtime_ns, built.st_ino) == (again.st_mtime_ns, again.st_ino)


def test_every_end_token_ends_an_answer(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 8}
    files = load(tiny_models.write_gguf(tmp_path / "m.gguf", extra=extra))
    tokens = tiny_models.vocabulary()[0]
    assert files.eos_ids == (tokens.index("<|end|>"), 7, 8)
    assert files.special == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert files.chat_template is None


def test_llama_3_frequencies_are_recognised_by_their_numbers(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=8,
                         rope_parameters=scaling | {"rope_theta": 10000.0})  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 10000.0 ** -(np.arange(0, 8, 2) / 8)
    divisors = (plain / scaled.numpy()).astype(np.float32)
    assert np.allclose(llama3_divisors(scaling, 10000.0, 8), divisors, rtol=1e-5)
    assert divisors.min() == 1.0 < divisors.max()


def test_frequencies_that_are_not_llama_3s_are_refused(tmp_path: Path) -> None:
    path = tiny_models.write_gguf(
        tmp_path / "m.gguf", raw={"rope_freqs.weight": np.array([1.0, 1.0, 1.0, 8.0], np.float32)}
    )
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight"):
        load(path)


def test_llama_3_frequencies_become_its_rope_scaling(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    divisors = llama3_divisors(scaling, 500000.0, tiny_models.HEAD_DIM).astype(np.float32)
    path = tiny_models.write_gguf(
        tmp_path / "m.gguf", raw={"rope_freqs.weight": divisors}, extra={"llama.rope.freq_base": 500000.0}
    )
    files = load(path)
    assert files.config["rope_scaling"] == scaling
    assert "rope_freqs.weight" not in files.tensors.names()


@pytest.mark.parametrize(
    ("extra", "feature"),
    [
        ({"llama.expert_count": 8}, r"llama\.expert_count = 8"),
        ({"llama.attention.sliding_window": 64}, r"llama\.attention\.sliding_window = 64"),
        ({"llama.attn_logit_softcapping": 50.0}, "softcapping"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "'yarn'"),
        ({"llama.attention.value_length": 16}, "value_length = 16"),
        ({"split.count": 3}, "3 files"),
        ({"tokenizer.ggml.add_eos_token": True}, "add_eos_token"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path: Path, extra: dict[str, object], feature: str) -> None:
    with pytest.raises(UnsupportedModel, match=feature):
        load(tiny_models.write_gguf(tmp_path / "m.gguf", extra=extra))


def test_a_feature_that_is_present_but_off_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert load(tiny_models.write_gguf(tmp_path / "m.gguf", extra={"llama.expert_count": 0})).eos_ids


def test_other_architectures_tokenizers_and_tensors_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(UnsupportedModel, match="'gemma2'"):
        load(tiny_models.write_gguf(path, "gemma2", tensors={}))
    with pytest.raises(UnsupportedModel, match="SentencePiece"):
        load(tiny_models.write_gguf(path, tokenizer_model="llama"))
    with pytest.raises(UnsupportedModel, match="'tekken'"):
        load(tiny_models.write_gguf(path, pre="tekken"))
    with pytest.raises(ArtifactError, match=r"required GGUF key tokenizer\.ggml\.pre is missing"):
        load(tiny_models.write_gguf(path, pre=None))
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_gate_inp\.weight"):
        load(tiny_models.write_gguf(path, raw={"blk.0.ffn_gate_inp.weight": np.zeros((2, 32), np.float32)}))


def test_a_file_that_was_cut_off_says_so_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tiny_models.write_gguf(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for size in [*range(0, 200, 7), *range(200, len(whole), len(whole) // 40)]:
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match="not a complete GGUF"):
            read_header(path)


# -- what is no GGUF file, or a damaged one ---------------------------------------------------------------------


def test_a_gguf_file_is_known_by_its_first_bytes_whatever_its_name(tmp_path: Path) -> None:
    path = tiny_models.write_gguf(tmp_path / "weights.bin")
    assert load(path).eos_ids


@pytest.mark.parametrize("beside", ["config.json", "README.md"])
def test_a_folder_with_one_gguf_file_is_that_model(tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = tiny_models.write_gguf(folder / "sha256-abc")
    (folder / beside).write_text("{}")
    files = resolve(str(folder), cache=tmp_path / "cache")
    assert (files.name, files.source) == (str(folder), str(path))
    (folder / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelNotFound, match=r"2 GGUF files \(other\.gguf, sha256-abc\): give the path of one"):
        resolve(str(folder), cache=tmp_path / "cache")
    path.unlink()
    (folder / "other.gguf").write_bytes(b"no model")
    (folder / beside).unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json not found, and no GGUF file"):
        resolve(str(folder), cache=tmp_path / "cache")


def safetensors_bytes() -> bytes:
    return save({"w": np.zeros(4, np.float32)})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (safetensors_bytes(), "a safetensors file; give its folder"),
        (b"\x08\x07\x12\x04onnx", "ONNX files are not supported"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x80\x02}q", "a Python pickle"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
        (b"some text", r"begins with b'some', not b'GGUF'"),
    ],
)
def test_what_a_file_is_instead_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / ("m.onnx" if b"onnx" in content else "m.gguf")
    path.write_bytes(content)
    with pytest.raises(ModelNotFound, match=words):
        load(path)


@pytest.mark.parametrize(
    ("version", "words"), [(b"\1\0\0\0", "GGUF version 1 "), (b"\0\0\0\3", "big-endian"), (b"\4\0\0\0", "version 4")]
)
def test_other_versions_and_byte_orders_are_refused_by_name(tmp_path: Path, version: bytes, words: str) -> None:
    path = tiny_models.write_gguf(tmp_path / "m.gguf")
    path.write_bytes(b"GGUF" + version + path.read_bytes()[8:])
    with pytest.raises(UnsupportedModel, match=words):
        load(path)


@pytest.mark.parametrize("role", ["bos", "eos", "eot", "eom", "unknown", "padding", "seperator"])
@pytest.mark.parametrize("id", [100_000, 2**32 - 1])
def test_a_special_token_outside_the_vocabulary_is_refused(tmp_path: Path, role: str, id: int) -> None:
    path = tiny_models.write_gguf(tmp_path / "m.gguf")
    rewrite(path, {f"tokenizer.ggml.{role}_token_id": id})
    last = len(tiny_models.vocabulary()[0]) - 1
    words = rf"tokenizer\.ggml\.{role}_token_id is {id}, which is outside the vocabulary \(0 to {last}\)"
    with pytest.raises(ArtifactError, match=words):
        load(path)


@pytest.mark.parametrize(
    "key",
    ["general.architecture", "llama.block_count", "llama.context_length", "llama.embedding_length",
     "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
     "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges",
     "tokenizer.ggml.token_type"],
)  # fmt: skip
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = tiny_models.write_gguf(tmp_path / "m.gguf")
    rewrite(path, {}, without=key)
    with pytest.raises(ArtifactError, match=rf"required GGUF key {key} is missing$"):
        load(path)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"llama.attention.head_count": 0}, r"head_count is 0; it must be a number above 0"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        ({"llama.rope.freq_base": float("inf")}, "freq_base is inf"),
        ({"llama.block_count": "two"}, "block_count is 'two'"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "but 2 types"),
        ({"tokenizer.ggml.merges": ["zzz qqq"]}, "no tokenizer can be built"),
        ({"tokenizer.ggml.eos_token_id": "end"}, "is 'end', which is not a token id"),
    ],
)
def test_a_value_that_cannot_be_right_is_named(tmp_path: Path, extra: dict[str, object], words: str) -> None:
    path = tiny_models.write_gguf(tmp_path / "m.gguf")
    rewrite(path, extra)
    with pytest.raises(ArtifactError, match=words):
        load(path)


def rewrite(path: Path, changed: dict[str, object], without: str | None = None) -> None:
    """The same file with other metadata, by the `gguf` package."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "llama")
    writer.kv_data[0].pop("general.architecture")
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == without or key in changed:
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for key, value in changed.items():
        inner = gguf.GGUFValueType[kinds[type(value[0])]] if isinstance(value, list) else None
        writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)
