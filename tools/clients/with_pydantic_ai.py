"""pydantic-ai: `Agent`, and its direct requests where an agent has no setting for it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request_stream, model_request_sync
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelAPIError, ModelAuthenticationError, ModelContextWindowExceededError
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

import tasks


class Person(BaseModel):
    name: str
    trade: Literal["cook", "smith"]


class Client:
    lacks: ClassVar = {
        "n": "a request has one answer",
        "models": "pydantic-ai does not list models",
    }

    def __init__(self, place: tasks.Place) -> None:
        self.place = place

    def model(self, key: str | None = None, **profile: Any) -> OpenAIChatModel:
        # The client keeps its connections, which belong to the event loop that made them: one for each task.
        provider = OpenAIProvider(base_url=self.place.url, api_key=key or self.place.key)
        return OpenAIChatModel(self.place.model, provider=provider, profile=OpenAIModelProfile(**profile))

    def tools_model(self) -> OpenAIChatModel:
        provider = OpenAIProvider(base_url=self.place.tools_url, api_key=self.place.key)
        return OpenAIChatModel(self.place.tools_model, provider=provider)

    def run(self, text: str = tasks.QUESTION, model: Any = None, **settings: Any) -> Any:
        given: Any = {"temperature": 0, "max_tokens": tasks.TOKENS, **settings}
        return Agent(model or self.model(), model_settings=given, retries=0).run_sync(text)

    def chat(self) -> str:
        result = self.run()
        tasks.same(result.output, self.place.text(), "the text")
        return f"{result.output} ({result.usage.output_tokens} tokens)"

    async def stream(self) -> str:
        agent: Any = Agent(self.model(), model_settings={"temperature": 0, "max_tokens": tasks.TOKENS})
        async with agent.run_stream(tasks.QUESTION) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
            usage = result.usage
        tasks.same("".join(pieces), self.place.text(), "the text")
        return f"{len(pieces)} pieces, {usage.output_tokens} tokens"

    def structured(self) -> str:
        native = Agent(self.model(supports_json_schema_output=True), output_type=NativeOutput(Person), retries=0)
        first = native.run_sync(tasks.INVENT, model_settings={"temperature": 0, "max_tokens": 100}).output
        by_tool = Agent(self.tools_model(), output_type=ToolOutput(Person), retries=0)
        settings: Any = {"temperature": 0, "max_tokens": 200, "parallel_tool_calls": False}
        second = by_tool.run_sync(tasks.INVENT, model_settings=settings).output
        return f"NativeOutput {first!r}; ToolOutput {second!r}"

    def tool_round_trip(self) -> str:
        called: list[str] = []

        def get_weather(city: str) -> str:
            """The weather in a city now."""
            called.append(city)
            return str(tasks.WEATHER)

        def settings(context: Any) -> Any:
            choice = "none" if called else "required"
            return {"temperature": 0, "max_tokens": 64, "tool_choice": choice, "parallel_tool_calls": False}

        agent = Agent(self.tools_model(), tools=[get_weather, tasks.get_time], model_settings=settings, retries=0)
        output = agent.run_sync(tasks.TOOL_QUESTION).output
        tasks.check(called and output, "no text after the tool's result")
        return output

    def request(self, *tools: Any) -> ModelRequestParameters:
        functions = [tool["function"] for tool in tools]
        return ModelRequestParameters(
            function_tools=[
                ToolDefinition(name=function["name"], parameters_json_schema=function["parameters"])
                for function in functions
            ]
        )

    def forced_call(self) -> str:
        asked, settings = [ModelRequest.user_text_prompt(tasks.TOOL_QUESTION)], {"temperature": 0, "max_tokens": 64}
        response: Any = model_request_sync(
            self.tools_model(), asked, model_request_parameters=self.request(*tasks.TOOLS),
            model_settings={**settings, "tool_choice": ["get_weather"]},
        )  # fmt: skip
        (call,) = response.tool_calls
        return tasks.city(call.args)

    async def streamed_call(self) -> str:
        asked: Any = [ModelRequest.user_text_prompt(tasks.TOOL_QUESTION)]
        settings: Any = {"temperature": 0, "max_tokens": 64, "tool_choice": ["get_weather"]}
        async with model_request_stream(
            self.tools_model(), asked, model_request_parameters=self.request(*tasks.TOOLS), model_settings=settings
        ) as stream:
            events = [event async for event in stream]
            (call,) = stream.get().tool_calls
        return f"{len(events)} events: {tasks.city(call.args)}"

    def overflow(self) -> str:
        return tasks.expects(ModelContextWindowExceededError, lambda: self.run(tasks.OVERFLOW))

    async def cancel(self) -> str:
        asked: Any = [ModelRequest.user_text_prompt("Tell a story.")]
        settings: Any = {"temperature": 0, "max_tokens": tasks.LONG_TOKENS}
        async with model_request_stream(self.model(), asked, model_settings=settings) as stream:
            async for _ in stream:
                break
        return await asyncio.to_thread(self.place.ends_cancelled)

    def cut_off(self) -> str:
        response = self.run(max_tokens=tasks.CUT_TOKENS).response
        tasks.same(response.finish_reason, "length", "finish_reason")
        return str(response.text)

    def replayed_call(self) -> str:
        asked: Any = [ModelRequest.user_text_prompt(tasks.WRITE_QUESTION)]
        tools = self.request(tasks.WRITE)
        settings: Any = {"temperature": 0, "max_tokens": tasks.CUT_CALL_TOKENS, "tool_choice": "required"}
        cut: Any = model_request_sync(
            self.tools_model(), asked, model_settings=settings, model_request_parameters=tools
        )
        (call,) = cut.tool_calls
        tasks.same(cut.finish_reason, "length", "finish_reason")
        result = ModelRequest(parts=[ToolReturnPart("write_file", "error: cut off", tool_call_id=call.tool_call_id)])
        model_request_sync(
            self.tools_model(), [*asked, cut, result], model_request_parameters=tools,
            model_settings={"temperature": 0, "max_tokens": tasks.TOKENS},
        )  # fmt: skip
        return f"{call.args!r} was taken back"

    def developer(self) -> str:
        model = self.model(openai_system_prompt_role="developer")
        agent = Agent(model, system_prompt=tasks.INSTRUCTIONS, model_settings={"temperature": 0, "max_tokens": 1})
        tokens = agent.run_sync(tasks.QUESTION).usage.input_tokens
        tasks.same(tokens, self.place.tokens_with_instructions(), "prompt tokens")
        return f"{tokens} prompt tokens"

    def logprobs(self) -> str:
        response = self.run(max_tokens=4, openai_logprobs=True, openai_top_logprobs=2).response
        rows = response.provider_details["logprobs"]
        tasks.same([len(row["top_logprobs"]) for row in rows], [2] * 4, "alternatives")
        return f"{rows[0]['token']!r} {rows[0]['logprob']:.3f}"

    def stops(self) -> str:
        result = self.run(stop_sequences=tasks.STOPS)
        tasks.same(result.output, self.place.text().partition(tasks.STOPS[-1])[0], "the text")
        return str(result.output)

    def embeddings(self) -> str:
        provider = OpenAIProvider(base_url=self.place.url, api_key=self.place.key)
        embedder = Embedder(OpenAIEmbeddingModel(self.place.model, provider=provider))
        return tasks.expects(ModelAPIError, lambda: embedder.embed_query_sync("Hi"), "embedding")

    def wrong_key(self) -> str:
        return tasks.expects(ModelAuthenticationError, lambda: self.run(model=self.model("sk-wrong")))


if __name__ == "__main__":
    tasks.report(Client)
