"""Clients as they come, of OpenAI, LangChain and LlamaIndex, and what vLLM's users send: one real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import openai
import pytest
from langchain_openai import ChatOpenAI
from langchain_openai import OpenAI as PlainOpenAI
from pydantic import BaseModel, ConfigDict, Field

from serving import MODEL, Server, serving, until

GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2-135m-greedy-fp32.json").read_text(encoding="utf-8"))
QUESTION, TEXT = GOLDEN[0]["prompt"], GOLDEN[0]["text"].removesuffix("<|im_end|>")
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
KEY = "sk-clients"
MOST_WAITING_POSITIONS = 2000
SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
T = TypeVar("T")


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    trade: Literal["cook", "smith"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--memory", "256blocks", "--max-waiting-positions", str(MOST_WAITING_POSITIONS))
    with serving(tmp_path_factory.mktemp("server"), *options, key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def with_async(server: Server, ask: Callable[[openai.AsyncOpenAI], Awaitable[T]], **options: Any) -> T:
    """What `ask` makes of OpenAI's asynchronous client."""

    async def run() -> T:
        options_of_all: dict[str, Any] = {"api_key": KEY, "max_retries": 0, **options}
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", **options_of_all) as client:
            return await ask(client)

    return asyncio.run(run())


# -- OpenAI's ---------------------------------------------------------------------------------------------------


def test_async_answers_come_at_once_streamed_or_whole(server: Server) -> None:
    async def ask(client: openai.AsyncOpenAI) -> list[str]:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **SHORT)
        wholes = [client.chat.completions.create(model=MODEL, messages=MESSAGES, **SHORT) for _ in range(3)]
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return [streamed, *(whole.choices[0].message.content or "" for whole in await asyncio.gather(*wholes))]

    texts = with_async(server, ask)
    assert len(set(texts)) == 1 and TEXT.startswith(texts[0]) and len(texts[0]) > 10


def test_models_are_listed_and_retrieved(server: Server) -> None:
    async def ask(client: openai.AsyncOpenAI) -> list[str]:
        return [model.id async for model in client.models.list()] + [(await client.models.retrieve(MODEL)).id]

    assert with_async(server, ask) == [MODEL, MODEL]


def test_a_stream_that_is_closed_and_a_call_that_times_out_are_cancelled(server: Server) -> None:
    long: Any = {"model": MODEL, "prompt": "Once", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}

    async def close(client: openai.AsyncOpenAI) -> None:
        stream = await client.completions.create(stream=True, extra_headers={"x-request-id": "closed"}, **long)
        await anext(aiter(stream))
        await stream.close()

    async def wait(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APITimeoutError):
            await client.completions.create(timeout=0.3, extra_headers={"x-request-id": "late"}, **long)

    with_async(server, close)
    with_async(server, wait)
    for id in ("closed", "late"):
        until(lambda id=id: server.record(id)["stage"] == "cancelled")
    until(lambda: server.live() == 0)


@pytest.mark.parametrize(
    ("kind", "fields", "options"),
    [
        (openai.AuthenticationError, {}, {"api_key": "sk-wrong"}),
        (openai.BadRequestError, {"temperature": 9}, {}),
        (openai.NotFoundError, {"model": "gpt-4"}, {}),
        (openai.BadRequestError, {"prompt": [7] * (MOST_WAITING_POSITIONS + 1)}, {}),
    ],
)
def test_a_refusal_is_the_exception_that_its_status_means(
    server: Server, kind: type[openai.APIStatusError], fields: Any, options: Any
) -> None:
    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.completions.create(**{"model": MODEL, "prompt": "Hello", "max_tokens": 1} | fields)

    with pytest.raises(kind) as caught:
        with_async(server, ask, **options)
    error: Any = caught.value
    assert error.body["message"] and error.code and error.request_id == error.response.headers["x-request-id"]


def test_an_id_that_is_alive_is_a_conflict(server: Server, client: openai.OpenAI) -> None:
    headers = {"x-request-id": "twice"}
    body: Any = {"model": MODEL, "prompt": "Once", "max_tokens": 500, "extra_headers": headers}
    with client.completions.create(stream=True, extra_body={"ignore_eos": True}, **body) as stream:
        next(iter(stream))
        with pytest.raises(openai.ConflictError, match="twice"):
            client.completions.create(**body)


# -- vLLM's fields ----------------------------------------------------------------------------------------------


def test_vllms_fields_work_by_their_names(server: Server, client: openai.OpenAI) -> None:
    def chat(**extra: Any) -> Any:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=20, extra_body=extra
        )
        return answer.choices[0]

    assert chat(guided_choice=["Lyon", "Nice"]).message.content in ("Lyon", "Nice")
    assert json.loads(chat(guided_json={"enum": [[1, 2], {"a": None}]}).message.content) in ([1, 2], {"a": None})
    assert chat(structured_outputs={"choice": ["Lyon", "Nice"]}).message.content in ("Lyon", "Nice")
    ended = chat(stop_token_ids=[GOLDEN[0]["greedy_ids"][2]])
    assert ended.finish_reason == "stop" and 0 < len(ended.message.content) < len(TEXT)

    def complete(prompt: Any = GOLDEN[0]["prompt_ids"], **extra: Any) -> Any:
        return client.completions.create(model=MODEL, prompt=prompt, **SHORT | extra)

    salted = [complete(extra_body={"cache_salt": salt}).usage for salt in ("one", "one", "two")]
    assert [usage.prompt_tokens_details.cached_tokens > 0 for usage in salted] == [False, True, False]
    scored = complete(extra_body={"prompt_logprobs": 1}).choices[0].prompt_logprobs
    assert len(scored) == len(GOLDEN[0]["prompt_ids"]) and scored[0] is None and scored[1]
    greedy = complete().choices[0].text
    ending = {"logit_bias": {str(GOLDEN[0]["greedy_ids"][-1]): 100}}
    ends = [complete(**ending, extra_body=extra) for extra in ({}, {"min_tokens": 3}, {"ignore_eos": True})]
    assert [(end.usage.completion_tokens, end.choices[0].finish_reason) for end in ends] == [
        (1, "stop"), (4, "stop"), (5, "length")
    ]  # fmt: skip
    assert complete(temperature=1.5, seed=4, extra_body={"min_p": 1.0}).choices[0].text == greedy
    assert complete(temperature=1.5, seed=4, extra_body={"top_k": 1}).choices[0].text == greedy
    often = "one two one two one two"
    punished = complete(often, extra_body={"repetition_penalty": 50}).choices[0].text
    assert "two" in complete(often).choices[0].text and "two" not in punished and "one" not in punished
    body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1, "priority": -3}
    urgent = server.http.post("/v1/completions", json=body)
    assert urgent.headers["headway-ignored"] == "priority"  # under fcfs it has no effect, and the record says so
    assert server.record(urgent.headers["x-request-id"])["priority"] == 0


# -- LangChain --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(server: Server) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=6, max_retries=0
    )


def test_langchains_chat_model_answers_streams_and_counts(chain: ChatOpenAI) -> None:
    whole = chain.invoke(QUESTION)
    text = str(whole.content)
    assert TEXT.startswith(text) and text and whole.response_metadata["finish_reason"] == "length"
    usage = whole.usage_metadata
    assert usage is not None
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(GOLDEN[0]["prompt_ids"]), 6)

    chunks = list(chain.stream(QUESTION, stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == text
    (told,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert told["output_tokens"] == 6

    assert [answer.content for answer in chain.batch([QUESTION, QUESTION])] == [text, text]


def test_langchains_chat_model_gets_logprobs(chain: ChatOpenAI) -> None:
    rows = chain.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    assert len(rows) == 6
    assert all(row["token"] == row["top_logprobs"][0]["token"] and row["logprob"] <= 0 for row in rows)


def test_langchains_structured_output_is_the_model_that_was_asked_for(chain: ChatOpenAI) -> None:
    asked = ChatOpenAI.model_copy(chain, update={"max_tokens": 60}).with_structured_output(
        Person, method="json_schema"
    )
    found = asked.invoke("Invent a person.")
    assert isinstance(found, Person) and found.trade in ("cook", "smith")


def test_langchains_plain_model_answers_streams_and_takes_lists(server: Server) -> None:
    plain = PlainOpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=2, max_retries=0
    )
    assert plain.invoke("The capital of France is") == " Paris."
    assert "".join(plain.stream("The capital of France is")) == " Paris."
    paris, other = plain.batch(["The capital of France is", "The capital of Italy is"])
    assert paris == " Paris." and other and other != paris


# -- LlamaIndex -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [True, False])
def test_llama_index_answers_and_streams(server: Server, chat: bool) -> None:
    """Not among the packages that tests install: it wants an older client of OpenAI's than the others."""
    pytest.importorskip("llama_index.llms.openai_like", reason="pip install '.[clients]'")
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model=MODEL, api_base=f"{server.url}/v1", api_key=KEY, is_chat_model=chat, context_window=4096,
        temperature=0, max_tokens=6, max_retries=0,
    )  # fmt: skip
    prompt = QUESTION if chat else "The capital of France is"
    text = model.complete(prompt).text
    assert (TEXT if chat else " Paris.").startswith(text[:7]) and text
    assert "".join(piece.delta or "" for piece in model.stream_complete(prompt)) == text
    if chat:
        messages = [ChatMessage(role="user", content=QUESTION)]
        assert model.chat(messages).message.content == text
        assert "".join(piece.delta or "" for piece in model.stream_chat(messages)) == text


def test_nothing_is_live_when_all_is_answered(server: Server) -> None:
    until(lambda: server.live() == 0)
    assert not any(record["stage"] in ("received", "waiting", "running") for record in server.records().values())
