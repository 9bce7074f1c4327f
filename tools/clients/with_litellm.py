"""LiteLLM: `completion` and `embedding` of its provider `openai`, which is any server that speaks as OpenAI does."""

from __future__ import annotations

import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its list of prices is otherwise downloaded at import

import litellm
from pydantic import BaseModel

import tasks


class Person(BaseModel):
    name: str
    trade: Literal["cook", "smith"]


class Client:
    def __init__(self, place: tasks.Place) -> None:
        self.place = place
        litellm.suppress_debug_info = True
        litellm.disable_stop_sequence_limit = True  # it otherwise sends the first four only

    def ask(self, text: str = tasks.QUESTION, **fields: Any) -> Any:
        given = {
            "model": f"openai/{self.place.model}", "base_url": self.place.url, "api_key": self.place.key,
            "messages": [tasks.user(text)], "temperature": 0, "max_tokens": tasks.TOKENS, "num_retries": 0,
        }  # fmt: skip
        return litellm.completion(**given | fields)

    def call(self, *more: Any, question: str = tasks.TOOL_QUESTION, **fields: Any) -> Any:
        given = {"model": f"openai/{self.place.tools_model}", "base_url": self.place.tools_url, "tools": tasks.TOOLS}
        return self.ask(**given | {"messages": [tasks.user(question), *more], "max_tokens": 64} | fields)

    def chat(self) -> str:
        answer = self.ask()
        tasks.same(answer.choices[0].message.content, self.place.text(), "the text")
        return f"{answer.choices[0].message.content} ({answer.usage.completion_tokens} tokens)"

    def stream(self) -> str:
        chunks = list(self.ask(stream=True, stream_options={"include_usage": True}))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        tasks.same("".join(pieces), self.place.text(), "the text")
        return f"{len(pieces)} pieces, {chunks[-1].usage.completion_tokens} tokens"

    def structured(self) -> str:
        answer = self.ask(tasks.INVENT, response_format=Person, max_tokens=100)
        return repr(Person.model_validate_json(answer.choices[0].message.content))

    def tool_round_trip(self) -> str:
        message = self.call(tool_choice="required", parallel_tool_calls=False).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": tasks.WEATHER}
        answer = self.call(message, result, tool_choice="none").choices[0]
        tasks.check(answer.message.content and not answer.message.tool_calls, "no text after the tool's result")
        return str(answer.message.content)

    def forced_call(self) -> str:
        (call,) = self.call(tool_choice=tasks.FORCED).choices[0].message.tool_calls
        tasks.same(call.function.name, "get_weather", "the call")
        return tasks.city(call.function.arguments)

    def streamed_call(self) -> str:
        chunks = list(self.call(tool_choice=tasks.FORCED, stream=True))
        whole: Any = litellm.stream_chunk_builder(chunks)
        (call,) = whole.choices[0].message.tool_calls
        return f"{len(chunks)} pieces: {tasks.city(call.function.arguments)}"

    def overflow(self) -> str:
        return tasks.expects(litellm.ContextWindowExceededError, lambda: self.ask(tasks.OVERFLOW))

    def cancel(self) -> str:
        stream = self.ask("Tell a story.", stream=True, max_tokens=tasks.LONG_TOKENS)
        next(iter(stream))
        stream.completion_stream.close()
        return self.place.ends_cancelled()

    def cut_off(self) -> str:
        choice = self.ask(max_tokens=tasks.CUT_TOKENS).choices[0]
        tasks.same(choice.finish_reason, "length", "finish_reason")
        return str(choice.message.content)

    def replayed_call(self) -> str:
        asked = {"tools": [tasks.WRITE], "question": tasks.WRITE_QUESTION}
        cut = self.call(**asked, tool_choice=tasks.FORCED_WRITE, max_tokens=tasks.CUT_CALL_TOKENS).choices[0]
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
        tasks.same(len(choices), 2, "the number of answers")
        return " / ".join(choice.message.content for choice in choices)

    def embeddings(self) -> str:
        given: Any = {"model": f"openai/{self.place.model}", "api_base": self.place.url, "api_key": self.place.key}
        return tasks.expects(litellm.NotFoundError, lambda: litellm.embedding(input=["Hi"], **given), "embedding")

    def models(self) -> str:
        given: Any = {"check_provider_endpoint": True, "custom_llm_provider": "openai"}
        names = litellm.get_valid_models(api_key=self.place.key, api_base=self.place.root, **given)
        tasks.check(any(self.place.model in name for name in names), f"only {names[:5]}")
        return ", ".join(names)

    def wrong_key(self) -> str:
        return tasks.expects(litellm.AuthenticationError, lambda: self.ask(api_key="sk-wrong"))


if __name__ == "__main__":
    tasks.report(Client)
