"""instructor: `from_openai` in its modes TOOLS (a forced call) and JSON_SCHEMA (a response format)."""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

import instructor
import openai
from instructor.exceptions import IncompleteOutputException
from pydantic import BaseModel

import tasks

OPENAI = "instructor hands this on to openai-python"


class Person(BaseModel):
    """Somebody."""

    name: str
    trade: Literal["cook", "smith"]


class Client:
    lacks: ClassVar = {
        "tool_round_trip": "a call is the answer; nothing is sent back",
        "cancel": "instructor reads the whole stream before it gives the first partial object",
        "replayed_call": "a call is the answer; nothing is sent back",
        "logprobs": OPENAI,
        "stops": OPENAI,
        "n": OPENAI,
        "embeddings": OPENAI,
        "models": OPENAI,
    }

    def __init__(self, place: tasks.Place) -> None:
        self.place = place
        logging.getLogger("instructor").setLevel(logging.CRITICAL)  # it logs each error that it also raises

    def ask(self, text: str = tasks.INVENT, key: str | None = None, create: str = "create", **fields: Any) -> Any:
        client = openai.OpenAI(base_url=self.place.url, api_key=key or self.place.key, max_retries=0)
        by_schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
        given = {"messages": [tasks.user(text)], "temperature": 0, "max_tokens": 100, "max_retries": 0, **fields}
        return getattr(by_schema, create)(**{"model": self.place.model, "response_model": Person, **given})

    def call(self, create: str = "create") -> Any:
        client = openai.OpenAI(base_url=self.place.tools_url, api_key=self.place.key, max_retries=0)
        by_call = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        return getattr(by_call, create)(
            model=self.place.tools_model, messages=[tasks.user(tasks.INVENT)], response_model=Person,
            temperature=0, max_tokens=100, max_retries=0,
        )  # fmt: skip

    def chat(self) -> str:
        answer = self.ask(tasks.QUESTION, response_model=None, max_tokens=tasks.TOKENS)
        tasks.same(answer.choices[0].message.content, self.place.text(), "the text")
        return f"{answer.choices[0].message.content} ({answer.usage.completion_tokens} tokens)"

    def stream(self) -> str:
        states = list(self.ask(create="create_partial"))
        tasks.check(len(states) > 2, "it came in one piece")
        return f"{len(states)} states of {states[-1]!r}"

    def structured(self) -> str:
        person, answer = self.ask(create="create_with_completion")
        return f"{person!r} ({answer.usage.completion_tokens} tokens)"

    def forced_call(self) -> str:
        return repr(self.call())

    def streamed_call(self) -> str:
        states = list(self.call("create_partial"))
        tasks.check(len(states) > 2, "it came in one piece")
        return f"{len(states)} states of {states[-1]!r}"

    def overflow(self) -> str:
        def ask() -> None:
            try:
                self.ask(tasks.OVERFLOW)
            except Exception as error:
                raise self._cause(error) from error

        return tasks.expects(openai.BadRequestError, ask, "maximum context length")

    def cut_off(self) -> str:
        return tasks.expects(IncompleteOutputException, lambda: self.ask(max_tokens=tasks.CUT_TOKENS))

    def developer(self) -> str:
        messages = [{"role": "developer", "content": tasks.INSTRUCTIONS}, tasks.user(tasks.QUESTION)]
        tokens = self.ask(messages=messages, response_model=None, max_tokens=1).usage.prompt_tokens
        tasks.same(tokens, self.place.tokens_with_instructions(), "prompt tokens")
        return f"{tokens} prompt tokens"

    def wrong_key(self) -> str:
        def ask() -> None:
            try:
                self.ask(key="sk-wrong")
            except Exception as error:
                raise self._cause(error) from error

        return tasks.expects(openai.AuthenticationError, ask)

    @staticmethod
    def _cause(error: BaseException) -> BaseException:
        """openai-python's error within instructor's."""
        while not isinstance(error, openai.OpenAIError) and error.__cause__ is not None:
            error = error.__cause__
        return error


if __name__ == "__main__":
    tasks.report(Client)
