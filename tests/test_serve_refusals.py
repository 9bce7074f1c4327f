"""What a real server refuses, and in which words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from serving import MODEL, Server, serving, until

BLOCKS = 256
#: What is wrong, and the field (and words) that the refusal names.
BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"foo": 1}, "foo", "not a known field"),
    ({"foo": None}, "foo", "not a known field"),
    ({"best_of": 2}, "best_of", "not supported; leave it out, or send null or 1"),
    ({"stream_options": {"foo": 1}, "stream": True}, "stream_options", "foo"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"temperature": "hot"}, "temperature", "float"),
    ({"temperature": True}, "temperature", "bool"),
    ({"temperature": 2.5}, "temperature", "from 0 to 2"),
    ({"top_p": 0}, "top_p", "more than 0"),
    ({"top_k": -2}, "top_k", "from -1"),
    ({"seed": 1 << 63}, "seed", "from -9223372036854775808"),
    ({"priority": 1 << 70}, "priority", "from -9223372036854775808"),
    ({"max_tokens": 0}, "max_tokens", "from 1"),
    ({"max_tokens": 1 << 70}, "max_tokens", "from 1"),
    ({"n": 0}, "n", "from 1"),
    ({"n": 1 << 70}, "n", "from 1"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": None}, "prompt", "prompt"),
    ({"prompt": [1.5]}, "prompt", "prompt[0] is neither a string nor token ids"),
    ({"prompt": [-1]}, "prompt", "from 0 to 49151"),
    ({"prompt": [1, 49152]}, "prompt", "from 0 to 49151"),
    ({"prompt": [1 << 70]}, "prompt", "from 0 to 49151"),
    ({"stop_token_ids": [49152]}, "stop_token_ids", "from 0 to 49151"),
    ({"min_tokens": 1 << 70}, "min_tokens", "from 0"),
    ({"logit_bias": {"01": 1}}, "logit_bias", "keys are token ids"),
    ({"repetition_penalty": 0}, "repetition_penalty", "more than 0"),
]
#: What can never be served: the need, the limit, and what raises it.
NEVER: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"n": 1_000_000}, "n", ["1000000", "64", "--seats"]),
    ({"n": 65}, "n", ["65", "64", "--seats"]),
    ({"max_tokens": 9000}, "max_tokens", ["9005", "8192", "This model's maximum context length is"]),
    ({"max_tokens": BLOCKS * 16 - 4}, "max_tokens", ["257", "256", "--memory"]),
    ({"n": 2, "max_tokens": BLOCKS * 8 - 4}, "max_tokens", ["258", "256", "--memory"]),
]
BAD_MESSAGES: list[Any] = [
    [],
    "hi",
    ["hi"],
    [{"content": "hi"}],
    [{"role": 7, "content": "hi"}],
    [{"role": "user", "content": "hi"}, {"role": None, "content": "hi"}],
    [{"role": "user"}],
    [{"role": "user", "content": 7}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
]
BAD_BODIES = [
    b"", b"[]", b'{"model":', b'{"model": "\xff"}', b'{"prompt": "\\ud800"}', b'{"n": 1e999}', b"[" * 100_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", f"{BLOCKS}blocks") as server:
        yield server


def refused(response: httpx.Response, status: int, param: str | None, *words: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"} and response.headers["x-request-id"]
    assert [word for word in words if word not in error["message"]] == [], error


@pytest.mark.parametrize(("fields", "param", "words"), BAD_FIELDS, ids=str)
def test_a_field_that_means_nothing_is_named(server: Server, fields: Any, param: str, words: str) -> None:
    refused(server.complete("The capital of France is", **{"max_tokens": 1} | fields), 400, param, words)


@pytest.mark.parametrize(("fields", "param", "words"), NEVER, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_what_never_fits_is_refused_with_need_limit_and_option(
    server: Server, fields: Any, param: str, words: list[str], stream: bool
) -> None:
    response = server.complete("The capital of France is", stream=stream, **{"max_tokens": 1} | fields)
    refused(response, 400, param, *words)
    record = server.record(response.headers["x-request-id"])
    assert record["stage"] == "refused" and [str(record["verdict"][key]) for key in ("need", "limit")] == words[:2]


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=str)
def test_messages_that_mean_nothing_are_refused(server: Server, messages: Any) -> None:
    refused(server.http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages}), 400, "messages")


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_body_that_is_no_json_object_is_refused(server: Server, body: bytes) -> None:
    refused(server.http.post("/v1/completions", content=body), 400, "body")


def test_known_fields_are_absent_as_null_or_at_their_defaults(server: Server) -> None:
    plain = server.text("Hello", max_tokens=2)
    names = set(inspect.signature(openai.resources.Completions.create).parameters)
    nulls = dict.fromkeys(names - {"self", "model", "prompt", "temperature", "max_tokens", "timeout"})
    nulls = {name: None for name in nulls if not name.startswith("extra_")}
    assert server.text("Hello", max_tokens=2, **nulls) == plain
    defaults = {
        "n": 1, "best_of": 1, "echo": False, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0,
        "stop": [], "suffix": "", "stream": False, "min_p": 0, "min_tokens": 0, "repetition_penalty": 1.0,
        "ignore_eos": False, "stop_token_ids": [], "priority": 0, "cache_salt": "", "top_k": -1,
    }  # fmt: skip
    assert server.text("Hello", max_tokens=2, **defaults) == plain
    assert server.text("Hello", max_tokens=2.0, top_k=0.0, stop_token_ids=[2.0], n=1.0) == plain


def test_what_is_not_here_is_404_in_openais_shape(server: Server) -> None:
    refused(server.complete("Hello", model="gpt-4"), 404, "model", "gpt-4", MODEL)
    refused(server.http.get("/v1/models/gpt-4"), 404, "model", "gpt-4")
    refused(server.http.get("/v1/requests/nobody"), 404, "id", "nobody")
    refused(server.http.delete("/v1/requests/nobody"), 404, "id", "nobody")
    refused(server.http.post("/v1/nothing"), 404, None, "/v1/nothing")
    refused(server.http.get("/v1/completions"), 405, None, "/v1/completions")


def test_query_parameters_that_mean_nothing_are_named(server: Server) -> None:
    for limit in ("0", "1001", "+5", "9" * 5000):
        refused(server.http.get("/v1/requests", params={"limit": limit}), 400, "limit", "from 1 to 1000")
    for path in ("/v1/requests", "/v1/events"):
        refused(server.http.get(path, params={"stag": "waiting"}), 400, "stag", "after")


def test_numbers_of_thousands_of_digits_are_refused(server: Server) -> None:
    digits = "9" * 5000
    refused(server.complete("Hello", logit_bias={digits: 1}), 400, "logit_bias", "keys are token ids")
    refused(server.complete("Hello", draft=f"ngram:{digits}"), 400, "draft", "K from 1 to 16")
    refused(server.complete("Hello", n=int("9" * 4000)), 400, "n", "from 1")
    refused(server.http.post("/v1/completions", content=f'{{"n": {digits}}}'), 400, "body", "out of range")
    last = server.http.get("/v1/events", headers={"last-event-id": f"{digits}-{digits}"})
    refused(last, 400, "Last-Event-ID", "EPOCH-NUMBER")


def test_a_refusal_does_not_repeat_megabytes(server: Server) -> None:
    response = server.complete("Hello", model="x" * (1 << 20))
    refused(response, 404, "model", "xxx")
    assert len(response.content) < 3000


def test_refusals_are_counted_by_reason(server: Server) -> None:
    before = server.metrics()
    server.complete("")
    server.complete("Hello", n=65)
    server.http.get("/v1/requests?limit=none")
    grown = {key: value - before[key] for key, value in server.metrics().items() if key[0].endswith("refused_total")}
    assert {reason: count for (_, reason), count in grown.items() if count} == {"invalid": 1, "seats": 1}


def test_refusals_leave_the_pool_as_it_was(server: Server) -> None:
    until(lambda: server.live() == 0)
    pool = server.get("/v1/pool")["blocks"]
    assert pool["reusable"] + pool["free"] == pool["total"] == BLOCKS
    assert not any(record["stage"] in ("received", "waiting", "running") for record in server.records().values())
