"""LangChain: `ChatOpenAI` and `OpenAIEmbeddings` of langchain-openai."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from langchain_core.exceptions import ContextOverflowError, ModelAuthenticationError, ModelError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

import tasks


class Person(BaseModel):
    """Somebody."""

    name: str
    trade: Literal["cook", "smith"]


class Client:
    lacks: ClassVar = {"models": "LangChain does not list models"}

    def __init__(self, place: tasks.Place) -> None:
        self.place = place
        self.tools = [tool(tasks.get_time), tool(tasks.get_weather)]

    def model(self, **fields: Any) -> ChatOpenAI:
        given = {"max_tokens": tasks.TOKENS, "api_key": self.place.key, **fields}
        return ChatOpenAI(base_url=self.place.url, model=self.place.model, temperature=0, max_retries=0, **given)

    def with_tools(self, **fields: Any) -> ChatOpenAI:
        given = {"base_url": self.place.tools_url, "model": self.place.tools_model, "max_tokens": 64, **fields}
        return ChatOpenAI(api_key=self.place.key, temperature=0, max_retries=0, **given)

    def chat(self) -> str:
        answer = self.model().invoke(tasks.QUESTION)
        tasks.same(answer.content, self.place.text(), "the text")
        return f"{answer.content} ({answer.usage_metadata['output_tokens']} tokens)"

    def stream(self) -> str:
        chunks = list(self.model(stream_usage=True).stream(tasks.QUESTION))
        tasks.same("".join(str(chunk.content) for chunk in chunks), self.place.text(), "the text")
        (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        return f"{len(chunks)} pieces, {usage['output_tokens']} tokens"

    def structured(self) -> str:
        return repr(self.model(max_tokens=100).with_structured_output(Person).invoke(tasks.INVENT))

    def tool_round_trip(self) -> str:
        model = self.with_tools()
        forced = model.bind_tools(self.tools, tool_choice="required", parallel_tool_calls=False)
        asked = [HumanMessage(tasks.TOOL_QUESTION)]
        message = forced.invoke(asked)
        results = [self.tools[1].invoke(call) for call in message.tool_calls]
        answer = model.bind_tools(self.tools, tool_choice="none").invoke([*asked, message, *results])
        tasks.check(answer.content and not answer.tool_calls, "no text after the tool's result")
        return str(answer.content)

    def forced_call(self) -> str:
        message = self.with_tools().bind_tools(self.tools, tool_choice="get_weather").invoke(tasks.TOOL_QUESTION)
        (call,) = message.tool_calls
        tasks.same(call["name"], "get_weather", "the call")
        return tasks.city(call["args"])

    def streamed_call(self) -> str:
        chunks = list(self.with_tools().bind_tools(self.tools, tool_choice="get_weather").stream(tasks.TOOL_QUESTION))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        (call,) = whole.tool_calls
        return f"{len(chunks)} pieces: {tasks.city(call['args'])}"

    def overflow(self) -> str:
        return tasks.expects(ContextOverflowError, lambda: self.model().invoke(tasks.OVERFLOW))

    def cancel(self) -> str:
        stream = self.model(max_tokens=tasks.LONG_TOKENS).stream("Tell a story.")
        next(stream)
        stream.close()
        return self.place.ends_cancelled()

    def cut_off(self) -> str:
        answer = self.model(max_tokens=tasks.CUT_TOKENS).invoke(tasks.QUESTION)
        tasks.same(answer.response_metadata["finish_reason"], "length", "finish_reason")
        return str(answer.content)

    def replayed_call(self) -> str:
        model, asked = self.with_tools(max_tokens=tasks.CUT_CALL_TOKENS), HumanMessage(tasks.WRITE_QUESTION)
        cut: Any = model.bind_tools([tool(tasks.write_file)], tool_choice="write_file").invoke([asked])
        (call,) = [*cut.tool_calls, *cut.invalid_tool_calls]
        result = ToolMessage("error: cut off", tool_call_id=call["id"])
        answer = model.bind_tools([tool(tasks.write_file)]).invoke([asked, cut, result])
        tasks.check(isinstance(answer, AIMessage), "no answer")
        return f"{call['args']!r} was taken back"

    def developer(self) -> str:
        message = SystemMessage(tasks.INSTRUCTIONS, additional_kwargs={"__openai_role__": "developer"})
        usage = self.model(max_tokens=1).invoke([message, HumanMessage(tasks.QUESTION)]).usage_metadata
        tasks.same(usage["input_tokens"], self.place.tokens_with_instructions(), "prompt tokens")
        return f"{usage['input_tokens']} prompt tokens"

    def logprobs(self) -> str:
        answer = self.model(max_tokens=4, logprobs=True, top_logprobs=2).invoke(tasks.QUESTION)
        rows = answer.response_metadata["logprobs"]["content"]
        tasks.same([len(row["top_logprobs"]) for row in rows], [2] * 4, "alternatives")
        return f"{rows[0]['token']!r} {rows[0]['logprob']:.3f}"

    def stops(self) -> str:
        answer = self.model(stop=tasks.STOPS).invoke(tasks.QUESTION)
        tasks.same(answer.content, self.place.text().partition(tasks.STOPS[-1])[0], "the text")
        return str(answer.content)

    def n(self) -> str:
        (answers,) = self.model(n=2).generate([[HumanMessage(tasks.QUESTION)]]).generations
        tasks.same(len(answers), 2, "the number of answers")
        return " / ".join(answer.text for answer in answers)

    def embeddings(self) -> str:
        # With its length check it would count tokens itself, with a vocabulary that it downloads.
        model = OpenAIEmbeddings(
            base_url=self.place.url, api_key=self.place.key, model=self.place.model,
            check_embedding_ctx_length=False, max_retries=0,
        )  # fmt: skip
        return tasks.expects(Exception, lambda: model.embed_query("Hi"), "embedding")

    def wrong_key(self) -> str:
        kind: type[ModelError] = ModelAuthenticationError
        return tasks.expects(kind, lambda: self.model(api_key="sk-wrong").invoke(tasks.QUESTION))


if __name__ == "__main__":
    tasks.report(Client)
