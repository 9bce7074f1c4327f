"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat request: what they say, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headway.api.bodies.formats import MOST_SOURCE, Asked
from headway.core.errors import GrammarError, InvalidRequest
from headway.core.plan import Grammar
from headway.text.grammar.schemas import read_schema
from headway.text.tokenizer import Tokenizer
from headway.text.tools.calls import ToolCallParser
from headway.text.tools.format import NAME, ToolFormat
from headway.text.tools.grammar import calls_or_json, forced_calls

_MOST_TOOLS = 128
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True)
class Tools:
    """What a request offers to the model.

    given      the tools as they were sent, for the chat template
    functions  name → JSON schema of the arguments
    forced     the functions one of which must be called, or none
    several    whether an answer may hold more than one call
    """

    given: list[dict[str, Any]]
    functions: dict[str, dict[str, Any]]
    forced: tuple[str, ...]
    several: bool

    def parser(self, format: ToolFormat) -> ToolCallParser:
        return ToolCallParser(format, self.functions, None if self.several else 1, forced=bool(self.forced))

    def grammar(self, format: ToolFormat, tokenizer: Tokenizer, text: Asked | None) -> Asked | None:
        """What the answer must be. `text` is what the body says about answers: where a call is forced there is none,
        and otherwise an answer is calls or such a text. None leaves the model free. Raises InvalidRequest for a
        schema that no answer can be held to, and for a `text` that is not JSON."""
        if self.forced:
            functions = self._schemas(self.forced)
            return Asked(self._made(forced_calls, format, functions, tokenizer), "tools")
        if text is None:
            return None
        if text.grammar.kind not in ("json", "json_schema"):
            message = (
                f"{text.field} and tools are not supported together; with tools, text can be constrained to JSON only"
            )
            raise InvalidRequest(text.field, message)
        schema = json.loads(text.grammar.source or '{"type": "object"}')
        make = partial(calls_or_json, text=schema)
        return Asked(self._made(make, format, self._schemas(tuple(self.functions)), tokenizer), text.field)

    def _schemas(self, names: Sequence[str]) -> dict[str, Any]:
        """Of the functions with these names: what their arguments must be, if the model calls them."""
        read = {}
        for i, (name, schema) in enumerate(self.functions.items()):
            field = f"tools[{i}].function.parameters"
            try:
                if name in names:
                    read[name] = read_schema({"type": "object", **schema})
            except GrammarError as error:
                raise InvalidRequest(field, f"{field}: {error}") from error
        return read

    def _made(
        self, make: Callable[..., Grammar], format: ToolFormat, functions: Mapping[str, Any], tokenizer: Tokenizer
    ) -> Grammar:
        try:
            grammar = make(format, functions, tokenizer.added, several=self.several)
        except GrammarError as error:
            raise InvalidRequest("tools", f"tools: {error}") from error
        if (size := len(grammar.source)) > MOST_SOURCE:
            raise InvalidRequest(
                "tools", f"tools compile to a grammar of {size} characters; the limit is {MOST_SOURCE}"
            )
        return grammar


def read_tools(tools: Sequence[Any], choice: str | Mapping[str, Any] | None, parallel: bool | None) -> Tools | None:
    """None if nothing is offered: no tools, or `tool_choice` none. Raises InvalidRequest that names the field.

    `strict` of a function is accepted: its schema binds the model where a call is forced, and only there.
    """
    functions: dict[str, dict[str, Any]] = {}
    if len(tools) > _MOST_TOOLS:
        raise InvalidRequest("tools", f"tools has {len(tools)} entries; the limit is {_MOST_TOOLS}")
    for i, tool in enumerate(tools):
        name, parameters = _function(f"tools[{i}]", tool)
        if name in functions:
            raise InvalidRequest(
                f"tools[{i}].function.name", f"tools[{i}] repeats the name {name!r} of an earlier tool"
            )
        functions[name] = parameters
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        choice, allowed = _allowed(choice, functions)
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
        functions = {name: schema for name, schema in functions.items() if name in allowed}
    forced = _forced(choice, functions)
    if not functions or choice == "none":
        return None
    several = parallel is not False and not isinstance(choice, Mapping)
    return Tools([dict(tool) for tool in tools], functions, forced, several)


def _function(where: str, tool: Any) -> tuple[str, dict[str, Any]]:
    """The name and the schema of the arguments."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise InvalidRequest(f"{where}.type", f'{where} must be an object of type "function"')
    if unknown := tool.keys() - {"type", "function"}:
        raise InvalidRequest(f"{where}.{min(unknown)}", f"{where}.{min(unknown)} is not a known field")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{where}.function", f"{where}.function must be an object")
    where = f"{where}.function"
    if unknown := function.keys() - set(_FUNCTION_FIELDS):
        raise InvalidRequest(f"{where}.{min(unknown)}", f"{where}.{min(unknown)} is not a known field")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequest(f"{where}.name", f"{where}.name is {name!r}; it must fit {NAME.pattern}")
    for field, kind in (("description", str), ("strict", bool)):
        if not isinstance(function.get(field), kind | None):
            raise InvalidRequest(f"{where}.{field}", f"{where}.{field} must be a {kind.__name__}")
    parameters = function.get("parameters")
    if parameters is None:
        return name, {"type": "object", "properties": {}}
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise InvalidRequest(f"{where}.parameters", f'{where}.parameters must be a JSON schema of type "object"')
    return name, parameters


def _allowed(choice: Mapping[str, Any], functions: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """OpenAI's `allowed_tools`: `auto` or `required`, and the functions that may be called. The others are not shown
    to the model."""
    given = choice.get("allowed_tools", choice)
    mode, listed = (given.get("mode"), given.get("tools")) if isinstance(given, Mapping) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        form = '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": …}}, …]}'
        raise InvalidRequest("tool_choice", f"tool_choice.allowed_tools must be {form}")
    names = [_named(tool) for tool in listed]
    for name in names:
        if name not in functions:
            raise InvalidRequest("tool_choice", f"tool_choice allows the function {name!r}, which is not in tools")
    return mode, frozenset(map(str, names))


def _named(tool: Any) -> Any:
    """The name in a reference to a function, in the form of chats or of responses."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _forced(choice: str | Mapping[str, Any] | None, functions: Mapping[str, Any]) -> tuple[str, ...]:
    if choice in (None, "none", "auto"):
        return ()
    if not functions:
        raise InvalidRequest("tool_choice", "tool_choice requires a call, but tools is empty")
    if choice == "required":
        return tuple(functions)
    if isinstance(choice, str) or choice.get("type") != "function" or not isinstance(choice.get("function"), dict):
        known = ", ".join(_CHOICES)
        named = '{"type": "function", "function": {"name": …}}'
        raise InvalidRequest("tool_choice", f"tool_choice must be one of {known}, or {named}")
    name = choice["function"].get("name")
    if name not in functions:
        raise InvalidRequest("tool_choice", f"tool_choice names the function {name!r}, which is not in tools")
    return (name,)
