"""Logprobs, echo, lists of prompts and drafts over HTTP; transformers and the `openai` client are the oracles."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
import torch
import transformers
from openai import OpenAI

from headway.artifacts.files import ModelFiles
from serving import MODEL, Server, headway, serving, until

PROMPT = "One two three. One two three. One two"
CODE = "def area(width, height):\n    return width * height\n\ndef area_of_square(width):\n    return"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", "256blocks", "--step-tokens", "64") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(smollm2: ModelFiles) -> torch.Tensor:
    """Transformers' logprobs after each token of PROMPT: [tokens, vocab]."""
    config = transformers.AutoConfig.for_model(**smollm2.config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = {name: torch.from_numpy(array.copy()) for name, array in smollm2.tensors.read()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_file=str(smollm2.tokenizer)).encode(PROMPT)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)


def ids(server: Server, text: str) -> list[int]:
    found: list[int] = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return found


# -- logprobs -------------------------------------------------------------------------------------------------


def test_echoed_logprobs_are_those_of_transformers(server: Server, client: OpenAI, expected: torch.Tensor) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=2, temperature=0, logprobs=2, echo=True
    ).choices[0]  # fmt: skip
    tokens, told = ids(server, PROMPT), answer.logprobs
    assert answer.text.startswith(PROMPT) and told is not None
    assert told.tokens is not None and "".join(told.tokens) == answer.text
    assert told.token_logprobs is not None and told.top_logprobs is not None and told.text_offset is not None
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    right = [expected[i, token].item() for i, token in enumerate(tokens[1:])]
    assert told.token_logprobs[1 : len(tokens)] == pytest.approx(right, abs=1e-3)
    assert told.token_logprobs[len(tokens)] == pytest.approx(expected[-1].max().item(), abs=1e-3)
    for token, value, top in list(zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True))[1:]:
        assert top[token] == value and len(top) == (2 if value >= sorted(top.values())[-2] else 3)
    offsets = [len("".join(told.tokens[:i])) for i in range(len(told.tokens))]
    assert told.text_offset == offsets


def test_a_stream_and_a_whole_answer_tell_the_same_logprobs_and_text(client: OpenAI) -> None:
    for extra in ({}, {"echo": True}):
        ask = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 1} | extra
        whole = client.completions.create(**ask).choices[0]
        text, told = "", {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for chunk in client.completions.create(**ask, stream=True):
            text += chunk.choices[0].text
            if chunk.choices[0].logprobs:
                for name, values in chunk.choices[0].logprobs.to_dict().items():
                    told[name] += values
        assert text == whole.text and told == whole.logprobs.to_dict()


def test_chat_logprobs_have_one_entry_for_each_token_streamed_or_not(client: OpenAI) -> None:
    ask = {
        "model": MODEL, "messages": [{"role": "user", "content": "Say: cat 🐈 cat"}], "max_tokens": 12,
        "temperature": 0, "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    whole = client.chat.completions.create(**ask)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)  # greedy
        if not entry.token.startswith("bytes:"):
            assert bytes(entry.bytes).decode() == entry.token
    said = b"".join(bytes(entry.bytes) for entry in entries if not entry.token.startswith("<|"))
    assert said.decode(errors="replace") == whole.choices[0].message.content
    streamed = [
        entry
        for chunk in client.chat.completions.create(**ask, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.to_dict() for entry in streamed] == [entry.to_dict() for entry in entries]


def test_no_logprobs_are_told_where_none_are_asked_for(server: Server) -> None:
    assert server.complete(PROMPT, max_tokens=2).json()["choices"][0]["logprobs"] is None
    assert server.complete(PROMPT, max_tokens=2, logprobs=False).json()["choices"][0]["logprobs"] is None
    choice = server.complete(PROMPT, max_tokens=2, echo=True).json()["choices"][0]
    assert choice["logprobs"] is None and choice["text"].startswith(PROMPT)
    told = server.complete(PROMPT, max_tokens=2, logprobs=0, echo=True).json()["choices"][0]["logprobs"]
    pairs = list(zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True))
    assert len(pairs) == len(ids(server, PROMPT)) + 2 and pairs[0][1:] == (None, None)
    assert all(top == {token: value} for token, value, top in pairs[1:]), "the chosen token alone"


def test_vllms_prompt_logprobs_are_the_same_computed_chunked_and_where_others_reuse(server: Server) -> None:
    """64 positions a step: the long prompt comes in chunks, alone or beside others, known before or not."""
    prompt = PROMPT * 12
    first = server.complete(prompt, max_tokens=1, prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"]
    other = server.stream("Something else, and long", max_tokens=40, ignore_eos=True).begun()
    again = server.complete(prompt, max_tokens=1, prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"]
    other.end()
    tokens = ids(server, prompt)
    assert first == again and first[0] is None and len(first) == len(tokens)
    for token, told in zip(tokens[1:], first[1:], strict=True):
        own = told[str(token)]
        assert own["logprob"] <= 0 and own["rank"] >= 1 and own["decoded_token"]
        assert len(told) == (1 if own["rank"] == 1 else 2)


def test_logprobs_of_what_cannot_come_are_valid_json(server: Server) -> None:
    """A forced token that the model itself holds impossible still has a number."""
    body = server.complete(PROMPT, max_tokens=1, logprobs=0, logit_bias={"17": 100}).text
    (value,) = json.loads(body, parse_constant=pytest.fail)["choices"][0]["logprobs"]["token_logprobs"]
    assert -9999 <= value < 0


def test_wrong_logprob_fields_are_named(server: Server) -> None:
    for fields, param in (
        ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 30}, "prompt_logprobs"), ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ):  # fmt: skip
        response = server.complete(PROMPT, max_tokens=1, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "top_logprobs": 2}
    error = server.http.post("/v1/chat/completions", json=chat).json()["error"]
    assert error["param"] == "top_logprobs" and "logprobs: true" in error["message"]


# -- lists of prompts -----------------------------------------------------------------------------------------


def test_each_prompt_of_a_list_is_answered_as_it_is_alone(server: Server, client: OpenAI) -> None:
    texts = [PROMPT, "The capital of France is", CODE]
    alone = [server.text(text, max_tokens=8) for text in texts]
    for prompts in (texts, [ids(server, text) for text in texts]):
        answer = client.completions.create(model=MODEL, prompt=prompts, max_tokens=8, temperature=0, n=2)
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert [choice.text for choice in answer.choices] == [text for text in alone for _ in range(2)]
        assert answer.usage.prompt_tokens == sum(len(ids(server, text)) for text in texts)
        assert answer.usage.completion_tokens == 6 * 8
    streamed = dict.fromkeys(range(3), "")
    stream = client.completions.create(
        model=MODEL, prompt=texts, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    usages = []
    for chunk in stream:
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == alone
    assert [usage.completion_tokens for usage in usages] == [24]


def test_a_lists_id_stands_for_all_its_requests(server: Server) -> None:
    stream = server.stream([PROMPT, CODE], id="pair", max_tokens=400, ignore_eos=True).begun()
    assert [record["id"] for record in server.get("/v1/requests/cmpl-pair")["data"]] == ["pair~0", "pair~1"]
    assert server.record("pair~1")["stage"] in ("waiting", "running")
    for taken in ("pair", "pair~0"):
        if taken == "pair":
            assert server.complete(PROMPT, id=taken, max_tokens=1).status_code == 409
    ended = server.http.delete("/v1/requests/pair").json()
    assert ended["id"] == "pair" and {record["stage"] for record in ended["data"]} == {"cancelled"}
    assert stream.end()[-1]["error"]["code"] == "cancelled"
    until(lambda: server.live() == 0)
    told = headway("why", "pair", "--url", server.url).stdout
    assert "pair~0 was cancelled" in told and "pair~1 was cancelled" in told


def test_leaving_ends_every_request_of_a_list(server: Server) -> None:
    server.stream([PROMPT, CODE, "a"], id="left", max_tokens=400, ignore_eos=True).begun().leave()
    until(lambda: server.live() == 0)
    assert {record["stage"] for record in server.get("/v1/requests/left")["data"]} == {"cancelled"}


def test_what_one_prompt_of_a_list_cannot_get_ends_them_all(server: Server) -> None:
    response = server.complete([PROMPT, "word " * 5000], id="mixed", max_tokens=50)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "never_pool")

    def stages() -> list[str]:
        return [record["stage"] for record in server.get("/v1/requests/mixed")["data"]]

    until(lambda: stages() == ["cancelled", "refused"])
    until(lambda: server.live() == 0)


def test_lists_that_mean_nothing_are_refused(server: Server) -> None:
    for prompt, words in (
        ([], "is empty"), ([""], "prompt[0] is empty"), (["a", []], "prompt[1] is empty"),
        (["a", 3], "prompt[1] is neither a string nor token ids"), ([[1], [2.5]], "prompt[1] is neither"),
        ([[1], [10**9]], "token ids must be from 0 to"), (["a"] * 600, "list of 600, and --max-waiting is 512"),
    ):  # fmt: skip
        response = server.complete(prompt, max_tokens=1)
        assert response.status_code == 400 and response.json()["error"]["param"] == "prompt"
        assert words in response.json()["error"]["message"]


def test_sampled_prompts_of_a_list_differ_and_repeat(server: Server) -> None:
    ask = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
    first = [choice["text"] for choice in server.complete([PROMPT, PROMPT], **ask).json()["choices"]]
    again = [choice["text"] for choice in server.complete([PROMPT, PROMPT], **ask).json()["choices"]]
    assert first == again and first[0] != first[1]


# -- drafts ---------------------------------------------------------------------------------------------------


def test_drafts_give_the_same_answer_in_fewer_steps_and_tell_how_many_were_right(server: Server) -> None:
    before = server.metrics()
    plain = server.complete(PROMPT, max_tokens=60, id="plain").json()["choices"][0]["text"]
    drafted = server.complete(PROMPT, max_tokens=60, id="drafted", draft="ngram:4").json()["choices"][0]["text"]
    assert drafted == plain
    drafts = server.record("drafted")["sequences"][0]["drafts"]
    assert drafts["accepted"] > 20 and drafts["pauses"] == []
    assert server.record("plain")["sequences"][0]["drafts"] == {"accepted": 0, "rejected": 0, "pauses": []}
    after = server.metrics()
    for result in ("accepted", "rejected"):
        key = "headway_draft_positions_total", result
        assert after[key] - before[key] == drafts[result]
    assert f"Drafts: {drafts['accepted']} of " in headway("why", "drafted", "--url", server.url).stdout


def test_sampled_answers_logprobs_and_penalties_do_not_depend_on_drafts(server: Server) -> None:
    ask = {"max_tokens": 40, "temperature": 0.7, "seed": 3, "logprobs": 1, "frequency_penalty": 0.2}
    found = [server.complete(CODE, **ask, draft=draft).json()["choices"] for draft in ("none", "ngram:3", "ngram:16")]
    assert found[0] == found[1] == found[2]


def test_a_draft_that_means_nothing_is_refused(client: OpenAI) -> None:
    for draft in ("ngram:0", "ngram:17", "ngram", "eagle:3", ""):
        with pytest.raises(openai.BadRequestError, match=r"must be none, or ngram:K with K from 1 to 16") as caught:
            client.completions.create(model=MODEL, prompt=PROMPT, extra_body={"draft": draft})
        assert caught.value.param == "draft"
