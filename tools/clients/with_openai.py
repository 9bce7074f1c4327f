"""openai-python, 1.x and 3.x: the same script."""

from __future__ import annotations

import enum
from typing import Any

import openai
from pydantic import BaseModel

import tasks


class Trade(enum.Enum):
    cook = "cook"
    smith = "smith"


class Person(BaseModel):
    name: str
    trade: Trade


class Client:
    def __init__(self, place: tasks.Place) -> None:
        self.place = place
        self.plain = openai.OpenAI(base_url=place.url, api_key=place.key, max_retries=0)
        self.with_tools = openai.OpenAI(base_url=place.tools_url, api_key=place.key, max_retries=0)

    def ask(self, text: str = tasks.QUESTION, **fields: Any) -> Any:
        given = {"messages": [tasks.user(text)], "temperature": 0, "max_tokens": tasks.TOKENS, **fields}
        return self.plain.chat.completions.create(model=self.place.model, **given)

    def call(self, *more: Any, question: str = tasks.TOOL_QUESTION, **fields: Any) -> Any:
        given = {"tools": tasks.TOOLS, "temperature": 0, "max_tokens": 4 * tasks.TOKENS, **fields}
        messages = [tasks.user(question), *more]
        return self.with_tools.chat.completions.create(model=self.place.tools_model, messages=messages, **given)

    def chat(self) -> str:
        answer = self.ask()
        tasks.same(answer.choices[0].message.content, self.place.text(), "the text")
        tasks.same(answer.choices[0].finish_reason, "stop", "finish_reason")
        return f"{answer.choices[0].message.content} ({answer.usage.completion_tokens} tokens)"

    def stream(self) -> str:
        chunks = list(self.ask(stream=True, stream_options={"include_usage": True}))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        tasks.same("".join(pieces), self.place.text(), "the text")
        tasks.check(len(pieces) > 2, "it came in one piece")
        return f"{len(pieces)} pieces, {chunks[-1].usage.completion_tokens} tokens"

    def structured(self) -> str:
        answer = self.plain.chat.completions.parse(
            model=self.place.model, messages=[tasks.user(tasks.INVENT)], response_format=Person,
            temperature=0, max_tokens=100,
        )  # fmt: skip
        return repr(answer.choices[0].message.parsed)

    def tool_round_trip(self) -> str:
        message = self.call(tool_choice="required", parallel_tool_calls=False).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": tasks.WEATHER}
        answer = self.call(message, result, tool_choice="none").choices[0]
        tasks.check(answer.message.content and not answer.message.tool_calls, "no text after the tool's result")
        return str(answer.message.content)

    def forced_call(self) -> str:
        choice = self.call(tool_choice=tasks.FORCED).choices[0]
        (call,) = choice.message.tool_calls
        tasks.same((call.function.name, choice.finish_reason), ("get_weather", "tool_calls"), "the call")
        return tasks.city(call.function.arguments)

    def streamed_call(self) -> str:
        chunks = list(self.call(tool_choice=tasks.FORCED, stream=True))
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
        tasks.same((calls[0].function.name, {call.index for call in calls}), ("get_weather", {0}), "the call")
        return f"{len(calls)} pieces: {tasks.city(''.join(call.function.arguments or '' for call in calls))}"

    def overflow(self) -> str:
        def ask() -> None:
            try:
                self.ask(tasks.OVERFLOW)
            except openai.BadRequestError as error:
                tasks.same(error.code, "context_length_exceeded", "the code")
                raise

        return tasks.expects(openai.BadRequestError, ask, "maximum context length")

    def cancel(self) -> str:
        with self.ask("Tell a story.", stream=True, max_tokens=tasks.LONG_TOKENS) as stream:
            next(iter(stream))
        return self.place.ends_cancelled()

    def cut_off(self) -> str:
        choice = self.ask(max_tokens=tasks.CUT_TOKENS).choices[0]
        tasks.same(choice.finish_reason, "length", "finish_reason")
        return str(choice.message.content)

    def replayed_call(self) -> str:
        asked = {"tools": [tasks.WRITE], "question": tasks.WRITE_QUESTION}
        cut = self.call(**asked, tool_choice=tasks.FORCED_WRITE, max_tokens=tasks.CUT_CALL_TOKENS).choices[0]
        tasks.same(cut.finish_reason, "length", "finish_reason")
        (call,) = cut.message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "error: cut off"}
        self.call(cut.message, result, **asked, max_tokens=tasks.TOKENS)
        return f"{call.function.arguments!r} was taken back"

    def developer(self) -> str:
        messages = [{"role": "developer", "content": tasks.INSTRUCTIONS}, tasks.user(tasks.QUESTION)]
        tokens = self.ask(messages=messages, max_tokens=1).usage.prompt_tokens
        tasks.same(tokens, self.place.tokens_with_instructions(), "prompt tokens")
        return f"{tokens} prompt tokens"

    def logprobs(self) -> str:
        rows = self.ask(logprobs=True, top_logprobs=2, max_tokens=4).choices[0].logprobs.content
        tasks.same([len(row.top_logprobs) for row in rows], [2] * 4, "alternatives")
        return f"{rows[0].token!r} {rows[0].logprob:.3f}"

    def stops(self) -> str:
        choice = self.ask(stop=tasks.STOPS).choices[0]
        tasks.same(choice.message.content, self.place.text().partition(tasks.STOPS[-1])[0], "the text")
        return str(choice.message.content)

    def n(self) -> str:
        choices = self.ask(n=2, temperature=1, seed=3).choices
        tasks.same([choice.index for choice in choices], [0, 1], "the indices")
        return " / ".join(choice.message.content for choice in choices)

    def embeddings(self) -> str:
        ask = self.plain.embeddings.create
        return tasks.expects(openai.APIStatusError, lambda: ask(model=self.place.model, input="Hi"), "embedding")

    def models(self) -> str:
        names = [model.id for model in self.plain.models.list()]
        tasks.check(self.place.model in names, f"only {names}")
        return ", ".join(names)

    def wrong_key(self) -> str:
        self.plain = self.plain.with_options(api_key="sk-wrong")
        return tasks.expects(openai.AuthenticationError, self.ask)


if __name__ == "__main__":
    tasks.report(Client)
