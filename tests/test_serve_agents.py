"""Agents and gateways as they come: pydantic-ai, openai-agents, LangChain and LiteLLM, on a model that says what the
test wants. `tools/clients/` runs more of them, and more of each, on real models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, TypeVar

import agents
import openai
import pydantic_ai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import tool_templates as templates
from scripted_model import write_scripted
from serving import Server, serving, until

MODEL, CONTEXT = "scripted", 2048
SCRIPTS = [
    ("<ask:one>", "Let me look.\n", "<tool_call>", '\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n',
     "</tool_call>"),
    ("<ask:none>", "It is ", "cool: ", "3 degrees."),
]  # fmt: skip
#: The generation prompt ends with the last message, so that the last token is known: a tool's result asks on.
TEMPLATE = templates.QWEN.removesuffix("{{- '<|im_start|>assistant\\n' }}{%- endif %}") + (
    "{{- '<|im_start|>assistant\\n' + messages[-1].content }}{%- endif %}"
)
ASKED, TOLD = "What now? <ask:one>", "It is cool: 3 degrees."
TOO_LONG = "word " * CONTEXT
T = TypeVar("T")
#: LiteLLM makes its types when it is first asked, and pydantic warns of them, and of how it reads a stream.
of_litellm = pytest.mark.filterwarnings(
    "ignore:Items? .* `ReadOnly` qualifier:UserWarning",
    "ignore:Accessing the .model_.* on the instance:DeprecationWarning",
)


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    trade: Literal["cook", "smith"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_scripted(tmp_path_factory.mktemp("model"), TEMPLATE, SCRIPTS, special=("<tool_call>",))
    place = tmp_path_factory.mktemp("server")
    with serving(place, str(folder), "--served-name", MODEL, "--memory", "256blocks") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def no_traces() -> None:
    """They would go to OpenAI."""
    agents.set_tracing_disabled(True)


class Weather:
    """The tool, and where it was asked about."""

    def __init__(self) -> None:
        self.cities: list[str] = []

    def get_weather(self, city: str) -> str:
        """The weather in a city now."""
        self.cities.append(city)
        return "<ask:none>"


@pytest.fixture
def weather() -> Weather:
    return Weather()


def with_client(server: Server, ask: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
    """What `ask` makes of OpenAI's asynchronous client, which both agents speak through; closed when it is done."""

    async def run() -> T:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await ask(client)

    return asyncio.run(run())


# -- pydantic-ai ------------------------------------------------------------------------------------------------


def pydantic_agent(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    settings: Any = {"temperature": 0, "max_tokens": 100}
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
    return pydantic_ai.Agent(model, model_settings=settings, retries=0, **fields)


def test_pydantic_ais_agent_calls_its_tool_and_answers(server: Server, weather: Weather) -> None:
    result = with_client(server, lambda client: pydantic_agent(client, tools=[weather.get_weather]).run(ASKED))
    assert (result.output, weather.cities) == (TOLD, ["Paris"])
    assert result.usage.requests == 2 and result.usage.output_tokens > 5


def test_pydantic_ais_agent_streams_through_a_call(server: Server, weather: Weather) -> None:
    async def ask(client: openai.AsyncOpenAI) -> list[str]:
        agent = pydantic_agent(client, tools=[weather.get_weather])
        pieces: list[str] = []
        async with agent.iter(ASKED) as steps:
            async for step in steps:
                if agent.is_model_request_node(step):
                    async with step.stream(steps.ctx) as stream:
                        pieces += [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
        return pieces

    pieces = with_client(server, ask)
    assert "".join(pieces).endswith(TOLD) and len(pieces) > 2 and weather.cities == ["Paris"]


@pytest.mark.parametrize("kind", [pydantic_ai.NativeOutput, pydantic_ai.ToolOutput])
def test_pydantic_ais_output_is_the_model_that_was_asked_for(server: Server, kind: Any) -> None:
    text = "Invent a person. <ask:none>"
    found = with_client(server, lambda client: pydantic_agent(client, output_type=kind(Person)).run(text))
    assert isinstance(found.output, Person)


# -- openai-agents ----------------------------------------------------------------------------------------------


def openai_agent(client: openai.AsyncOpenAI, settings: Any = None, **fields: Any) -> Any:
    given = agents.ModelSettings(**{"temperature": 0, "max_tokens": 100, "include_usage": True} | (settings or {}))
    model = agents.OpenAIChatCompletionsModel(MODEL, openai_client=client)
    return agents.Agent(name="asked", model=model, model_settings=given, **fields)


def test_openais_agent_calls_its_tool_and_answers(server: Server, weather: Weather) -> None:
    tools = [agents.function_tool(weather.get_weather)]
    result = with_client(server, lambda client: agents.Runner.run(openai_agent(client, tools=tools), ASKED))
    assert (result.final_output, weather.cities) == (TOLD, ["Paris"])
    assert result.context_wrapper.usage.requests == 2


def test_openais_agent_streams_through_a_call(server: Server, weather: Weather) -> None:
    async def ask(client: openai.AsyncOpenAI) -> tuple[list[Any], Any]:
        tools = [agents.function_tool(weather.get_weather)]
        result = agents.Runner.run_streamed(openai_agent(client, tools=tools), ASKED)
        return [event.data async for event in result.stream_events() if event.type == "raw_response_event"], result

    events, result = with_client(server, ask)
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces).endswith(TOLD) and len(pieces) > 2
    assert (result.final_output, weather.cities) == (TOLD, ["Paris"])
    assert result.context_wrapper.usage.output_tokens > 5


def test_openais_agents_output_is_the_model_that_was_asked_for(server: Server) -> None:
    text = "Invent a person. <ask:none>"
    result = with_client(server, lambda client: agents.Runner.run(openai_agent(client, output_type=Person), text))
    assert isinstance(result.final_output, Person)


def test_a_streamed_run_that_is_left_is_cancelled(server: Server) -> None:
    headers, body = {"x-request-id": "left"}, {"ignore_eos": True}

    async def ask(client: openai.AsyncOpenAI) -> None:
        settings = {"max_tokens": 1500, "extra_headers": headers, "extra_body": body}
        result = agents.Runner.run_streamed(openai_agent(client, settings), "<ask:none>")
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                result.cancel()

    with_client(server, ask)
    until(lambda: server.record("left")["stage"] not in ("waiting", "running"))
    assert server.record("left")["stage"] == "cancelled"


# -- LiteLLM ----------------------------------------------------------------------------------------------------


@pytest.fixture
def complete(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Its `completion`. It is not among the packages that tests install: with what it brings it has some 300 MB."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its list of prices is otherwise downloaded
    litellm = pytest.importorskip("litellm", reason="pip install '.[gateway]'")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        given: Any = {"model": f"openai/{MODEL}", "client": client, "temperature": 0}
        yield lambda text, **fields: litellm.completion(
            messages=[{"role": "user", "content": text}], **given | fields
        )


@of_litellm
def test_litellm_answers_streams_and_calls(complete: Callable[..., Any]) -> None:
    assert complete("<ask:none>").choices[0].message.content == TOLD
    pieces = [chunk.choices[0].delta.content or "" for chunk in complete("<ask:none>", stream=True)]
    assert "".join(pieces) == TOLD and len(pieces) > 2
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    choice = complete(ASKED, tools=[{"type": "function", "function": tool}]).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name, call.function.arguments) == (
        "tool_calls", "get_weather", '{"city": "Paris"}'
    )  # fmt: skip


# -- a prompt over the context: each client's own kind of error ---------------------------------------------------


def test_openais_client_reads_the_code_of_an_overflow(server: Server) -> None:
    words = f"maximum context length is {CONTEXT} tokens"
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match=words) as caught,
    ):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": TOO_LONG}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_langchain_recognises_an_overflow(server: Server) -> None:
    with pytest.raises(ContextOverflowError):
        ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model=MODEL, max_retries=0).invoke(TOO_LONG)


def test_pydantic_ai_recognises_an_overflow(server: Server) -> None:
    # Older releases, which pip chooses beside LlamaIndex, have no kind of their own for it.
    known = getattr(pydantic_ai.exceptions, "ModelContextWindowExceededError", pydantic_ai.exceptions.ModelHTTPError)
    with pytest.raises(known, match="context_length_exceeded"):
        with_client(server, lambda client: pydantic_agent(client).run(TOO_LONG))


@of_litellm
def test_litellm_recognises_an_overflow(complete: Callable[..., Any]) -> None:
    litellm = pytest.importorskip("litellm")
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(TOO_LONG)


def test_nothing_is_live_when_all_is_answered(server: Server) -> None:
    until(lambda: server.live() == 0)
