"""Fields of bodies: which have an effect, which are accepted without one and named, which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from serving import MODEL


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2) as server:
        yield server


def ignored(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [name for name in response.headers.get("headway-ignored", "").split(", ") if name]


# -- priority ---------------------------------------------------------------------------------------------------


def test_a_priority_without_effect_is_named_and_not_recorded(server: FakeServer) -> None:
    assert ignored(server.complete("Hi", id="plain", max_tokens=1, priority=0)) == []
    assert ignored(server.complete("Hi", id="urgent", max_tokens=1, priority=-3)) == ["priority"]
    assert server.record("urgent")["priority"] == server.record("plain")["priority"] == 0


def test_a_priority_with_an_effect_is_recorded_and_not_named(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, policy="priority") as server:
        assert ignored(server.complete("Hi", id="urgent", max_tokens=1, priority=-3)) == []
        assert server.record("urgent")["priority"] == -3


# -- max_tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "emitted"), [({}, 16), ({"max_tokens": 3}, 3), ({"max_tokens": None}, 60)], ids=str
)
def test_a_plain_completion_has_16_tokens_unless_it_says_more_and_null_asks_for_what_fits(
    smollm2: ModelFiles, given: dict[str, int | None], emitted: int
) -> None:
    with fake_serving(smollm2, model_context=64) as server:
        body = {"model": MODEL, "prompt": [5] * 4, "ignore_eos": True, **given}
        answer = server.http.post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == emitted
        assert answer["choices"][0]["finish_reason"] == "length"
        document = server.http.get("/openapi.json").json()["components"]["schemas"]
        assert document["CompletionBody"]["properties"]["max_tokens"]["default"] == 16
        assert "default" not in document["ChatBody"]["properties"]["max_tokens"]


# -- stop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_thousand_stop_strings_are_served_as_one_is(server: FakeServer, stream: bool) -> None:
    def text(**fields: object) -> str:
        answer = server.complete([9] * 8, max_tokens=40, seed=1, stream=stream, **fields)
        assert answer.status_code == 200, answer.text
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(msgspec.json.decode(line)["choices"][0]["text"] for line in lines or [answer.text])

    whole = text()
    stop = whole[30:34]
    rare = [f"\x00{i}" for i in range(998)]
    assert text(stop=[*rare, stop, stop]) == text(stop=stop) == whole.partition(stop)[0]


# -- usage in a stream ------------------------------------------------------------------------------------------


def chunks(server: FakeServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": [[5] * 9, [6] * 20]}
    body = {"model": MODEL, "ignore_eos": True, "max_tokens": 6, "stream": True} | prompt | fields
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n"), answer.text
    return [msgspec.json.decode(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("include", [False, True])
def test_each_chunk_carries_the_usage_so_far_where_that_is_asked_for(
    server: FakeServer, path: str, include: bool
) -> None:
    told = chunks(server, path, n=2, stream_options={"include_usage": include, "continuous_usage_stats": True})
    usages = [chunk["usage"] for chunk in told]
    counts = [usage["completion_tokens"] for usage in usages]
    whole = 12 if "chat" in path else 24
    assert counts == sorted(counts) and counts[0] in (1, 2) and counts[-1] == whole
    assert len(set(counts)) > 6, "it grows as the answer does"
    assert {usage["total_tokens"] - usage["completion_tokens"] for usage in usages} == {usages[0]["prompt_tokens"]}
    assert (told[-1]["choices"] == []) is include and all(chunk["choices"] for chunk in told[:-1])
    assert "headway" in told[-1]


def test_usage_stays_where_it_was_without_that(server: FakeServer) -> None:
    for options in ({"continuous_usage_stats": False}, {"continuous_usage_stats": None}, {}):
        told = chunks(server, "/v1/completions", stream_options={"include_usage": True, **options})
        assert [chunk["usage"] for chunk in told[:-1]] == [None] * (len(told) - 1)
        assert told[-1]["usage"]["completion_tokens"] == 12
        assert all("usage" not in chunk for chunk in chunks(server, "/v1/completions", stream_options=options))


# -- hints and defaults -----------------------------------------------------------------------------------------

#: What real clients send, at values that ask for nothing here: of vLLM's request classes, SGLang's, and llama.cpp's.
HARMLESS: dict[str, Any] = {
    "add_special_tokens": False, "allowed_token_ids": None, "bad_words": [], "best_of": 1, "cache_prompt": True,
    "cache_salt": None, "chat_template": None, "documents": None, "dry_multiplier": 0.0, "early_stopping": False,
    "ec_transfer_params": None, "frequency_penalty": 0, "guided_json": None, "ignore_eos": False, "id_slot": -1,
    "include_reasoning": True, "include_stop_str_in_output": False, "kv_transfer_params": None, "length_penalty": 1.0,
    "logit_bias": None, "logits_processors": None, "logprob_token_ids": None, "lora_path": None,
    "media_io_kwargs": None, "min_p": 0.0, "min_tokens": 0, "mirostat": 0, "mm_processor_kwargs": None,
    "n_probs": 0, "no_stop_trim": False, "presence_penalty": 0.0, "priority": 0, "prompt_logprobs": None,
    "regex": None, "repeat_penalty": 1.0, "repetition_detection": None, "repetition_penalty": 1.0,
    "return_hidden_states": False, "return_mm_kwargs": True, "return_prompt_text": None, "return_token_ids": None,
    "return_token_offsets": False, "return_tokens_as_token_ids": False, "routed_experts_prompt_start": 0,
    "seed": None, "separate_reasoning": True, "session_params": None, "skip_special_tokens": True,
    "spaces_between_special_tokens": True, "stop": [], "stop_regex": None, "stop_token_ids": [],
    "stream_reasoning": True, "structured_outputs": None, "thinking_token_budget": None, "timings_per_token": False,
    "top_k": -1, "truncate_prompt_tokens": None, "truncation_side": None, "typical_p": 1.0, "use_beam_search": False,
    "vllm_xargs": None, "watermarking": None, "xtc_probability": 0.0,
}  # fmt: skip
HINTS: dict[str, Any] = {
    "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "u",
    "prompt_cache_key": "session-1", "prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"},
    "verbosity": "low", "request_id": "mine", "rid": "mine", "session_id": "s", "stream_interval": 4,
}  # fmt: skip
#: At these values the answer would be another one.
WITH_EFFECT: dict[str, Any] = {
    "allowed_token_ids": [1], "bad_words": ["no"], "best_of": 2, "chat_template": "{{ x }}", "dry_multiplier": 0.8,
    "length_penalty": 0.5, "logits_processors": ["x"], "mirostat": 2, "n_predict": 5, "no_stop_trim": True,
    "regex": "a", "return_token_ids": True, "return_tokens_as_token_ids": True, "routed_experts_prompt_start": 1,
    "truncate_prompt_tokens": 5, "use_beam_search": True, "vllm_xargs": {"a": 1}, "web_search_options": {},
}  # fmt: skip
PATHS = pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])


def ask(server: FakeServer, path: str, **fields: Any) -> httpx.Response:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    return server.http.post(path, json={"model": MODEL, "max_tokens": 1, **prompt, **fields})


@PATHS
def test_known_fields_that_ask_for_nothing_are_accepted_and_not_named(server: FakeServer, path: str) -> None:
    assert ignored(ask(server, path, **HARMLESS)) == []


@PATHS
def test_hints_are_accepted_and_named(server: FakeServer, path: str) -> None:
    assert sorted(ignored(ask(server, path, **HINTS))) == sorted(HINTS)
    assert ignored(ask(server, path, **dict.fromkeys(HINTS))) == [], "null asks for nothing"


@PATHS
def test_hints_of_clients_to_come_are_accepted_and_named_and_other_names_are_not(
    server: FakeServer, path: str
) -> None:
    assert ignored(ask(server, path, safety_settings_2027={}, prompt_cache_scope="x")) == [
        "safety_settings_2027", "prompt_cache_scope",
    ]  # fmt: skip
    for name in ("safety_", "safety", "Safety_x", "safety_\u00e9", "my_safety_x", "safety_x\n"):
        assert ask(server, path, **{name: 1}).status_code == 400


@PATHS
@pytest.mark.parametrize("name", sorted(WITH_EFFECT))
def test_a_value_with_an_effect_that_is_not_supported_is_refused_by_name(
    server: FakeServer, path: str, name: str
) -> None:
    answer = ask(server, path, **{name: WITH_EFFECT[name]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name) and error["message"].startswith(f"{name} is not supp")


@PATHS
def test_every_default_in_the_tables_is_accepted_and_openapi_tells_it(server: FakeServer, path: str) -> None:
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    told = schemas["ChatBody" if "chat" in path else "CompletionBody"]["properties"]
    unsupported = {name: about["enum"] for name, about in told.items() if about.get("description") == "not supported"}
    assert len(unsupported) > 60 and all(values[0] is None for values in unsupported.values())
    assert ignored(ask(server, path, **{name: values[-1] for name, values in unsupported.items()})) == []
    assert {name for name, about in told.items() if about.get("description") == "accepted without effect"} >= set(
        HINTS
    )
