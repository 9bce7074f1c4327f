"""Tool calls over HTTP: what OpenAI's client sends and gets, on a model that says what the test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

import tool_templates as templates
from scripted_model import write_scripted
from serving import Server, serving

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Bonn"]}, "days": {"type": "integer", "minimum": 1, "maximum": 20}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "get_weather": WEATHER,
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
#: The last word of a question, and what the model says to it.
ONE = (
    "<ask:one>",
    "Let me look.\n",
    "<tool_call>",
    '\n{"name": "get_wea',
    'ther", "arguments": {"city"',
    ': "Paris"}}',
)
TWO = ("<ask:two>", '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n')
SCRIPTS = [
    ("<ask:call>", "<tool_call>"),  # and then as ONE goes on
    (*ONE, "\n</tool_call>"),
    (*TWO, '<tool_call>\n{"arguments": {"city": "Bonn"}, "name": "get_weather"}\n</tool', "_call>"),
    ("<ask:none>", "It is <", "tool_", "cool: 3 degrees."),
    ("<ask:other>", '<tool_call>{"name": "launch", "arguments": {}}</tool_call>'),
]
#: The generation prompt ends with the question, so that the last token is known.
TEMPLATE = templates.QWEN.removesuffix("{{- '<|im_start|>assistant\\n' }}{%- endif %}") + (
    "{{- '<|im_start|>assistant\\n' + messages[-1].content }}{%- endif %}"
)
MODEL = "scripted"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_scripted(tmp_path_factory.mktemp("model"), TEMPLATE, SCRIPTS, special=("<tool_call>",))
    place = tmp_path_factory.mktemp("server")
    with serving(place, str(folder), "--served-name", MODEL, "--memory", "256blocks") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, about: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": f"What now? <ask:{about}>"}]
    fields = {"tools": TOOLS, "max_tokens": 200, "temperature": 0, **fields}
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def called(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


class Streamed:
    """A stream put together as a client does it."""

    def __init__(self, chunks: Any) -> None:
        self.content: str | None = None
        self.calls: list[dict[str, str]] = []
        self.arguments: list[str] = []
        self.finish: list[str] = []
        for chunk in chunks:
            for choice in chunk.choices:
                if choice.delta.content is not None:
                    self.content = (self.content or "") + choice.delta.content
                for call in choice.delta.tool_calls or ():
                    self._add(call)
                if choice.finish_reason:
                    self.finish.append(choice.finish_reason)

    def _add(self, call: Any) -> None:
        if call.id is not None:
            assert call.index == len(self.calls) and call.type == "function" and call.function.arguments == ""
            self.calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
        else:
            assert call.function.name is None
            self.calls[call.index]["arguments"] += call.function.arguments
            self.arguments.append(call.function.arguments)

    @property
    def called(self) -> list[tuple[str, str]]:
        return [(call["name"], call["arguments"]) for call in self.calls]


# -- the model is free to call ---------------------------------------------------------------------------------


def test_a_call_comes_beside_the_content_streamed_or_not(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "one").choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    assert called(choice.message) == [("get_weather", '{"city": "Paris"}')]
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_") and len(call.id) > 20

    streamed = Streamed(ask(client, "one", stream=True))
    assert streamed.content == "Let me look." and streamed.called == called(choice.message)
    assert streamed.finish == ["tool_calls"]
    assert streamed.arguments == ['{"city"', ': "Paris"}']  # as they are written


def test_content_is_null_when_there_are_only_calls(client: openai.OpenAI) -> None:
    expected = [("now", "{}"), ("get_weather", '{"city": "Bonn"}')]
    (choice,) = ask(client, "two").choices
    assert choice.message.content is None and called(choice.message) == expected
    assert len({call.id for call in choice.message.tool_calls}) == 2
    streamed = Streamed(ask(client, "two", stream=True))
    assert streamed.content is None and streamed.called == expected and streamed.finish == ["tool_calls"]


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ("none", "It is <tool_cool: 3 degrees."),
        ("other", '<tool_call>{"name": "launch", "arguments": {}}</tool_call>'),
    ],
)
def test_an_answer_without_a_call_of_an_offered_function_is_text(
    client: openai.OpenAI, about: str, text: str
) -> None:
    (choice,) = ask(client, about).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")
    streamed = Streamed(ask(client, about, stream=True))
    assert (streamed.content, streamed.calls, streamed.finish) == (text, [], ["stop"])


@pytest.mark.parametrize("form", ["chats", "responses"])
def test_only_allowed_tools_are_shown_and_called(server: Server, form: str) -> None:
    names = [tool["function"]["name"] for tool in TOOLS]
    last = {"type": "function", "function": {"name": names[-1]}} if form == "chats" else {"name": names[-1]}
    allowed = {"mode": "required", "tools": [last]}
    choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if form == "chats" else allowed)}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "temperature": 0}
    answer = server.http.post("/v1/chat/completions", json=body | {"tools": TOOLS, "tool_choice": choice}).json()
    assert {call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]} == {names[-1]}
    alone = server.http.post(
        "/v1/chat/completions", json=body | {"tools": TOOLS[-1:], "tool_choice": "required"}
    ).json()
    assert answer["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"], "the others are not in the prompt"


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"mode": "required", "tools": [{"name": "nosuch"}]}, "'nosuch', which is not in tools"),
        ({"mode": "maybe", "tools": [{"name": "x"}]}, "must be"),
        ({"mode": "auto", "tools": []}, "must be"),
        ({"mode": "auto", "tools": [7]}, "None, which is not in tools"),
        ([], "must be"),
    ],
)
def test_an_allowance_that_cannot_be_kept_is_refused(server: Server, choice: Any, said: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    chosen = {"type": "allowed_tools", "allowed_tools": choice}
    response = server.http.post("/v1/chat/completions", json=body | {"tool_choice": chosen})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tool_choice") and said in error["message"]


def test_with_tool_choice_none_nothing_is_offered_and_nothing_read_as_a_call(
    server: Server, client: openai.OpenAI
) -> None:
    none, bare = ask(client, "one", tool_choice="none"), ask(client, "one", tools=openai.omit)
    assert none.choices[0].message.content == bare.choices[0].message.content
    assert '"arguments"' in none.choices[0].message.content and none.choices[0].finish_reason == "stop"
    offered = ask(client, "one")
    asked = {"messages": [{"role": "user", "content": "What now? <ask:one>"}], "tools": TOOLS}
    assert server.http.post("/tokenize", json=asked).json()["count"] == offered.usage.prompt_tokens
    assert offered.usage.prompt_tokens > none.usage.prompt_tokens + 100 > bare.usage.prompt_tokens + 99


def test_without_parallel_calls_a_second_one_is_text(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "two", parallel_tool_calls=False).choices
    assert called(choice.message) == [("now", "{}")] and "get_weather" in choice.message.content


def test_a_call_that_is_cut_off_keeps_what_it_has_and_the_reason_why(client: openai.OpenAI) -> None:
    cut = ask(client, "one", max_tokens=4).choices[0]
    assert called(cut.message) == [("get_weather", '{"city"')] and cut.finish_reason == "length"
    stopped = ask(client, "one", stop="ri").choices[0]
    assert called(stopped.message) == [("get_weather", '{"city": "Pa')] and stopped.finish_reason == "stop"
    streamed = Streamed(ask(client, "one", stop="ri", stream=True))
    assert streamed.called == called(stopped.message) and streamed.finish == ["stop"]


def test_each_of_n_answers_has_calls_of_its_own(client: openai.OpenAI) -> None:
    choices = ask(client, "two", n=2).choices
    assert [called(choice.message) for choice in choices] == [called(choices[0].message)] * 2
    assert len({call.id for choice in choices for call in choice.message.tool_calls}) == 4


# -- a call is forced ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_fit_their_schemas(client: openai.OpenAI, choice: Any, temperature: float) -> None:
    """Of a model that would say something else, or says what it likes."""
    whole = ask(client, "none", tool_choice=choice, temperature=temperature, seed=1, n=3)
    for answer in whole.choices:
        assert answer.message.content is None and answer.finish_reason == "tool_calls"
        for name, arguments in called(answer.message):
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            assert choice == "required" or name == "get_weather"
        assert choice == "required" or len(answer.message.tool_calls) == 1
    if temperature == 0:
        streamed = Streamed(ask(client, "none", tool_choice=choice, temperature=0, stream=True))
        assert streamed.called == called(whole.choices[0].message) and streamed.finish == ["tool_calls"]


def test_required_without_parallel_calls_is_one_call(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "two", tool_choice="required", parallel_tool_calls=False, temperature=1, seed=3).choices
    assert len(choice.message.tool_calls) == 1 and choice.message.content is None


@pytest.mark.parametrize("most", range(1, 6))
def test_a_forced_call_that_is_cut_before_its_name_has_no_content(client: openai.OpenAI, most: int) -> None:
    (choice,) = ask(client, "none", tool_choice="required", max_tokens=most).choices
    assert choice.message.content in ("", None) and choice.finish_reason == "length"
    streamed = Streamed(ask(client, "none", tool_choice="required", max_tokens=most, stream=True))
    assert not streamed.content and streamed.called == called(choice.message) and streamed.finish == ["length"]


NOTE = {"type": "object", "properties": {"note": {"enum": ["cold", "warm"]}}, "required": ["note"],
        "additionalProperties": False}  # fmt: skip
AS_NOTE: Any = {"type": "json_schema", "json_schema": {"name": "note", "schema": NOTE}}


def test_beside_tools_an_answer_is_calls_or_fits_its_format_streamed_or_not(client: openai.OpenAI) -> None:
    """Of a model that would call, and of one that would chat."""
    (calls,) = ask(client, "call", response_format=AS_NOTE).choices
    assert calls.message.content is None and calls.finish_reason == "tool_calls"
    for name, arguments in called(calls.message):
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert Streamed(ask(client, "call", response_format=AS_NOTE, stream=True)).called == called(calls.message)
    kinds = set()
    for seed in range(8):
        (answer,) = ask(client, "none", response_format=AS_NOTE, temperature=1, seed=seed).choices
        if answer.message.tool_calls:
            kinds.add("calls")
            assert answer.message.content is None
        else:
            kinds.add("text")
            jsonschema.validate(json.loads(answer.message.content), NOTE)
            streamed = ask(client, "none", response_format=AS_NOTE, temperature=1, seed=seed, stream=True)
            assert Streamed(streamed).content == answer.message.content
    assert "text" in kinds
    (object,) = ask(client, "none", response_format={"type": "json_object"}, seed=1).choices
    assert object.message.tool_calls or object.message.content.startswith("{")


def test_a_forced_call_is_one_whatever_the_format_of_texts(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "none", response_format=AS_NOTE, tool_choice="required", temperature=0).choices
    assert choice.message.tool_calls and choice.message.content is None
    (text,) = ask(client, "one", response_format=AS_NOTE, tool_choice="none").choices
    jsonschema.validate(json.loads(text.message.content), NOTE)


def test_integers_of_a_forced_call_are_exact(client: openai.OpenAI) -> None:
    big = 2**53 + 1
    schema = {
        "type": "object",
        "properties": {"id": {"const": big}},
        "required": ["id"],
        "additionalProperties": False,
    }
    tools: Any = [{"type": "function", "function": {"name": "find", "parameters": schema}}]
    (choice,) = ask(client, "none", tools=tools, tool_choice="required", parallel_tool_calls=False).choices
    assert called(choice.message) == [("find", f'{{"id": {big}}}')]


# -- a conversation --------------------------------------------------------------------------------------------


def test_an_answer_and_its_results_can_be_sent_back(client: openai.OpenAI) -> None:
    message = ask(client, "two").choices[0].message
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "<ask:none>"} for call in message.tool_calls]
    for echoed in (message, message.model_dump()):
        messages: Any = [{"role": "user", "content": "And?"}, echoed, *results]
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)
        assert answer.choices[0].message.content == "It is <tool_cool: 3 degrees."


def test_langchains_tools_are_called_and_answered(server: Server) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    plain = ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model=MODEL, temperature=0, max_retries=0)
    model, asked = plain.bind_tools(TOOLS), HumanMessage("What now? <ask:one>")
    answer = model.invoke([asked])
    (call,) = answer.tool_calls
    assert (call["name"], call["args"], answer.content) == ("get_weather", {"city": "Paris"}, "Let me look.")
    whole = None
    for chunk in model.stream([asked]):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and [(each["name"], each["args"]) for each in whole.tool_calls] == [
        ("get_weather", {"city": "Paris"})
    ]
    told = model.invoke([asked, answer, ToolMessage("<ask:none>", tool_call_id=call["id"])])
    assert told.content == "It is <tool_cool: 3 degrees." and not told.tool_calls
    (forced,) = plain.bind_tools(TOOLS, tool_choice="get_weather").invoke([asked]).tool_calls
    jsonschema.validate(forced["args"], WEATHER)


# -- what is refused -------------------------------------------------------------------------------------------


def _function(**fields: Any) -> list[dict[str, Any]]:
    return [TOOLS[0], {"type": "function", "function": {"name": "f", **fields}}]


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "function"),
        ({"tools": [{**TOOLS[0], "extra": 1}]}, "tools[0].extra", "not a known field"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "object"),
        ({"tools": _function(name="a b")}, "tools[1].function.name", "a b"),
        ({"tools": _function(name="x" * 65)}, "tools[1].function.name", "64"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name", "get_weather"),
        ({"tools": _function(parameters=[])}, "tools[1].function.parameters", "JSON schema"),
        ({"tools": _function(parameters={"type": "string"})}, "tools[1].function.parameters", "object"),
        ({"tools": _function(description=1)}, "tools[1].function.description", "str"),
        ({"tools": _function(extra=1)}, "tools[1].function.extra", "not a known field"),
        ({"tools": TOOLS * 65}, "tools", "130 entries; the limit is 128"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "tools is empty"),
        ({"tool_choice": "any"}, "tool_choice", "none, auto, required"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "allowed_tools must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
        (
            {
                "tools": _function(parameters={"properties": {"a": {"not": {"minimum": 1}}}}),
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
            "'not' is not supported",
        ),
        ({"guided_regex": "a+"}, "guided_regex", "tools"),
        (
            {
                "tools": _function(parameters={"properties": {f"p{i}": {} for i in range(1000)}}),
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
            "1000 of its properties are not required",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
        ({"function_call": "auto"}, "function_call", "not supported"),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
            "messages",
            "messages[0].tool_call_id is 'c'",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages", "messages[0].content is missing"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(
    server: Server, fields: dict[str, Any], field: str, said: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields}
    response = server.http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert said in error["message"] and field.partition("[")[0] in error["message"]
