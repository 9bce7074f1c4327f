"""`/v1/embeddings`: what is answered, what is refused and in which words, and what can be told of it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import numpy as np
import openai
import pytest

from fake_encoders import CLS, SEP, VOCABULARY, Hosted, bi_encoder, cross_encoder, normalizing
from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles, Modules
from headway.compute.fake_patterns import expected_vector
from headway.core.plan import Evaluate
from headway.front.limits import ServeLimits
from headway.story.tell.sentences import tell
from headway.story.tell.views import RequestView
from serving import MODEL, until

EMBEDS, LENGTH_1, PROMPTED, FIRST = "fake-embed", "length-1", "prompted", "first-position"
VALUES, LIMIT, MOST_WAITING = 8, 32, 40
LONG = "abc " * 40  # three tokens each
PROMPTS = Modules(prompts={"query": "query : ", "passage": "passage : "}, default_prompt="passage")


def told_of(record: dict[str, Any]) -> list[str]:
    return tell(msgspec.convert(record, RequestView))


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Hosted]:
    folder = tmp_path_factory.mktemp("encoders")
    encoders = [
        bi_encoder(folder, EMBEDS),
        bi_encoder(folder, LENGTH_1, normalizing()),
        bi_encoder(folder, PROMPTED, PROMPTS),
        bi_encoder(folder, FIRST, Modules(pooling=("cls",))),
        cross_encoder(folder),
    ]
    return {each.name: each for each in encoders}


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles, hosted: dict[str, Hosted]) -> Iterator[FakeServer]:
    limits = ServeLimits(max_waiting=MOST_WAITING, max_waiting_positions=2000)
    with fake_serving(smollm2, limits=limits, encoders=list(hosted.values())) as server:
        until(lambda: server.http.get("/ready").status_code == 200)
        yield server


def ask(server: FakeServer, given: Any, *, id: str | None = None, **fields: Any) -> httpx.Response:
    body = {"model": EMBEDS, "input": given} | fields
    return server.http.post("/v1/embeddings", json=body, headers={"x-request-id": id} if id else {})


def good(server: FakeServer, given: Any, **fields: Any) -> dict[str, Any]:
    answer = ask(server, given, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    assert [row["index"] for row in answer["data"]] == list(range(len(answer["data"])))
    return [row["embedding"] for row in answer["data"]]


def right(server: FakeServer, text: str | Sequence[int], model: str = EMBEDS, **evaluate: Any) -> list[float]:
    """The vector of a text, as the executor has it; of token ids as they are."""
    ids = (CLS, *tokens(server, text), SEP) if isinstance(text, str) else tuple(text)
    row: list[float] = np.frombuffer(expected_vector(Evaluate(ids, **evaluate), VALUES), "<f4").tolist()
    return row


def tokens(server: FakeServer, text: str) -> list[int]:
    return server.front.models[EMBEDS].tokenizer.encode(text, add_bos=False)


def refused(answer: httpx.Response, param: str, *words: str, status: int = 400, code: str = "invalid_value") -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error
    for word in words:
        assert word in error["message"], error["message"]
    return str(error["message"])


# -- what is answered -----------------------------------------------------------------------------------------


def test_every_form_of_input_gets_a_vector_for_each_in_order_as_openai_shapes_it(server: FakeServer) -> None:
    ids = [[CLS, 7, 8, SEP], [CLS, 9, SEP]]
    for given, expected in (
        ("paris is", [right(server, "paris is")]),
        (["paris is"], [right(server, "paris is")]),
        (["zq", "paris is", "zq"], [right(server, "zq"), right(server, "paris is"), right(server, "zq")]),
        (ids[0], [right(server, ids[0])]),
        (ids, [right(server, ids[0]), right(server, ids[1])]),
    ):
        answer = good(server, given)
        assert vectors(answer) == expected
        assert (answer["object"], answer["model"]) == ("list", EMBEDS)
        assert {row["object"] for row in answer["data"]} == {"embedding"}
        assert answer["headway"] == {"evaluations": len(expected), "inputs": []}


def test_usage_counts_the_positions_that_were_evaluated_special_tokens_included(server: FakeServer) -> None:
    assert good(server, ["paris is", "zq"])["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_base64_holds_the_same_values_in_fp32(server: FakeServer) -> None:
    rows = good(server, ["paris", "a city"], encoding_format="base64")["data"]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4").tolist() for row in rows]
    assert found == [right(server, "paris"), right(server, "a city")]


def test_fewer_dimensions_are_the_first_values_made_of_length_1_where_the_models_vectors_are(
    server: FakeServer,
) -> None:
    whole = np.array(right(server, "paris"))
    assert vectors(good(server, "paris", dimensions=3)) == [whole[:3].tolist()]
    (cut,) = vectors(good(server, "paris", model=LENGTH_1, dimensions=3))
    assert cut == pytest.approx(whole[:3] / np.linalg.norm(whole[:3]), abs=1e-6)
    (all_of_it,) = vectors(good(server, "paris", model=LENGTH_1, dimensions=VALUES))
    assert all_of_it == vectors(good(server, "paris", model=LENGTH_1))[0], "its own size changes nothing"


def test_vectors_are_made_of_length_1_where_that_is_asked_for(server: FakeServer) -> None:
    (row,) = vectors(good(server, "paris", normalize=True))
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)
    refused(ask(server, "paris", model=LENGTH_1, normalize=False), "normalize", "normalizes its vectors itself")


def test_without_special_tokens_an_input_is_its_own_tokens(server: FakeServer) -> None:
    answer = good(server, ["paris is", [7, 8]], add_special_tokens=False)
    assert vectors(answer) == [right(server, tokens(server, "paris is")), right(server, [7, 8])]


def test_white_space_is_a_text_without_tokens_of_its_own_and_still_has_a_vector(server: FakeServer) -> None:
    assert vectors(good(server, " ")) == [right(server, [CLS, SEP])]


def test_fields_at_null_or_their_default_ask_for_nothing_and_hints_are_named(server: FakeServer) -> None:
    nothing = {"dimensions": None, "encoding_format": None, "truncate": False, "late_chunking": None, "task": None}
    answer = ask(server, "paris", user="me", metadata={}, **nothing)
    assert answer.status_code == 200 and answer.headers["headway-ignored"] == "user, metadata"


def test_the_vectors_of_all_tokens_stand_together_under_their_input(server: FakeServer) -> None:
    ids = (CLS, *tokens(server, "paris is"), SEP)
    expected = np.frombuffer(expected_vector(Evaluate(ids, raw=True), VALUES), "<f4").reshape(4, VALUES)
    (row,) = good(server, "paris is", token_vectors=True)["data"]
    assert row["embeddings"] == expected.tolist() and "embedding" not in row
    (row,) = good(server, "paris is", token_vectors=True, encoding_format="base64", dimensions=3)["data"]
    cut = [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in row["embeddings"]]
    assert cut == expected[:, :3].tolist()
    refused(ask(server, LONG, token_vectors=True, long_input="split"), "token_vectors", "pools nothing")


def test_tokenize_gives_the_ids_that_embeddings_take(server: FakeServer) -> None:
    def ids(**fields: Any) -> list[int]:
        body = {"model": EMBEDS, "prompt": "paris is"} | fields
        found: list[int] = server.http.post("/tokenize", json=body).json()["tokens"]
        return found

    assert ids() == [CLS, *tokens(server, "paris is"), SEP] and ids(add_special_tokens=False) == ids()[1:-1]
    assert vectors(good(server, ids())) == vectors(good(server, "paris is"))


# -- prompts --------------------------------------------------------------------------------------------------


def test_the_models_prompts_go_before_texts_by_name_by_type_or_by_its_default(server: FakeServer) -> None:
    def of(**fields: Any) -> list[list[float]]:
        return vectors(good(server, "paris", model=PROMPTED, **fields))

    assert of() == of(prompt_name="passage") == of(input_type="search_document") == [right(server, "passage : paris")]
    assert of(prompt_name="query") == of(input_type="query") == [right(server, "query : paris")]
    chunks = good(server, ["paris", "a city"], model=PROMPTED, prompt_name="query", long_input="late")
    own = [tokens(server, text) for text in ("query : paris", "a city")]
    assert chunks["headway"]["inputs"][0]["chunks"] == [[0, len(own[0])], [len(own[0]), sum(map(len, own))]]
    assert good(server, [CLS, 9, SEP], model=PROMPTED)["usage"]["total_tokens"] == 3, "ids are as they are"


def test_a_prompt_that_the_model_does_not_have_is_refused_and_a_type_means_nothing_to_one_without(
    server: FakeServer,
) -> None:
    refused(ask(server, "x", model=PROMPTED, prompt_name="code"), "prompt_name", "'query', 'passage'")
    refused(ask(server, "x", prompt_name="query"), "prompt_name", "it has none")
    refused(ask(server, "x", input_type="poem"), "input_type", "search_query")
    refused(ask(server, [[CLS, SEP]], model=PROMPTED, prompt_name="query"), "input", "prompt")
    refused(ask(server, "x", model=PROMPTED, prompt_name="query", input_type="query"), "input_type", "prompt_name")
    answer = ask(server, "x", input_type="query")
    assert answer.status_code == 200 and answer.headers["headway-ignored"] == "input_type"


# -- long inputs ----------------------------------------------------------------------------------------------


def test_an_input_longer_than_the_model_takes_is_refused_by_its_place_with_its_length_and_the_choices(
    server: FakeServer,
) -> None:
    text = "zq" * 16  # one word of 32 tokens: its words tell nothing of its length
    message = refused(
        ask(server, ["fits", text], id="long"), "input", "input[1] resulted in 34 tokens", "truncate or split",
        code="context_length_exceeded",
    )  # fmt: skip
    assert message.startswith("This model's maximum context length is 32 tokens. However, ")
    record = server.record("long")
    assert (record["pattern"], record["stage"]) == ("embed", "refused")
    assert (record["verdict"]["need"], record["verdict"]["limit"]) == (34, 32)


def test_one_that_its_words_alone_tell_to_be_too_long_is_never_tokenised(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **how: Any) -> Any:
        raise AssertionError("it was tokenised")

    monkeypatch.setattr(server.front.models[EMBEDS].tokenizer, "encode", never)
    monkeypatch.setattr(server.front.models[EMBEDS].tokenizer, "encode_all", never)
    text = "paris " * 100_000
    refused(ask(server, [text]), "input", "at least 100002 tokens", code="context_length_exceeded")


def test_what_fills_the_model_to_the_last_position_is_served(server: FakeServer) -> None:
    assert ask(server, " ".join(["a"] * LIMIT), add_special_tokens=False).status_code == 200
    text = " ".join(["a"] * (LIMIT - 2))
    assert good(server, text)["usage"]["total_tokens"] == LIMIT
    assert ask(server, f"{text} a").status_code == 400


def test_a_truncated_input_is_its_beginning_and_the_answer_says_so(server: FakeServer) -> None:
    own = tokens(server, LONG)
    as_ids = [CLS, *own, SEP]
    assert vectors(good(server, as_ids, long_input="truncate")) == vectors(good(server, LONG, long_input="truncate"))
    answer = good(server, ["paris", LONG], long_input="truncate")
    assert vectors(answer) == [right(server, "paris"), right(server, [CLS, *own[: LIMIT - 2], SEP])]
    assert answer["headway"]["inputs"] == [{"index": 1, "what": "truncated", "tokens": len(own) + 2, "kept": LIMIT}]


def test_vllms_truncate_prompt_tokens_means_the_same_at_so_many_tokens(server: FakeServer) -> None:
    own = tokens(server, LONG)
    answer = good(server, LONG, truncate_prompt_tokens=10)
    assert vectors(answer) == [right(server, [CLS, *own[:8], SEP])] and answer["headway"]["inputs"][0]["kept"] == 10
    assert vectors(good(server, LONG, truncate_prompt_tokens=-1)) == vectors(
        good(server, LONG, long_input="truncate")
    )
    for tokens_, words in ((2, "from 3 to 32"), (33, "from 3 to 32"), (0, "at least 1")):
        refused(ask(server, LONG, truncate_prompt_tokens=tokens_), "truncate_prompt_tokens", words)
    refused(ask(server, LONG, truncate_prompt_tokens=9, long_input="split"), "truncate_prompt_tokens", "split")


def test_a_split_input_is_the_mean_of_its_windows_weighted_by_their_tokens(server: FakeServer) -> None:
    own = tokens(server, LONG)
    answer = good(server, LONG, long_input="split", id="split")
    (told,) = answer["headway"]["inputs"]
    assert told["what"] == "split" and sum(told["windows"]) == len(own) + 2 * len(told["windows"])
    bounds = np.cumsum([0, *(each - 2 for each in told["windows"])])
    parts = [own[start:end] for start, end in itertools.pairwise(bounds)]
    rows = np.array([right(server, [CLS, *part, SEP]) for part in parts])
    assert vectors(answer)[0] == pytest.approx(np.average(rows, axis=0, weights=[*map(len, parts)]), rel=1e-6)
    assert answer["headway"]["evaluations"] == len(parts) == 4
    record = server.record("split")
    assert [part["positions"] for part in record["parts"]] == told["windows"]
    (row,) = vectors(good(server, LONG, long_input="split", model=LENGTH_1))
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6), "the mean of vectors of length 1 is made of length 1"


def test_every_window_begins_with_the_prompt(server: FakeServer, hosted: dict[str, Hosted]) -> None:
    good(server, LONG, long_input="split", prompt_name="query", model=PROMPTED)
    windows = hosted[PROMPTED].executor.seen[-1].items
    prompt = tokens(server, "query : ")
    assert len(windows) == 5 and all(list(each.tokens[1 : 1 + len(prompt)]) == prompt for each in windows)


def test_late_chunks_are_pooled_from_one_pass_over_the_whole_document(
    server: FakeServer, hosted: dict[str, Hosted]
) -> None:
    texts = ["paris is", "the capital of france", "a city"]
    own = [tokens(server, text) for text in texts]
    answer = good(server, texts, long_input="late", id="late")
    ids = (CLS, *own[0], *own[1], *own[2], SEP)
    ends = np.cumsum([len(part) for part in own])
    pools = ((0, int(ends[0]) + 1), (int(ends[0]) + 1, int(ends[1]) + 1), (int(ends[1]) + 1, len(ids)))
    expected = np.frombuffer(expected_vector(Evaluate(ids, pools=pools), VALUES), "<f4").reshape(3, -1)
    assert vectors(answer) == expected.tolist()
    assert answer["headway"]["evaluations"] == 1 and server.record("late")["stage"] == "finished", "one request"
    assert answer["headway"]["inputs"][0]["chunks"] == [[0, int(ends[0])], [int(ends[0]), int(ends[1])],
                                                        [int(ends[1]), int(ends[2])]]  # fmt: skip


def test_late_chunks_of_a_size_are_cut_from_each_document(server: FakeServer) -> None:
    answer = good(server, ["a " * 7, "paris"], long_input="late", chunk_tokens=3)
    assert len(vectors(answer)) == 4
    chunks = [told["chunks"] for told in answer["headway"]["inputs"]]
    assert chunks == [[[0, 3], [3, 6], [6, 7]], [[0, 1]]]
    refused(ask(server, "a", chunk_tokens=3), "chunk_tokens", "late")


def test_late_is_refused_where_one_pass_cannot_hold_the_document_or_its_positions_are_not_pooled(
    server: FakeServer,
) -> None:
    refused(ask(server, [LONG], long_input="late"), "input", "set long_input to", code="context_length_exceeded")
    refused(ask(server, ["ab" * 10, "ab" * 10], long_input="late"), "input", "resulted in 42 tokens", "split",
            code="context_length_exceeded")  # fmt: skip
    refused(ask(server, ["a"], long_input="late", model=FIRST), "long_input", "cls", "use split")
    refused(ask(server, ["a", " "], long_input="late"), "input", "input[1]", "nothing to pool")


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [("", "input is empty"), ([], "empty list"), (["a", ""], "input[1] is empty"), ([[CLS], []], "input[1] is empty"),
     ([1.5], "input[0] is neither a string nor token ids"), ([["a"]], "input[0] is neither"), ([True], "neither"),
     ([{"text": "a"}], "neither"), (["a", [CLS, SEP]], None), ([len(VOCABULARY)], "check_embedding_ctx_length"),
     ([-1], "from 0 to"), ([7, 8], "without the special tokens")],
    ids=lambda given: str(given)[:20],
)  # fmt: skip
def test_an_input_that_is_none_is_refused_by_its_place(server: FakeServer, given: Any, words: str | None) -> None:
    answer = ask(server, given)
    if words is None:
        assert answer.status_code == 200, "texts and ids may stand side by side"
    else:
        refused(answer, "input", words)


def test_a_list_longer_than_the_queue_is_taken_in_parts_so_that_others_find_a_place(
    server: FakeServer, hosted: dict[str, Hosted]
) -> None:
    """LangChain sends a thousand texts at a time."""
    executor, answers = hosted[EMBEDS].executor, []
    texts = [f"a{i}" for i in range(3 * MOST_WAITING)]
    executor.gate.clear()
    try:
        call = threading.Thread(target=lambda: answers.append(good(server, texts, id="many")))
        call.start()
        until(lambda: executor.waits)
        assert len(server.front.story.live) == MOST_WAITING // 2
        other = threading.Thread(target=lambda: answers.append(good(server, "paris")))
        other.start()
        until(lambda: len(server.front.story.live) == MOST_WAITING // 2 + 1)
    finally:
        executor.gate.set()
        other.join(10)
        call.join(10)
    (many,) = [answer for answer in answers if len(answer["data"]) > 1]
    assert vectors(many) == [right(server, text) for text in texts] and len(answers) == 2
    assert len(server.http.get("/v1/requests/many").json()["data"]) == len(texts)


def test_too_many_inputs_or_positions_are_400_and_a_full_queue_is_429(
    server: FakeServer, hosted: dict[str, Hosted]
) -> None:
    refused(ask(server, ["a"] * 2049), "input", "input is a list of 2049", "at most 2048")
    refused(ask(server, ["a " * 100] * 30, long_input="split"), "input", "positions", "2000 may wait")
    gate = hosted[EMBEDS].executor.gate
    gate.clear()
    calls = [threading.Thread(target=good, args=(server, ["a"] * 20)) for _ in range(3)]
    executor = hosted[EMBEDS].executor
    try:
        for call in calls:
            call.start()
            until(lambda: executor.waits)  # those of the first are in the step, the others wait
        until(lambda: server.front.waiting == MOST_WAITING)
        answer = ask(server, "paris")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
    finally:
        gate.set()
        for call in calls:
            call.join(10)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [({"dimensions": 0}, "dimensions", "from 1"), ({"dimensions": 9}, "dimensions", "from 1 to 8"),
     ({"encoding_format": "int8"}, "encoding_format", "encoding_format"), ({"foo": 1}, "foo", "not a known field"),
     ({"long_input": "cut"}, "long_input", "long_input"), ({"truncate": True}, "truncate", "not supported"),
     ({"late_chunking": True}, "late_chunking", "not supported"), ({"deadline_ms": 0}, "deadline_ms", "more than 0"),
     ({"temperature": 1}, "temperature", "not a known field"), ({"chunk_tokens": 0}, "chunk_tokens", "from 1")],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)  # fmt: skip
def test_what_is_invalid_is_named(server: FakeServer, fields: dict[str, Any], param: str, words: str) -> None:
    refused(ask(server, "paris", **fields), param, words)


def test_a_model_that_makes_something_else_says_what_and_which_one_does(server: FakeServer) -> None:
    refused(ask(server, "a", model=MODEL), "model", "makes no embeddings", "/v1/completions", EMBEDS,
            code="wrong_pattern")  # fmt: skip
    refused(ask(server, "a", model="fake-rerank"), "model", "cross-encoder", "/v1/rerank", code="wrong_pattern")
    refused(ask(server, "a", model="other"), "model", "not served", status=404, code="model_not_found")
    for path, body in (("completions", {"prompt": "a"}), ("chat/completions", {"messages": [{"role": "user"}]})):
        answer = server.http.post(f"/v1/{path}", json={"model": EMBEDS} | body)
        refused(answer, "model", "does not generate text", "/v1/embeddings", code="wrong_pattern")


# -- requests -------------------------------------------------------------------------------------------------


def test_one_text_is_the_exchange_itself_and_each_of_a_list_a_request_of_its_own(server: FakeServer) -> None:
    assert ask(server, "paris", id="one").headers["x-request-id"] == "one"
    record = server.record("one")
    assert (record["pattern"], record["stage"], len(record["parts"])) == ("embed", "finished", 1)
    ask(server, ["paris", "a city"], id="two")
    both = server.http.get("/v1/requests/two").json()
    assert [each["id"] for each in both["data"]] == ["two~0", "two~1"]
    assert sum(interval["ms"] for interval in record["intervals"]) == pytest.approx(record["elapsed_ms"], abs=1e-5)
    assert any(words.startswith("Its input: 3 positions, evaluated in step") for words in told_of(record))


def test_the_timing_header_says_where_the_time_went(server: FakeServer) -> None:
    timing = ask(server, "paris").headers["headway-timing"]
    assert "evaluate;dur=" in timing and "received;dur=" in timing


def test_the_texts_of_one_list_are_in_one_step(server: FakeServer, hosted: dict[str, Hosted]) -> None:
    ask(server, ["a " * 25, "a", "a " * 9, "a " * 3])
    assert sorted(each.cost for each in hosted[EMBEDS].executor.seen[-1].items) == [3, 5, 11, 27]


def test_positions_are_counted_as_evaluated(server: FakeServer) -> None:
    def evaluated() -> float:
        text = server.http.get("/metrics").text
        (line,) = [line for line in text.splitlines() if f'kind="evaluated",model="{EMBEDS}"' in line]
        return float(line.split()[1])

    before = evaluated()
    used = good(server, ["paris is", LONG], long_input="split")["usage"]["total_tokens"]
    assert evaluated() - before == used


def test_a_client_that_leaves_takes_its_requests_with_it(server: FakeServer, hosted: dict[str, Hosted]) -> None:
    gate = hosted[EMBEDS].executor.gate
    gate.clear()
    try:
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(
                "/v1/embeddings", json={"model": EMBEDS, "input": ["a", "a b"]}, timeout=0.3,
                headers={"x-request-id": "left"},
            )  # fmt: skip
        until(lambda: all(inbox.left for inbox in server.front._inboxes.values()))
    finally:
        gate.set()
    until(lambda: all(server.record(f"left~{i}")["stage"] == "cancelled" for i in range(2)))
    assert server.record("left~0")["reason"] == "client"
    until(lambda: not server.front.story.live and server.front.quota.positions == 0)


def test_delete_ends_them_and_the_call_is_answered_499(server: FakeServer, hosted: dict[str, Hosted]) -> None:
    executor, answers = hosted[EMBEDS].executor, []
    executor.gate.clear()
    try:
        call = threading.Thread(target=lambda: answers.append(ask(server, ["a", "a b"], id="gone")))
        call.start()
        until(lambda: executor.waits)
        opener = threading.Timer(0.2, executor.gate.set)
        opener.start()
        deleted = server.http.delete("/v1/requests/gone").json()
        call.join(10)
    finally:
        executor.gate.set()
    assert {each["stage"] for each in deleted["data"]} == {"cancelled"}
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (499, "cancelled")


def test_an_id_that_is_alive_is_a_conflict(server: FakeServer, hosted: dict[str, Hosted]) -> None:
    executor = hosted[EMBEDS].executor
    executor.gate.clear()
    try:
        call = threading.Thread(target=ask, args=(server, ["a", "b"]), kwargs={"id": "alive"})
        call.start()
        until(lambda: executor.waits)
        assert ask(server, "c", id="alive").status_code == 409
    finally:
        executor.gate.set()
        call.join(10)


def test_priority_and_deadline_are_named_where_the_policy_does_not_heed_them(server: FakeServer) -> None:
    answer = ask(server, "paris", priority=3, deadline_ms=500)
    assert answer.status_code == 200 and answer.headers["headway-ignored"] == "priority, deadline_ms"


def test_under_a_policy_of_deadlines_the_earliest_goes_first_and_whoever_waits_is_told_why(
    smollm2: ModelFiles, tmp_path: Path
) -> None:
    encoder = bi_encoder(tmp_path)
    executor = encoder.executor
    with fake_serving(smollm2, encoders=[encoder], policy="deadline", seats=1) as server:
        until(lambda: server.http.get("/ready").status_code == 200)
        executor.gate.clear()
        calls = []
        for name, ms in (("holds", None), ("late", 90_000), ("soon", 10_000)):
            calls.append(threading.Thread(target=ask, args=(server, name), kwargs={"id": name, "deadline_ms": ms}))
            calls[-1].start()
            until(lambda name=name: executor.waits and name in server.front.story.live)
        assert any("in step 1, which runs" in words for words in told_of(server.record("holds")))
        executor.once = True
        executor.gate.set()  # for one step: then the next one stands
        until(lambda: executor.waits and server.record("soon")["stage"] == "running")
        waits = server.record("late")["verdict"]
        assert (waits["on"], waits["rule"], waits["ahead"]) == ("turn", "seats", 0)
        assert any(
            words.startswith("Its input: 6 positions, not evaluated yet") for words in told_of(server.record("late"))
        )
        executor.once = False
        executor.gate.set()
        for call in calls:
            call.join(10)
        ended = [record["id"] for record in server.http.get("/v1/requests").json()["data"]]
        assert ended == ["late", "soon", "holds"], "the latest first"


def test_a_request_that_lives_for_too_long_is_ended(smollm2: ModelFiles, tmp_path: Path) -> None:
    encoder = bi_encoder(tmp_path)
    with fake_serving(smollm2, encoders=[encoder], limits=ServeLimits(max_seconds=0.2)) as server:
        until(lambda: server.http.get("/ready").status_code == 200)
        encoder.executor.gate.clear()
        threading.Timer(0.5, encoder.executor.gate.set).start()
        assert ask(server, "paris").status_code == 504


def test_what_is_logged_of_prompts_is_the_text_of_the_inputs(smollm2: ModelFiles, tmp_path: Path) -> None:
    with fake_serving(smollm2, encoders=[bi_encoder(tmp_path)], log_prompts=True) as server:
        until(lambda: server.http.get("/ready").status_code == 200)
        ask(server, "paris is", id="told")
        assert server.record("told")["prompt"] == "[CLS] paris is [SEP]"


# -- clients --------------------------------------------------------------------------------------------------


def test_openais_client_gets_the_vectors_unchanged_sync_and_async(server: FakeServer) -> None:
    texts = ["paris is", "a city"]
    expected = [right(server, text) for text in texts]
    options: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    with openai.OpenAI(**options) as client:
        answer = client.embeddings.create(model=EMBEDS, input=texts)  # it asks for base64 and decodes it
        assert [row.embedding for row in answer.data] == expected and answer.usage.total_tokens == 8
        plain = client.embeddings.create(model=EMBEDS, input=texts[0], encoding_format="float", dimensions=2)
        assert plain.data[0].embedding == expected[0][:2]
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.embeddings.create(model=EMBEDS, input=LONG)

    async def ask() -> list[list[float]]:
        async with openai.AsyncOpenAI(**options) as client:
            return [row.embedding for row in (await client.embeddings.create(model=EMBEDS, input=texts)).data]

    assert asyncio.run(ask()) == expected


def test_langchains_embeddings_work_and_foreign_token_ids_are_told_from_ours(server: FakeServer) -> None:
    langchain = pytest.importorskip("langchain_openai")
    options: dict[str, Any] = {"model": EMBEDS, "base_url": f"{server.url}/v1", "api_key": "none"}
    plain = langchain.OpenAIEmbeddings(check_embedding_ctx_length=False, **options)
    assert plain.embed_documents(["paris is", "a city"]) == [right(server, "paris is"), right(server, "a city")]
    assert plain.embed_query("paris") == right(server, "paris")
    ids_of_another_tokenizer = [[59, 100_256]]
    message = refused(ask(server, ids_of_another_tokenizer), "input", "this model's own tokenizer")
    assert "check_embedding_ctx_length is False" in message


@pytest.mark.parametrize("kind", ["openai.OpenAIEmbedding", "openai_like.OpenAILikeEmbedding"])
def test_llama_indexs_embeddings_work(server: FakeServer, kind: str) -> None:
    module, _, name = kind.partition(".")
    llama = pytest.importorskip(f"llama_index.embeddings.{module}")
    model = getattr(llama, name)(model_name=EMBEDS, api_base=f"{server.url}/v1", api_key="none")
    assert model.get_text_embedding("paris") == right(server, "paris")
    assert model.get_text_embedding_batch(["paris", "a city"])[1] == right(server, "a city")


def test_the_answers_are_what_the_document_says(server: FakeServer) -> None:
    document = server.http.get("/openapi.json").json()
    schema = document["components"]["schemas"]["EmbeddingList"] | {"components": document["components"]}
    for fields in ({}, {"encoding_format": "base64"}, {"long_input": "split"}, {"long_input": "truncate"}):
        jsonschema.validate(good(server, ["paris", "ab " * 5 if not fields else "a"], **fields), schema)
    jsonschema.validate(good(server, LONG, long_input="split"), schema)
    jsonschema.validate(good(server, ["a", "b"], long_input="late"), schema)
    examples = document["components"]["schemas"]["EmbeddingsBody"]["properties"]["model"]["examples"]
    assert examples == [EMBEDS] and json.dumps(document)
