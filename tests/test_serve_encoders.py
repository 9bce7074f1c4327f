"""A real bi-encoder and a real cross-encoder in one server, over HTTP, against transformers and against sense."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from headway.artifacts import resolve
from headway.story.tell.sentences import tell
from headway.story.tell.views import RequestView
from serving import Server, serving

EMBEDS, RERANKS = "minilm-l6", "ms-marco-minilm-l12"
#: Pairs that mean the same in other words; each must be nearer to its own than to any other.
PAIRS = (
    ("A cat sits on the mat.", "A kitten is resting on a rug."),
    ("The central bank raised interest rates.", "Borrowing became more expensive after the monetary decision."),
    ("How do I reset my password?", "I forgot my login and need a new passphrase."),
    ("The rocket reached orbit on Tuesday.", "A spacecraft was launched successfully this week."),
    ("Bake the bread for forty minutes.", "The loaf should stay in the oven for two thirds of an hour."),
)
ANSWERS = {
    "What is the capital of France?": "Paris has been the capital of France since the tenth century.",
    "How tall is Mount Everest?": "Mount Everest rises 8,849 metres above sea level.",
    "Who wrote Hamlet?": "The tragedy Hamlet was written by William Shakespeare around 1600.",
    "Why is the sky blue?": "Air scatters blue light more strongly than red light, so the sky looks blue.",
}
LONG = " ".join(f"Sentence number {i} speaks of rivers, mountains and the weather of that day." for i in range(60))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--model", EMBEDS, "--model", RERANKS) as server:
        yield server


@pytest.fixture(scope="module")
def oracle() -> tuple[Any, Any]:
    folder = resolve(EMBEDS).tokenizer.parent
    return transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


def answer(server: Server, path: str, body: dict[str, Any], id: str | None = None) -> dict[str, Any]:
    found = server.http.post(path, json=body, headers={"x-request-id": id} if id else {})
    assert found.status_code == 200, found.text
    result: dict[str, Any] = found.json()
    return result


def embed(server: Server, given: Any, **fields: Any) -> npt.NDArray[np.float32]:
    body = {"model": EMBEDS, "input": given, "encoding_format": "base64"} | fields
    rows = answer(server, "/v1/embeddings", body)["data"]
    return np.array([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])


def expected(oracle: tuple[Any, Any], text: str, most: int = 256) -> npt.NDArray[np.float32]:
    """Mean of the hidden states, of length 1."""
    tokenizer, model = oracle
    with torch.inference_mode():
        states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=most)).last_hidden_state
    vector: npt.NDArray[np.float32] = states[0].mean(0).numpy()
    return vector / np.linalg.norm(vector)


def test_vectors_are_those_of_transformers_alone_and_among_others_of_any_length(
    server: Server, oracle: tuple[Any, Any]
) -> None:
    texts = ["one", LONG[:300], *PAIRS[0], "Schöne Grüße aus 北京 🙂", LONG[:900], "one"]
    together = embed(server, texts)
    for text, vector in zip(texts, together, strict=True):
        assert vector @ expected(oracle, text) > 0.9999
        assert vector @ embed(server, text)[0] > 0.99999
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_vectors_are_those_of_sentence_transformers(server: Server) -> None:
    golden = json.loads((Path(__file__).parent / "data" / "embeddings.json").read_text(encoding="utf-8"))
    expected_rows = np.array(golden["vectors"][EMBEDS]["values"])
    assert ((embed(server, golden["texts"]) * expected_rows).sum(axis=1) > 0.9999).all()
    floats = answer(server, "/v1/embeddings", {"model": EMBEDS, "input": golden["texts"]})["data"]
    assert [row["embedding"] for row in floats] == embed(server, golden["texts"]).tolist()


def test_what_is_truncated_is_what_the_library_would_cut(server: Server, oracle: tuple[Any, Any]) -> None:
    assert embed(server, LONG, long_input="truncate")[0] @ expected(oracle, LONG) > 0.9999
    assert embed(server, LONG, truncate_prompt_tokens=40)[0] @ expected(oracle, LONG, 40) > 0.9999


def test_a_split_document_is_near_what_it_speaks_of_and_every_window_is_told(server: Server) -> None:
    body = {"model": EMBEDS, "input": LONG, "long_input": "split"}
    found = answer(server, "/v1/embeddings", body, id="book")
    windows = found["headway"]["inputs"][0]["windows"]
    assert found["headway"]["evaluations"] == len(windows) > 3
    told = tell(msgspec.convert(server.record("book"), RequestView))
    assert sum(words.startswith("Window ") for words in told) == len(windows)
    assert "(encode, pool, normalize)" in told[1]
    vector = np.array(found["data"][0]["embedding"])
    near, far = embed(server, ["Weather in the mountains along a river.", "Quarterly tax returns of a company."])
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5) and vector @ near > vector @ far + 0.2


def test_one_late_chunk_is_the_text_itself_and_chunks_know_their_document(server: Server) -> None:
    text = PAIRS[1][0]
    assert embed(server, [text], long_input="late")[0] @ embed(server, text)[0] > 0.99999
    chunks = ["Berlin is the capital of Germany.", "Its more than 3.8 million inhabitants make it a large city."]
    (question,) = embed(server, "How many people live in Berlin?")
    assert question @ embed(server, chunks, long_input="late")[1] > question @ embed(server, chunks)[1]


def test_similar_sentences_are_nearer_than_unrelated_ones_also_in_fewer_dimensions(server: Server) -> None:
    for fields in ({}, {"dimensions": 128}):
        left, right = (embed(server, [pair[side] for pair in PAIRS], **fields) for side in (0, 1))
        likeness = left @ right.T
        assert (likeness.argmax(axis=1) == np.arange(len(PAIRS))).all()
        assert left.shape[1] == fields.get("dimensions", 384)
        assert np.linalg.norm(left, axis=1) == pytest.approx(np.ones(len(PAIRS)), abs=1e-5)


def test_each_questions_own_answer_is_ranked_first(server: Server) -> None:
    documents = list(ANSWERS.values())
    for place, question in enumerate(ANSWERS):
        body = {"model": RERANKS, "query": question, "documents": documents}
        results = answer(server, "/v1/rerank", body)["results"]
        assert results[0]["index"] == place and results[0]["relevance_score"] > results[1]["relevance_score"] + 1


def test_both_models_are_listed_with_what_they_take(server: Server) -> None:
    listed = {model["id"]: model["max_model_len"] for model in server.get("/v1/models")["data"]}
    assert listed == {EMBEDS: 256, RERANKS: 512}
