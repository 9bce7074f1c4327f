"""The models that have aliases, against sentence-transformers on the same texts (`tools/goldens_embed.py`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.artifacts import resolve
from headway.compute.embed.executor import EncoderExecutor
from headway.core.plan import Evaluate
from headway.text.tokenizer import Tokenizer
from tiny_encoders import cosine, run

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "embeddings.json").read_text(encoding="utf-8"))
ENCODERS = sorted(GOLDEN["vectors"])
RERANKER = "ms-marco-minilm-l12"


@cache
def loaded(name: str, weights: str) -> EncoderExecutor:
    return EncoderExecutor.load(
        resolve(name), cache=Path("unused"), weights=weights, threads=2, max_step_positions=1024
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_texts_become_the_tokens_of_sentence_transformers(name: str) -> None:
    tokenizer = Tokenizer(resolve(name))
    assert [tokenizer.encode_with_special(text) for text in GOLDEN["texts"]] == [
        (ids, 0) for ids in GOLDEN["vectors"][name]["ids"]
    ]


@pytest.mark.parametrize(("weights", "bound"), [("fp32", 0.9999), ("int8", 0.995), ("bf16", 0.999)])
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_sentence_transformers(name: str, weights: str, bound: float) -> None:
    expected = GOLDEN["vectors"][name]
    items = [Evaluate(tuple(ids)) for ids in expected["ids"]]
    executor = loaded(name, weights)
    assert (executor.facts.vector, executor.facts.normalized) == (384, True)
    together = run(executor, *items)
    assert cosine(np.concatenate(together), np.array(expected["values"])) > bound
    for item, vector in zip(items, together, strict=True):
        assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5
        assert np.abs(run(executor, item)[0] - vector).max() < 1e-5


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("name", ENCODERS)
def test_texts_about_the_same_thing_are_nearest_to_each_other(name: str, weights: str) -> None:
    vectors = np.concatenate(run(loaded(name, weights), *_items(name)))
    near = vectors @ vectors.T - 2 * np.eye(len(vectors))
    for one, other in GOLDEN["similar"]:
        assert (int(near[one].argmax()), int(near[other].argmax())) == (other, one)


@pytest.mark.parametrize(("weights", "off"), [("fp32", 1e-3), ("int8", 0.8)])
def test_passages_rank_as_sentence_transformers_ranks_them(weights: str, off: float) -> None:
    files = resolve(RERANKER)
    assert (files.pattern, files.output) == ("embed", "score")
    tokenizer, executor = Tokenizer(files), loaded(RERANKER, weights)
    pairs = [tokenizer.encode_with_special(GOLDEN["query"], passage) for passage in GOLDEN["passages"]]
    assert [ids for ids, _ in pairs] == GOLDEN["pair_ids"]
    scores = [values.item() for values in run(executor, *(Evaluate(tuple(ids), second) for ids, second in pairs))]
    expected = GOLDEN["scores"][RERANKER]
    assert scores == pytest.approx(expected, abs=off)
    assert np.argsort(scores).tolist()[-3:] == np.argsort(expected).tolist()[-3:]


def _items(name: str) -> list[Evaluate]:
    return [Evaluate(tuple(ids)) for ids in GOLDEN["vectors"][name]["ids"]]
