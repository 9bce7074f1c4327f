"""How tokens are chosen and where answers end, asked of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from serving import MODEL, Server, completion, serving

PROMPT = "One two three. One two three. One two"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", "128blocks") as server:
        yield server


def test_a_stop_string_ends_the_answer_before_itself_and_usage_counts_its_tokens(server: Server) -> None:
    whole = server.complete(PROMPT, max_tokens=16).json()["choices"][0]["text"]
    stop = whole[6:9]
    answer = server.complete(PROMPT, max_tokens=16, stop=[stop]).json()
    assert answer["choices"][0] | {"index": 0} == {
        "index": 0, "text": whole.partition(stop)[0], "finish_reason": "stop", "logprobs": None,
    }  # fmt: skip
    assert answer["usage"]["completion_tokens"] < 16
    record = server.record(answer["id"])
    assert record["sequences"][0]["tokens"]["emitted"] == answer["usage"]["completion_tokens"]


def test_a_stop_string_is_never_partly_streamed(server: Server) -> None:
    whole = server.text(PROMPT, max_tokens=16)
    stop = whole[6:9]
    body = completion(PROMPT, max_tokens=16, stop=stop, stream=True)
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)
    assert text == whole.partition(stop)[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_part_of_the_text_where_that_is_asked_for(server: Server, stream: bool) -> None:
    whole = server.text(PROMPT, max_tokens=16)
    stop = whole[6:9]
    fields = {"max_tokens": 16, "stop": [stop], "include_stop_str_in_output": True}
    if not stream:
        assert server.text(PROMPT, **fields) == whole.partition(stop)[0] + stop
        return
    sent = server.stream(PROMPT, **fields)
    sent.end()
    assert sent.text == whole.partition(stop)[0] + stop


def test_special_tokens_are_part_of_the_text_where_that_is_asked_for_but_for_the_one_that_ends_it(
    server: Server,
) -> None:
    begin, end = "<|im_start|>", "<|im_end|>"

    def forced(token: int, **fields: Any) -> str:
        return server.text(PROMPT, max_tokens=2, logit_bias={str(token): 100}, **fields)

    assert forced(1) == forced(2) == forced(2, skip_special_tokens=False) == ""
    assert forced(1, skip_special_tokens=False) == 2 * begin
    assert forced(2, skip_special_tokens=False, include_stop_str_in_output=True) == end
    assert forced(2, skip_special_tokens=False, ignore_eos=True) == 2 * end
    fields = {"max_tokens": 2, "logit_bias": {"1": 100}, "skip_special_tokens": False, "logprobs": 0, "echo": True}
    answer = server.complete([1, 9690], **fields).json()["choices"][0]
    offsets, tokens = answer["logprobs"]["text_offset"], answer["logprobs"]["tokens"]
    assert answer["text"] == "".join(tokens) and offsets == [len("".join(tokens[:i])) for i in range(4)]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields, "logprobs": True}
    body.pop("echo")
    said = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert said == 2 * begin


def test_a_bias_of_minus_100_bans_a_token_and_of_100_forces_it(server: Server) -> None:
    tokens = server.http.post("/tokenize", json={"prompt": server.text(PROMPT, max_tokens=1)}).json()["tokens"]
    assert server.text(PROMPT, max_tokens=1, logit_bias={str(tokens[0]): -100}) != server.text(PROMPT, max_tokens=1)
    forced = server.http.post("/tokenize", json={"prompt": " seven"}).json()["tokens"]
    assert server.text(PROMPT, max_tokens=3, logit_bias={str(forced[0]): 100}) == " seven" * 3


def test_penalties_end_a_repetition(server: Server) -> None:
    plain = server.text(PROMPT, max_tokens=24)
    assert plain.count("One two") >= 4
    for penalty in ({"frequency_penalty": 2}, {"repetition_penalty": 1.8}, {"presence_penalty": 2}):
        assert server.text(PROMPT, max_tokens=24, **penalty).count("One two") < plain.count("One two"), penalty


def test_min_tokens_keeps_an_answer_going(server: Server) -> None:
    question = {
        "model": "smollm2-135m", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }  # fmt: skip
    short = server.http.post("/v1/chat/completions", json=question).json()
    assert (short["choices"][0]["finish_reason"], short["usage"]["completion_tokens"]) == ("stop", 8)
    long = server.http.post("/v1/chat/completions", json=question | {"min_tokens": 20}).json()
    assert long["usage"]["completion_tokens"] > 20


def test_tokenize_and_detokenize_are_inverse_and_count(server: Server) -> None:
    text = "Grüße, 世界! 😀"
    told = server.http.post("/tokenize", json={"prompt": text}).json()
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), 8192)
    assert server.http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": text}
    chat = server.http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()["tokens"]
    assert "<|im_start|>user\nx<|im_end|>" in server.http.post("/detokenize", json={"tokens": chat}).json()["prompt"]
    bad = server.http.post("/detokenize", json={"tokens": [49152]})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "tokens")


@pytest.mark.parametrize(("fields", "param"), [
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 1001}, "stop"),
    ({"stop": ["x" * 20_000, "y" * 20_000]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"49152": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
])  # fmt: skip
def test_values_out_of_range_are_refused_by_name(server: Server, fields: dict, param: str) -> None:
    response = server.complete(PROMPT, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
