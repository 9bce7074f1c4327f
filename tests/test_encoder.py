"""What an encoder computes, against transformers; and that no input's numbers depend on its neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headway.artifacts.files import ModelFiles, Modules, PoolingMode
from headway.compute.embed import formats
from headway.compute.embed.pooling import POOLING
from headway.compute.models.encoder import relative_buckets
from headway.compute.models.encoder_spec import EncoderSpec
from headway.core.errors import ArtifactError, ConfigError, UnsupportedModel
from headway.core.plan import Evaluate, StepPlan
from tiny_decoders import StateDict
from tiny_encoders import (
    CROSS_ENCODERS,
    ENCODERS,
    HIDDEN,
    SIZES,
    cosine,
    files_of,
    load,
    logit,
    oracle,
    run,
    states,
    text,
)

#: Mixed lengths, some of them equal; the longest sees beyond ModernBERT's windows.
LENGTHS = (5, 3, 40, 5, 150, 17, 3, 100, 64, 100)
TEXTS = tuple(Evaluate(text(length, seed)) for seed, length in enumerate(LENGTHS))


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_hidden_state_is_that_of_transformers(kind: str) -> None:
    model = oracle(kind)
    found = run(load(files_of(model)), *(replace(each, raw=True) for each in TEXTS))
    for each, values in zip(TEXTS, found, strict=True):
        assert np.abs(values - states(model, each)).max() < 2e-5


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_text_is_the_same_alone_and_among_others_in_any_order(kind: str) -> None:
    executor = load(files_of(oracle(kind), Modules(normalize=True)))
    together = run(executor, *TEXTS)
    order = np.random.default_rng(1).permutation(len(TEXTS))
    shuffled = run(executor, *(TEXTS[i] for i in order))
    for place, i in enumerate(order):
        assert np.abs(shuffled[place] - together[i]).max() < 1e-6
        assert np.abs(run(executor, TEXTS[i])[0] - together[i]).max() < 1e-6


@pytest.mark.parametrize("weights", ["int8", "bf16"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_other_formats_keep_the_direction(kind: str, weights: str) -> None:
    model = oracle(kind)
    executor = load(files_of(model), weights=weights)
    together = run(executor, *TEXTS)
    for each, vector in zip(TEXTS, together, strict=True):
        assert cosine(vector, states(model, each).mean(0, keepdims=True)) > 0.995
        assert np.abs(run(executor, each)[0] - vector).max() < 1e-5


@pytest.mark.parametrize("kind", ["bert", "roberta", "nomic"])
def test_a_pair_is_told_apart_by_token_types_where_the_model_has_them(kind: str) -> None:
    model = oracle(kind)
    pair = Evaluate(text(30), second=12, raw=True)
    alone = Evaluate(text(30, 5), raw=True)
    executor = load(files_of(model))
    found = run(executor, alone, pair)
    assert np.abs(found[1] - states(model, pair)).max() < 2e-5
    assert np.abs(found[0] - states(model, alone)).max() < 2e-5


@pytest.mark.parametrize("kind", CROSS_ENCODERS)
def test_a_cross_encoder_gives_the_sigmoid_of_transformers_logit(kind: str) -> None:
    model = oracle(kind, CROSS_ENCODERS)
    pairs = [Evaluate(text(length), second=length // 2) for length in (9, 40, 9, 100)]
    logits = [logit(model, each) for each in pairs]
    assert len({round(each, 3) for each in logits}) == 3  # 9 positions twice
    files = files_of(model)
    assert files.output == "score"
    executor = load(files)
    assert (executor.facts.output, executor.facts.vector) == ("score", 1)
    scores = [float(values.item()) for values in run(executor, *pairs)]
    assert scores == pytest.approx([1 / (1 + np.exp(-each)) for each in logits], abs=1e-5)
    plain = load(files_of(model, Modules(activation="identity")))
    assert [values.item() for values in run(plain, *pairs)] == pytest.approx(logits, abs=1e-4)


@pytest.mark.parametrize(("padding", "first"), [(1, 2), (4, 5)])
def test_positions_start_after_the_padding_for_every_packed_text(padding: int, first: int) -> None:
    """Golden: with hidden states that are nothing but the position's row, a text shows which rows it was given."""
    kind = "roberta" if padding == 1 else "roberta, padding 4"
    model = oracle(kind)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.zero_()
            if name.endswith("LayerNorm.weight"):
                weight.fill_(1.0)
        rows = torch.arange(160.0)[:, None] * torch.linspace(-1, 1, HIDDEN) + torch.linspace(0, 1, HIDDEN).square()
        model.embeddings.position_embeddings.weight.copy_(rows)
    norm = torch.nn.functional.layer_norm
    seen = run(load(files_of(model)), *(replace(each, raw=True) for each in TEXTS))
    for each, values in zip(TEXTS, seen, strict=True):
        expected = norm(norm(rows[first : first + len(each.tokens)], (HIDDEN,)), (HIDDEN,))
        assert np.abs(values - expected.numpy()).max() < 1e-3


def test_a_vocabularys_padding_token_inside_a_text_takes_a_position_like_any_other() -> None:
    """transformers gives it the padding's own position; a server that is sent it counts it, so others stay put."""
    model = oracle("roberta")
    item = Evaluate((2, 9, 9, 3))
    with torch.inference_mode():
        expected = model(torch.tensor([item.tokens]), position_ids=torch.arange(2, 6)[None]).last_hidden_state[0]
    assert np.abs(run(load(files_of(model)), replace(item, raw=True))[0] - expected.numpy()).max() < 2e-5


def test_relative_positions_fall_into_the_buckets_of_transformers() -> None:
    encoder = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    distance = torch.arange(-599, 600)
    assert torch.equal(relative_buckets(600, 32), encoder.relative_position_bucket(distance))


def test_a_window_over_several_tiles_is_the_mask_of_transformers() -> None:
    model = oracle("modernbert")
    model.config.max_position_embeddings = 1200
    long = Evaluate(text(1100), raw=True)
    found = run(load(files_of(model, max_position_embeddings=1200)), long)[0]
    assert np.abs(found - states(model, long)).max() < 2e-5


def test_pooling_is_sentence_transformers_formulae() -> None:
    """Of its Pooling module: sums over positions, divided by their number, its root, or weighted by place."""
    model = oracle("bert")
    of = states(model, TEXTS[2])
    place = np.arange(1, len(of) + 1)[:, None]
    expected = {
        "cls": of[0],
        "last": of[-1],
        "max": of.max(0),
        "mean": of.sum(0) / len(of),
        "mean_sqrt": of.sum(0) / np.sqrt(len(of)),
        "weighted_mean": (of * place).sum(0) / place.sum(),
    }
    assert expected.keys() == POOLING.keys()
    modes: tuple[PoolingMode, ...] = tuple(POOLING)
    executor = load(files_of(model, Modules(pooling=modes)))
    assert executor.facts.vector == HIDDEN * len(modes)
    found = run(executor, *TEXTS)[2].reshape(len(modes), HIDDEN)
    for mode, vector in zip(modes, found, strict=True):
        assert np.abs(vector - expected[mode]).max() < 2e-5, mode


def test_ranges_are_pooled_one_by_one_and_normalised_like_a_whole_text() -> None:
    model = oracle("bert")
    executor = load(files_of(model, Modules(normalize=True)))
    ranges = ((0, 10), (10, 25), (5, 40))
    whole, late = run(executor, TEXTS[2], replace(TEXTS[2], pools=ranges))
    of = states(model, TEXTS[2])
    expected = np.array([of[start:end].mean(0) for start, end in ranges])
    assert np.abs(late - expected / np.linalg.norm(expected, axis=1, keepdims=True)).max() < 1e-5
    assert np.abs(run(executor, replace(TEXTS[2], pools=((0, 40),)))[0] - whole).max() < 1e-6


def with_values(files: ModelFiles, name: str, value: float) -> ModelFiles:
    arrays = dict(files.tensors.read())
    arrays[name] = arrays[name].copy()
    arrays[name].reshape(-1)[0] = value
    return replace(files, tensors=StateDict(arrays))


def test_numbers_that_overflow_spoil_their_own_text_only() -> None:
    files = files_of(oracle("bert"))
    executor = load(with_values(files, "embeddings.word_embeddings.weight", 3e38))  # the row of token 0
    result = executor.run(StepPlan(0, (TEXTS[0], Evaluate((2, 0, 3)), TEXTS[1])))
    clean = load(files).run(StepPlan(0, (TEXTS[0], TEXTS[1])))
    assert result.spoiled == (1,)
    assert result.results[0] == clean.results[0]
    assert result.results[2] == clean.results[1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    files = with_values(files_of(oracle("bert")), "encoder.layer.0.output.dense.weight", value)
    with pytest.raises(ArtifactError, match=r"1 of the 6144 values of the tensor encoder\.layer\.0\.output\.dense"):
        load(files)


def test_a_step_of_too_many_positions_is_an_error_and_one_long_text_is_not() -> None:
    files = files_of(oracle("bert"))
    from headway.compute.embed.executor import EncoderExecutor

    executor = EncoderExecutor.load(files, cache=files.tokenizer, threads=1, max_step_positions=64)
    run(executor, Evaluate(text(150)))
    with pytest.raises(ValueError, match="65 positions; loaded for 64"):
        run(executor, Evaluate(text(32)), Evaluate(text(33)))
    with pytest.raises(ValueError, match="161 positions; the model takes 160"):
        run(executor, Evaluate(text(161)))


@pytest.mark.parametrize(
    ("kind", "changed", "feature"),
    [
        ("bert", {"architectures": ["DebertaV2Model"]}, "the architecture DebertaV2Model"),
        ("bert", {"hidden_act": "mish"}, "the activation 'mish'"),
        ("bert", {"position_embedding_type": "relative_key"}, "positions of another kind"),
        ("bert", {"is_decoder": True}, "attention to earlier positions only"),
        ("bert", {"num_attention_heads": 5}, "5 heads with a hidden size of 64"),
        ("nomic", {"rotary_emb_fraction": 0.5}, "partial rotary embedding"),
        ("nomic", {"rotary_emb_interleaved": True}, "interleaved rotary embedding"),
        ("nomic", {"num_experts": 8}, "a mixture of experts"),
        ("nomic", {"qkv_proj_bias": True}, "biases on its linear layers"),
        ("modernbert", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear_attention"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_is_not_implemented_is_refused_by_name(kind: str, changed: dict[str, Any], feature: str) -> None:
    config = oracle(kind).config.to_dict() | {"architectures": [ENCODERS[kind][0]]} | changed
    with pytest.raises(UnsupportedModel, match=feature):
        EncoderSpec.from_config(config, "tiny")


def test_a_classifier_of_several_labels_is_no_reranker() -> None:
    config = SIZES | {"architectures": ["BertForSequenceClassification"], "id2label": {0: "a", 1: "b"}}
    with pytest.raises(UnsupportedModel, match="a classification head of 2 labels"):
        EncoderSpec.from_config(config, "tiny")


def test_a_tensor_without_a_place_or_a_place_without_a_tensor_is_named() -> None:
    files = files_of(oracle("bert"))
    arrays = dict(files.tensors.read())
    with pytest.raises(UnsupportedModel, match=r"the tensor encoder\.layer\.0\.adapter\.weight"):
        load(replace(files, tensors=StateDict(arrays | {"encoder.layer.0.adapter.weight": np.ones((2, 2), "f4")})))
    del arrays["encoder.layer.1.attention.self.key.bias"]
    with pytest.raises(
        ArtifactError, match=r"the tensor encoder\.layer\.1\.attention\.self\.key\.bias .* is missing"
    ):
        load(replace(files, tensors=StateDict(arrays)))


def test_a_format_that_encoders_do_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--weights: int4 is not implemented for encoders"):
        load(files_of(oracle("bert")), weights="int4")


@pytest.mark.parametrize(
    ("fast", "kind", "bound", "expected"),
    [
        (True, "bert", 0.99, "bf16"),
        (False, "bert", 0.99, "fp32"),
        (True, "bert", 1.1, "fp32"),
        (True, "cross", 0, "fp32"),
    ],
)
def test_auto_is_bf16_only_where_that_is_quicker_and_keeps_the_direction(
    monkeypatch: pytest.MonkeyPatch, fast: bool, kind: str, bound: float, expected: str
) -> None:
    monkeypatch.setattr(formats, "multiplies_bf16", lambda: fast)
    monkeypatch.setattr(formats, "BOUND", bound)
    model = oracle("bert", CROSS_ENCODERS) if kind == "cross" else oracle(kind)
    assert load(files_of(model), weights="auto").facts.weights_format == expected


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_a_first_state_alone_is_the_same_whatever_else_the_step_asks_for(kind: str, weights: str) -> None:
    """Of a model that pools by it, the last layer is evaluated for first positions only, unless all are asked for."""
    model = oracle(kind)
    executor = load(files_of(model, Modules(pooling=("cls",))), weights=weights)
    raw, ranges = replace(TEXTS[4], raw=True), replace(TEXTS[2], pools=((0, 5), (9, 20)))
    mixed = run(executor, *TEXTS, raw, ranges)
    for each, vector in zip(TEXTS, mixed, strict=False):
        assert cosine(vector, states(model, each)[:1]) > (0.9999 if weights == "fp32" else 0.995)
        assert np.abs(run(executor, each)[0] - vector).max() < 1e-5
    of = states(model, ranges)
    bound = 0.9999 if weights == "fp32" else 0.98
    assert cosine(mixed[-1], of[[0, 9]]) > bound and cosine(mixed[-2], states(model, raw)) > bound
