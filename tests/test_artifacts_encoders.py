"""Folders of encoders as people have them: what surrounds the hidden states is read, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from headway.artifacts import resolve
from headway.artifacts.files import DenseStage, Modules
from headway.artifacts.onnx import OnnxTensors
from headway.cli import models as command
from headway.core.config import Environment
from headway.core.errors import ArtifactError, ModelNotFound, UnsupportedModel
from headway.core.plan import Evaluate
from headway.text.tokenizer import Tokenizer
from tiny_encoders import CROSS_ENCODERS, HIDDEN, load, oracle, run, save, states, text, tokenizer

OLD, NEW = "sentence_transformers.models", "sentence_transformers.sentence_transformer.modules"


def stages(*kinds: str, prefix: str = OLD) -> list[dict[str, Any]]:
    paths = {kind: "" if kind == "Transformer" else f"{place}_{kind}" for place, kind in enumerate(kinds)}
    return [
        {"idx": i, "name": str(i), "path": paths[kind], "type": f"{prefix}.{kind}"} for i, kind in enumerate(kinds)
    ]


def pooling(**modes: bool) -> dict[str, Any]:
    return {"word_embedding_dimension": HIDDEN} | {f"pooling_mode_{mode}": on for mode, on in modes.items()}


MEAN = {"1_Pooling/config.json": pooling(cls_token=False, mean_tokens=True)}
PLAIN = MEAN | {"modules.json": stages("Transformer", "Pooling")}
SCALED = MEAN | {"modules.json": stages("Transformer", "Pooling", "Normalize")}


def modules_of(folder: Path, parts: dict[str, Any], kind: str = "bert") -> Modules:
    files = resolve(str(save(oracle(kind), folder, parts)))
    assert files.pattern == "embed" and files.modules is not None
    return files.modules


def test_a_folder_without_modules_is_pooled_by_mean_as_sentence_transformers_does(tmp_path: Path) -> None:
    assert modules_of(tmp_path, {}) == Modules(pooling=("mean",))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (pooling(cls_token=True, mean_tokens=False), ("cls",)),
        (pooling(mean_tokens=True, cls_token=True, max_tokens=True), ("cls", "max", "mean")),
        (pooling(lasttoken=True), ("last",)),
        (pooling(weightedmean_tokens=True, mean_sqrt_len_tokens=True), ("mean_sqrt", "weighted_mean")),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, ("last",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
    ],
    ids=["cls", "three", "last", "weighted", "named", "list"],
)
def test_every_way_of_pooling_is_read_in_its_order(tmp_path: Path, config: dict[str, Any], expected: Any) -> None:
    assert modules_of(tmp_path, PLAIN | {"1_Pooling/config.json": config}).pooling == expected


@pytest.mark.parametrize("prefix", [OLD, NEW])
def test_stages_lengths_and_prompts_are_read(tmp_path: Path, prefix: str) -> None:
    found = modules_of(
        tmp_path,
        MEAN
        | {
            "modules.json": stages("Transformer", "Pooling", "Normalize", prefix=prefix),
            "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": True},
            "tokenizer_config.json": {"model_max_length": 150},
            "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        },
    )
    assert found == Modules(("mean",), (), True, 128, True, {"query": "q: "}, "query")


def test_the_longest_input_is_what_sentence_transformers_would_cut_at(tmp_path: Path) -> None:
    roberta = resolve(str(save(oracle("roberta"), tmp_path / "a", PLAIN)))
    assert load(roberta).facts.max_context == 158  # 160 rows, two of them before the first position
    short = resolve(
        str(save(oracle("roberta"), tmp_path / "b", PLAIN | {"tokenizer_config.json": {"model_max_length": 9}}))
    )
    assert load(short).facts.max_context == 9
    endless = PLAIN | {"tokenizer_config.json": {"model_max_length": 1000000000000000019884624838656}}
    assert load(resolve(str(save(oracle("bert"), tmp_path / "c", endless)))).facts.max_context == 160


def test_a_folder_is_evaluated_as_its_files_say(tmp_path: Path) -> None:
    model = oracle("mpnet")
    files = resolve(str(save(model, tmp_path, SCALED)))
    executor, item = load(files), Evaluate(text(20))
    expected = states(model, item).mean(0)
    assert np.abs(run(executor, item)[0] - expected / np.linalg.norm(expected)).max() < 1e-5
    assert executor.facts.graph == ("encode ×1", "pool ×1", "normalize ×1")
    assert (executor.facts.vector, executor.facts.normalized) == (HIDDEN, True)


def test_a_dense_stage_comes_between_pooling_and_normalising(tmp_path: Path) -> None:
    model, linear = oracle("bert"), torch.nn.Linear(HIDDEN, 12)
    dense = {"in_features": HIDDEN, "out_features": 12, "bias": True}
    parts = MEAN | {
        "modules.json": stages("Transformer", "Pooling", "Dense", "Normalize"),
        "2_Dense/config.json": dense | {"activation_function": "torch.nn.modules.activation.Tanh"},
    }
    save(model, tmp_path, parts)
    save_file({"linear.weight": linear.weight, "linear.bias": linear.bias}, tmp_path / "2_Dense/model.safetensors")
    files = resolve(str(tmp_path))
    assert files.modules is not None
    assert files.modules.dense == (DenseStage("2_Dense", HIDDEN, 12, True, "Tanh"),)
    assert files.graph == ("encode ×1", "pool ×1", "dense ×1", "normalize ×1")
    executor, item = load(files), Evaluate(text(20))
    with torch.no_grad():
        expected = torch.tanh(linear(torch.tensor(states(model, item)).mean(0))).numpy()
    assert np.abs(run(executor, item)[0] - expected / np.linalg.norm(expected)).max() < 1e-5
    (tmp_path / "2_Dense/model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"2_Dense has no model\.safetensors"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("parts", "feature"),
    [
        (
            {"modules.json": stages("Transformer", "Pooling", "LayerNorm")},
            r"the module sentence_transformers\.models\.LayerNorm",
        ),
        ({"modules.json": stages("Transformer", "Normalize", "Pooling")}, "Pooling after Normalize"),
        (
            {"modules.json": stages("Transformer", "Pooling", prefix="custom_st")},
            r"the module custom_st\.Transformer",
        ),
        ({"modules.json": stages("Transformer")}, "no pooling"),
        ({"1_Pooling/config.json": pooling(splade_tokens=True)}, "pooling of type 'pooling_mode_splade_tokens'"),
        ({"1_Pooling/config.json": pooling(mean_tokens=False)}, "pooling of type None"),
        ({"1_Pooling/config.json": pooling(mean_tokens=True) | {"include_prompt": False}}, "leaves out the prompt"),
    ],
    ids=["module", "order", "custom", "unpooled", "pooling", "none", "prompt"],
)
def test_a_module_that_is_not_known_is_refused_by_name(tmp_path: Path, parts: dict[str, Any], feature: str) -> None:
    save(oracle("bert"), tmp_path, PLAIN | parts)
    with pytest.raises(UnsupportedModel, match=feature):
        resolve(str(tmp_path))


def test_modules_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    outside = stages("Transformer", "Pooling")
    outside[1]["path"] = "../1_Pooling"
    save(oracle("bert"), tmp_path / "model", PLAIN | {"modules.json": outside})
    with pytest.raises(ArtifactError, match="outside the folder"):
        resolve(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
    ],
    ids=["default", "new", "old"],
)
def test_a_cross_encoders_activation_is_that_of_sentence_transformers(
    tmp_path: Path, said: dict[str, Any], expected: str
) -> None:
    model = oracle("bert", CROSS_ENCODERS)
    model.config.update(said)
    files = resolve(str(save(model, tmp_path)))
    assert files.modules is not None
    assert (files.output, files.graph, files.modules.activation) == ("score", ("encode ×1", "score ×1"), expected)


def test_text_models_are_none_of_this() -> None:
    files = resolve("smollm2-135m")
    assert (files.pattern, files.output, files.modules) == ("text", "tokens", None)


@pytest.mark.parametrize("kind", ["nomic", "bert"])
def test_published_names_of_tensors_are_known(tmp_path: Path, kind: str) -> None:
    """Nomic-BERT as its own code saves it, and norms as TensorFlow called them."""
    model = oracle(kind)
    renamed = {_published(kind, name): tensor for name, tensor in model.state_dict().items()}
    if kind == "nomic":
        for i in range(3):
            parts = [renamed.pop(f"encoder.layers.{i}.self_attn.{part}_proj.weight") for part in "qkv"]
            renamed[f"encoder.layers.{i}.attn.Wqkv.weight"] = torch.cat(parts)
    save(model, tmp_path, PLAIN)
    save_file({name: tensor.contiguous() for name, tensor in renamed.items()}, tmp_path / "model.safetensors")
    item = Evaluate(text(20), raw=True)
    assert np.abs(run(load(resolve(str(tmp_path))), item)[0] - states(model, item)).max() < 2e-5


def _published(kind: str, name: str) -> str:
    if kind == "bert":
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    for ours, theirs in {
        "embeddings.LayerNorm": "emb_ln",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }.items():
        name = name.replace(ours, theirs)
    return name.replace("layers.", "encoder.layers.")


# -- ONNX ----------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        out.append((number & 0x7F) | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name: str, array: np.ndarray, *, spelled: bool = False) -> bytes:
    kind = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7}[array.dtype.name]
    message = b"".join(field(1, size) for size in array.shape) + field(2, kind) + field(8, name.encode())
    if not spelled:
        message += field(9, array.tobytes())
    elif kind == 1:
        message += field(4, array.tobytes())
    else:
        message += field(5, b"".join(varint(int(each) & (1 << 64) - 1) for each in array.reshape(-1)))
    return field(5, message)


def node(operator: str, inputs: list[str], outputs: list[str]) -> bytes:
    parts = [field(1, each.encode()) for each in inputs] + [field(2, each.encode()) for each in outputs]
    return field(1, b"".join(parts) + field(4, operator.encode()))


def onnx_file(path: Path, *parts: bytes) -> Path:
    path.write_bytes(field(1, 8) + field(2, b"test") + field(7, b"".join(parts)))
    return path


WEIGHT = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
PRODUCT = (
    node("MatMulInteger", ["x", "onnx::MatMul_7_quantized", "z", "onnx::MatMul_7_zero_point"], ["sums"]),
    node("Cast", ["sums"], ["floats"]),
    node("Mul", ["floats", "scales"], ["scaled"]),
    node("Add", ["encoder.dense.bias", "scaled"], ["y"]),
    tensor("encoder.dense.bias", np.ones(3, "f4")),
    tensor("onnx::MatMul_7_quantized", WEIGHT),
    tensor("onnx::MatMul_7_scale", np.array([0.5, 1, 2], "f4"), spelled=True),
    tensor("onnx::MatMul_7_zero_point", np.array([0, -1, 3], "i1"), spelled=True),
)


def test_a_quantised_matrix_is_widened_by_column_and_named_by_its_bias(tmp_path: Path) -> None:
    """Written by hand after the format's specification; what `onnx` itself reads is in the goldens."""
    read = OnnxTensors("m", onnx_file(tmp_path / "model.onnx", *PRODUCT))
    arrays = dict(read.read())
    assert arrays.keys() == {"encoder.dense.weight", "encoder.dense.bias"} == set(read.names())
    expected = (WEIGHT.astype("f4") - [0, -1, 3]) * np.array([0.5, 1, 2])
    assert np.array_equal(arrays["encoder.dense.weight"], expected.T)
    assert arrays["encoder.dense.weight"].dtype == np.float32
    other = OnnxTensors("m", onnx_file(tmp_path / "other.onnx", *PRODUCT[:-1], tensor("x_zero_point", WEIGHT[0])))
    assert read.digest() != other.digest()


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ((node("GroupQueryAttention", ["x"], ["y"]),), UnsupportedModel, "operator GroupQueryAttention"),
        ((tensor("ids", np.arange(3)),), UnsupportedModel, "ONNX data type 7"),
        ((field(5, field(8, b"w") + field(2, 1) + field(14, 1)),), UnsupportedModel, "in another file"),
        ((field(5, field(8, b"w") + field(2, 1) + field(1, 5) + field(9, b"1234")),), ArtifactError, "damaged at w"),
        ((b"\x2a\xff\x01",), ArtifactError, "field 5 ends after its message"),
        ((b"\x2b",), ArtifactError, "wire type 3"),
    ],
    ids=["operator", "type", "external", "shape", "cut off", "wire"],
)
def test_other_onnx_files_are_refused_by_name(
    tmp_path: Path, parts: tuple[bytes, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        OnnxTensors("m", onnx_file(tmp_path / "model.onnx", *parts))


def test_a_file_without_a_graph_is_no_onnx_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content in (field(2, b"test"), b"\xff" * 12, b""):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="not an ONNX model"):
            OnnxTensors("m", path)


# -- tokens, and what the command says ---------------------------------------------------------------------


def test_special_tokens_pairs_and_no_truncation(tmp_path: Path) -> None:
    save(oracle("bert"), tmp_path, PLAIN | {"sentence_bert_config.json": {"do_lower_case": True}})
    rules = tokenizer()
    rules.enable_truncation(6)
    rules.enable_padding(length=6)
    rules.save(str(tmp_path / "tokenizer.json"))
    tokens = Tokenizer(resolve(str(tmp_path)))
    assert tokens.encode_with_special("w0 W1") == ([2, 4, 5, 3], 0)
    assert tokens.encode_with_special("w0 w1", "w2") == ([2, 4, 5, 3, 6, 3], 4)
    long = "w0 " * 3000
    assert len(tokens.encode_with_special(long)[0]) == 3002
    ids, second = tokens.encode_with_special(long, long)
    assert (len(ids), second) == (6003, 3002)


def test_the_command_prints_the_graph_and_what_is_usable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = save(oracle("bert"), tmp_path, SCALED)
    facts = command.describe(str(folder), Environment.read(), offline=True)
    assert (facts["graph"], facts["usable"]) == (["encode ×1", "pool ×1", "normalize ×1"], "vector")
    command._print_facts(facts)
    assert "encode ×1 → pool ×1 → normalize ×1; usable: vector" in capsys.readouterr().out
