"""`/v1/rerank`: documents in the order of their scores beside a query, each a request of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from fake_encoders import Hosted, bi_encoder, cross_encoder
from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.compute.fake_patterns import expected_vector
from headway.core.plan import Evaluate
from headway.front.limits import ServeLimits
from serving import MODEL, until

RERANKS, EMBEDS, LIMIT, MOST_WAITING = "fake-rerank", "fake-embed", 32, 20
DOCUMENTS = ["paris", "a city of france", "the capital", "zq zq"]


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Hosted]:
    folder = tmp_path_factory.mktemp("encoders")
    return {each.name: each for each in (cross_encoder(folder, RERANKS), bi_encoder(folder, EMBEDS))}


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles, hosted: dict[str, Hosted]) -> Iterator[FakeServer]:
    limits = ServeLimits(max_waiting=MOST_WAITING)
    with fake_serving(smollm2, limits=limits, encoders=list(hosted.values())) as server:
        until(lambda: server.http.get("/ready").status_code == 200)
        yield server


def ask(server: FakeServer, documents: Any = DOCUMENTS, *, id: str | None = None, **fields: Any) -> httpx.Response:
    body = {"model": RERANKS, "query": "paris is", "documents": documents} | fields
    return server.http.post("/v1/rerank", json=body, headers={"x-request-id": id} if id else {})


def good(server: FakeServer, documents: Any = DOCUMENTS, **fields: Any) -> dict[str, Any]:
    answer = ask(server, documents, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def score(server: FakeServer, query: str, document: str, kept: int | None = None) -> float:
    """As the executor has it for the pair, of the document's first `kept` tokens."""
    model = server.front.models[RERANKS].tokenizer
    first, second = (model.encode(text, add_bos=False) for text in (query, document))
    tokens, begin = model.frame.pair(first, second[:kept])
    return float(np.frombuffer(expected_vector(Evaluate(tokens, second=begin), 1), "<f4")[0])


def refused(answer: httpx.Response, param: str, *words: str, code: str = "invalid_value") -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error
    for word in words:
        assert word in error["message"], error["message"]


def test_results_are_sorted_by_the_scores_of_the_pairs_and_name_the_documents_places(server: FakeServer) -> None:
    answer = good(server)
    expected = [score(server, "paris is", document) for document in DOCUMENTS]
    found = [(row["relevance_score"], row["index"]) for row in answer["results"]]
    assert found == sorted(zip(expected, range(4), strict=True), reverse=True)
    assert answer["model"] == RERANKS and "document" not in answer["results"][0]


def test_equal_documents_keep_their_order(server: FakeServer) -> None:
    assert [row["index"] for row in good(server, ["zq"] * 5)["results"]] == [0, 1, 2, 3, 4]


def test_so_many_of_the_best_are_returned_with_their_texts_where_that_is_asked_for(server: FakeServer) -> None:
    every, best = good(server)["results"], good(server, top_n=2, return_documents=True)["results"]
    assert [row["index"] for row in best] == [row["index"] for row in every[:2]]
    assert [row["document"]["text"] for row in best] == [DOCUMENTS[row["index"]] for row in best]
    assert len(good(server, top_n=9)["results"]) == 4
    objects = [{"text": text} for text in DOCUMENTS]
    assert good(server, objects)["results"] == every


def test_usage_counts_the_positions_of_all_pairs(server: FakeServer) -> None:
    answer = good(server, ["a", "a city"])
    assert answer["usage"] == {"prompt_tokens": 13, "total_tokens": 13}
    assert answer["meta"] == {"tokens": {"input_tokens": 13}}
    assert answer["headway"] == {"evaluations": 2, "inputs": []}


def test_each_document_is_a_request_and_one_step_takes_them_all(
    server: FakeServer, hosted: dict[str, Hosted]
) -> None:
    answer = ask(server, id="ranked")
    assert answer.json()["id"] == answer.headers["x-request-id"] == "ranked"
    records = server.http.get("/v1/requests/ranked").json()["data"]
    assert [each["id"] for each in records] == [f"ranked~{i}" for i in range(4)]
    assert {each["stage"] for each in records} == {"finished"} and records[0]["stages"] == ["encode", "score"]
    assert len({each["parts"][0]["step"] for each in records}) == 1
    assert "evaluate;dur=" in answer.headers["headway-timing"]


def test_a_document_too_long_beside_the_query_is_refused_by_its_place_or_truncated_and_the_query_never_is(
    server: FakeServer,
) -> None:
    long = "zq" * 14  # 28 tokens; 2 of the query and 3 around leave 27
    refused(
        ask(server, ["a", long]), "documents", "maximum context length is 32", "documents[1] beside the query",
        "33 tokens", "long_input to truncate", code="context_length_exceeded",
    )  # fmt: skip
    for fields, kept in (({"long_input": "truncate"}, 27), ({"max_tokens_per_doc": 9}, 9),
                         ({"truncate_prompt_tokens": -1}, 27), ({"truncate_prompt_tokens": 12}, 7)):  # fmt: skip
        answer = good(server, ["a", long], **fields)
        scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
        assert scores == {0: score(server, "paris is", "a"), 1: score(server, "paris is", long, kept)}, fields
        assert answer["headway"]["inputs"] == [{"index": 1, "what": "truncated", "tokens": 33, "kept": kept + 5}]
    query = "zq" * 15
    refused(ask(server, query=query, long_input="truncate"), "query", "the query", code="context_length_exceeded")
    refused(ask(server, truncate_prompt_tokens=4), "truncate_prompt_tokens", "to 32")


def test_a_document_that_its_words_alone_tell_to_be_too_long_is_never_tokenised(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **how: Any) -> Any:
        raise AssertionError("it was tokenised")

    monkeypatch.setattr(server.front.models[RERANKS].tokenizer, "encode", never)
    refused(ask(server, ["a", "paris " * 10_000]), "documents", "at least 10003", code="context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [({"documents": []}, "documents", "empty list"), ({"documents": ["a", ""]}, "documents", "documents[1] is empty"),
     ({"query": ""}, "query", "query is empty"), ({"documents": [{"title": "a"}]}, "documents", "documents[0]"),
     ({"top_n": 0}, "top_n", "from 1"), ({"rank_fields": ["title"]}, "rank_fields", "not supported"),
     ({"long_input": "split"}, "long_input", "long_input"), ({"foo": 1}, "foo", "not a known field"),
     ({"max_tokens_per_doc": 0}, "max_tokens_per_doc", "from 1"),
     ({"documents": ["a"] * 2049}, "documents", "documents is a list of 2049")],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)  # fmt: skip
def test_what_cannot_be_ranked_is_named(server: FakeServer, fields: dict[str, Any], param: str, words: str) -> None:
    refused(ask(server, **fields), param, words)


def test_only_a_cross_encoder_ranks_and_others_say_which_one_does(server: FakeServer) -> None:
    refused(ask(server, model=EMBEDS), "model", "bi-encoder", f"{RERANKS} does", code="wrong_pattern")
    refused(ask(server, model=MODEL), "model", "makes no relevance scores", RERANKS, code="wrong_pattern")


def test_hints_are_named_and_defaults_ask_for_nothing(server: FakeServer) -> None:
    answer = ask(server, user="me", priority=2, rank_fields=[], max_chunks_per_doc=None, return_embeddings=False)
    assert answer.status_code == 200 and answer.headers["headway-ignored"] == "user, priority"


def test_the_answer_is_what_the_document_says(server: FakeServer) -> None:
    document = server.http.get("/openapi.json").json()
    schema = document["components"]["schemas"]["Reranking"] | {"components": document["components"]}
    jsonschema.validate(good(server, return_documents=True), schema)
    jsonschema.validate(good(server, ["zq" * 14], long_input="truncate"), schema)
    assert document["components"]["schemas"]["RerankBody"]["properties"]["model"]["examples"] == [RERANKS]
