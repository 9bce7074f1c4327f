"""Earlier tool calls and their results in a conversation, checked and put as the chat template wants them.

Clients send back what they were answered, and that may be a call that was cut off: arguments need not be JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.errors import InvalidRequest
from headway.text.tools.format import NAME, ToolFormat

Message = Mapping[str, Any]
_SHORT_ID = 9
_CALL_FIELDS = ("id", "type", "function", "index")
_FUNCTION_FIELDS = ("name", "arguments")


def read_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The same conversation with every call and result complete; the given one is not changed.

    Arguments are an object, or whatever else was given in their place: text that is not JSON, a list. A call without
    an id gets one, and a result that names no call answers the first one that has no result. Results come in the
    order of their calls, since few templates write ids. Raises InvalidRequest whose message names the place.
    """
    found: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []  # the run of results that is being read
    calls = _Calls()
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            results.append(calls.answered(f"messages[{i}].tool_call_id", message))
            continue
        found += calls.ordered(results)
        results = []
        if listed := message.get("tool_calls"):
            read = [calls.read(f"messages[{i}].tool_calls[{j}]", call) for j, call in enumerate(listed)]
            message = {**message, "tool_calls": read}
        found.append(dict(message))
    return found + calls.ordered(results)


def as_template_wants(messages: Sequence[Message], format: ToolFormat) -> list[dict[str, Any]]:
    """What `read_calls` returned, for `ChatTemplate.render`: arguments become objects or JSON text, and ids and
    missing contents take the form that the template asks for."""
    return [_wanted(message, format) for message in messages]


def is_cut_off(call: Message) -> bool:
    """Whether a call's arguments are not an object."""
    return not isinstance(call["function"]["arguments"], dict)


class _Calls:
    """The calls so far."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._places: dict[str, int] = {}
        self._open: list[str] = []

    def read(self, where: str, call: Any) -> dict[str, Any]:
        if not isinstance(call, dict) or (call.get("type") or "function") != "function":
            raise InvalidRequest("messages", f'{where} must be an object of type "function"')
        _only(where, call, _CALL_FIELDS)
        function = call.get("function")
        if not isinstance(function, dict):
            raise InvalidRequest("messages", f"{where}.function must be an object with name and arguments")
        _only(f"{where}.function", function, _FUNCTION_FIELDS)
        name = function.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidRequest("messages", f"{where}.function.name is {name!r}; it must fit {NAME.pattern}")
        id = call.get("id") or f"call{len(self._places):05}"
        if not isinstance(id, str):
            raise InvalidRequest("messages", f"{where}.id must be a string")
        self._names[id] = name
        self._places[id] = len(self._places)
        self._open.append(id)
        arguments = _arguments(function.get("arguments"))
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def answered(self, where: str, message: Message) -> dict[str, Any]:
        """A result, which learns the name of its function."""
        id = message.get("tool_call_id")
        if not id:
            if not self._open:
                raise InvalidRequest("messages", f"{where} is missing, and no earlier call is without a result")
            id = self._open[0]
        if id not in self._names:
            raise InvalidRequest("messages", f"{where} is {id!r}; no earlier message has a call of that id")
        if id in self._open:
            self._open.remove(id)
        return {"name": self._names[id], **message, "tool_call_id": id}

    def ordered(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(results, key=lambda result: self._places[result["tool_call_id"]])


def _only(where: str, given: Message, known: Sequence[str]) -> None:
    for field, value in given.items():
        if field not in known and value is not None:
            raise InvalidRequest("messages", f"{where}.{field} is not a known field of a tool call")


def _arguments(given: Any) -> Any:
    """JSON text of an object, as clients send it, or the object; nothing, as text or null, is no arguments."""
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return given
    value = _value(given)
    return value if isinstance(value, dict) else given


def _value(text: str) -> Any:
    """What JSON text says, or the text if it was cut off."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _wanted(message: Message, format: ToolFormat) -> dict[str, Any]:
    if message["role"] == "tool":
        return {**message, "tool_call_id": _id(message["tool_call_id"], format)}
    if not (calls := message.get("tool_calls")):
        return dict(message)
    found = [
        {**call, "id": _id(call["id"], format), "function": _function(call["function"], format)} for call in calls
    ]
    return {**message, "content": message.get("content") or format.empty, "tool_calls": found}


def _function(function: Message, format: ToolFormat) -> dict[str, Any]:
    arguments = function["arguments"]
    if format.as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not format.as_text and isinstance(arguments, str):
        arguments = _value(arguments)
    return {"name": function["name"], "arguments": arguments}


def _id(id: str, format: ToolFormat) -> str:
    if not format.short_ids:
        return id
    return "".join(character for character in id if character.isalnum())[-_SHORT_ID:].rjust(_SHORT_ID, "0")
