"""openai-agents: `Agent` and `Runner` over `OpenAIChatCompletionsModel`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar, Literal

import agents
import openai
from pydantic import BaseModel

import tasks


class Person(BaseModel):
    name: str
    trade: Literal["cook", "smith"]


class Client:
    lacks: ClassVar = {
        "n": "a run has one answer",
        "embeddings": "openai-agents makes no embeddings",
        "models": "openai-agents does not list models",
    }

    def __init__(self, place: tasks.Place) -> None:
        self.place = place
        agents.set_tracing_disabled(True)  # traces would go to OpenAI

    def model(self, tools: bool = False, key: str | None = None) -> agents.OpenAIChatCompletionsModel:
        url, name = (self.place.tools_url, self.place.tools_model) if tools else (self.place.url, self.place.model)
        client = openai.AsyncOpenAI(base_url=url, api_key=key or self.place.key, max_retries=0)
        return agents.OpenAIChatCompletionsModel(name, openai_client=client)

    def agent(self, model: Any = None, settings: Any = None, **fields: Any) -> Any:
        given = agents.ModelSettings(**{"temperature": 0, "max_tokens": tasks.TOKENS, **(settings or {})})
        return agents.Agent(name="asked", model=model or self.model(), model_settings=given, **fields)

    def run(self, text: Any = tasks.QUESTION, **fields: Any) -> Any:
        return agents.Runner.run_sync(self.agent(**fields), text, max_turns=2)

    def calling(self, *functions: Any, **fields: Any) -> Any:
        """An agent that must call the first tool, and stops there."""
        settings = {"tool_choice": functions[0].__name__, "max_tokens": 64, "parallel_tool_calls": False}
        tools = [agents.function_tool(function) for function in functions]
        return self.agent(self.model(tools=True), settings, tools=tools, **fields)

    def chat(self) -> str:
        result = self.run()
        tasks.same(result.final_output, self.place.text(), "the text")
        return f"{result.final_output} ({result.context_wrapper.usage.output_tokens} tokens)"

    async def stream(self) -> str:
        result = agents.Runner.run_streamed(self.agent(settings={"include_usage": True}), tasks.QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        tasks.same("".join(pieces), self.place.text(), "the text")
        return f"{len(pieces)} pieces, {result.context_wrapper.usage.output_tokens} tokens"

    def structured(self) -> str:
        return repr(self.run(tasks.INVENT, settings={"max_tokens": 100}, output_type=Person).final_output)

    def tool_round_trip(self) -> str:
        # After the call the library asks again, with `tool_choice` no longer forced.
        result = agents.Runner.run_sync(self.calling(tasks.get_weather, tasks.get_time), tasks.TOOL_QUESTION)
        kinds = [item.type for item in result.new_items]
        tasks.check(kinds[:2] == ["tool_call_item", "tool_call_output_item"], f"the run has {kinds}")
        tasks.check(result.final_output, "no text after the tool's result")
        return str(result.final_output)

    def forced_call(self) -> str:
        agent = self.calling(tasks.get_weather, tasks.get_time, tool_use_behavior="stop_on_first_tool")
        result = agents.Runner.run_sync(agent, tasks.TOOL_QUESTION)
        tasks.same(result.final_output, tasks.WEATHER, "the tool's result")
        return tasks.city(result.new_items[0].raw_item.arguments)

    async def streamed_call(self) -> str:
        agent = self.calling(tasks.get_weather, tasks.get_time, tool_use_behavior="stop_on_first_tool")
        result = agents.Runner.run_streamed(agent, tasks.TOOL_QUESTION)
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        tasks.same(result.final_output, tasks.WEATHER, "the tool's result")
        return f"{len(deltas)} pieces: {tasks.city(''.join(deltas))}"

    def overflow(self) -> str:
        def ask() -> None:
            try:
                self.run(tasks.OVERFLOW)
            except openai.BadRequestError as error:
                tasks.same(error.code, "context_length_exceeded", "the code")
                raise

        return tasks.expects(openai.BadRequestError, ask)

    async def cancel(self) -> str:
        agent = self.agent(settings={"max_tokens": tasks.LONG_TOKENS})
        result = agents.Runner.run_streamed(agent, "Tell a story.")
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                result.cancel()
        return await asyncio.to_thread(self.place.ends_cancelled)

    def cut_off(self) -> str:
        # The library hands on no finish_reason of Chat Completions; its count of tokens is what tells.
        result = self.run(settings={"max_tokens": tasks.CUT_TOKENS})
        tasks.same(result.context_wrapper.usage.output_tokens, tasks.CUT_TOKENS, "output tokens")
        return str(result.final_output)

    def replayed_call(self) -> str:
        agent = self.calling(tasks.write_file, tool_use_behavior="stop_on_first_tool")
        agent.model_settings.max_tokens = tasks.CUT_CALL_TOKENS
        result = agents.Runner.run_sync(agent, tasks.WRITE_QUESTION)
        history = result.to_input_list()
        (call,) = [item for item in history if item.get("type") == "function_call"]
        try:
            json.loads(call["arguments"])
        except ValueError:
            agent.model_settings = agents.ModelSettings(temperature=0, max_tokens=tasks.TOKENS)
            agents.Runner.run_sync(agent, history)
            return f"{call['arguments']!r} was taken back"
        raise AssertionError(f"the call was not cut off: {call['arguments']}")

    def developer(self) -> str:
        messages = [{"role": "developer", "content": tasks.INSTRUCTIONS}, tasks.user(tasks.QUESTION)]
        tokens = self.run(messages, settings={"max_tokens": 1}).context_wrapper.usage.input_tokens
        tasks.same(tokens, self.place.tokens_with_instructions(), "prompt tokens")
        return f"{tokens} prompt tokens"

    def logprobs(self) -> str:
        result = self.run(settings={"max_tokens": 4, "top_logprobs": 2, "extra_args": {"logprobs": True}})
        rows = result.raw_responses[0].output[0].content[0].logprobs
        tasks.same([len(row.top_logprobs) for row in rows], [2] * 4, "alternatives")
        return f"{rows[0].token!r} {rows[0].logprob:.3f}"

    def stops(self) -> str:
        result = self.run(settings={"extra_args": {"stop": tasks.STOPS}})
        tasks.same(result.final_output, self.place.text().partition(tasks.STOPS[-1])[0], "the text")
        return str(result.final_output)

    def wrong_key(self) -> str:
        return tasks.expects(openai.AuthenticationError, lambda: self.run(model=self.model(key="sk-wrong")))


if __name__ == "__main__":
    tasks.report(Client)
