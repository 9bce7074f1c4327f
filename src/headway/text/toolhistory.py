"""Earlier tool calls and their results in a conversation, checked and put as the chat template wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import InvalidRequest
from headway.text.tools import NAME, ToolFormat

Message = Mapping[str, Any]
_SHORT_ID = 9


def has_calls(messages: Sequence[Message]) -> bool:
    """Whether the conversation holds tool calls or results of them."""
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages without members that are null (clients send answers back with them), but for `content`.

    Raises InvalidRequest for a message without a role, for one without content that has no tool calls either, and
    for the calls of an API before tools.
    """
    plain = [
        {key: value for key, value in message.items() if key == "content" or value is not None}
        for message in messages
    ]
    for i, message in enumerate(plain):
        if not isinstance(message.get("role"), str):
            raise InvalidRequest("messages", f"messages[{i}].role is missing, or is not a string")
        if message.get("role") == "function" or "function_call" in message:
            raise InvalidRequest(
                "messages", f"messages[{i}] is of the old function calling; use tool_calls and the role tool"
            )
        if message.get("content") is None and not (message.get("role") == "assistant" and message.get("tool_calls")):
            raise InvalidRequest(
                "messages", f"messages[{i}].content is missing; only an assistant message with tool_calls has none"
            )
    return plain


def as_template_wants(messages: Sequence[Message], format: ToolFormat) -> list[dict[str, Any]]:
    """The same conversation for `ChatTemplate.render`; the given one is not changed.

    Arguments become objects or JSON text, ids and missing contents take the form that the template asks for, and a
    result learns the name of its function. Raises InvalidRequest whose message names the place,
    `messages[2].tool_call_id`.
    """
    called: dict[str, str] = {}
    return [_message(f"messages[{i}]", message, format, called) for i, message in enumerate(messages)]


def _message(where: str, message: Message, format: ToolFormat, called: dict[str, str]) -> dict[str, Any]:
    """`called` are the calls so far: id → function."""
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    if message.get("role") == "tool":
        id = _text(f"{where}.tool_call_id", message.get("tool_call_id"))
        if id not in called:
            raise InvalidRequest(
                "messages", f"{where}.tool_call_id is {id!r}; no earlier message has a call of that id"
            )
        return {"name": called[id], **plain, "tool_call_id": _id(id, format)}
    calls = message.get("tool_calls")
    if not calls:
        return plain
    if message.get("role") != "assistant" or not isinstance(calls, list):
        raise InvalidRequest("messages", f"{where}.tool_calls must be a list in an assistant message")
    found = [_call(f"{where}.tool_calls[{j}]", call, format, called) for j, call in enumerate(calls)]
    return {**plain, "content": message.get("content") or format.empty, "tool_calls": found}


def _call(where: str, call: Any, format: ToolFormat, called: dict[str, str]) -> dict[str, Any]:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        raise InvalidRequest("messages", f'{where} must be an object of type "function"')
    function = call.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest("messages", f"{where}.function must be an object with name and arguments")
    id = _text(f"{where}.id", call.get("id"))
    name = _text(f"{where}.function.name", function.get("name"))
    if not NAME.fullmatch(name):
        raise InvalidRequest("messages", f"{where}.function.name is {name!r}; it must fit {NAME.pattern}")
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    called[id] = name
    given: Any = json.dumps(arguments, ensure_ascii=False) if format.as_text else arguments
    return {"id": _id(id, format), "type": "function", "function": {"name": name, "arguments": given}}


def _arguments(where: str, given: Any) -> dict[str, Any]:
    """JSON text of an object, as clients send it, or the object. Empty text is no arguments."""
    try:
        value = json.loads(given or "{}", strict=False) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("messages", f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("messages", f"{where} must be the JSON text of an object")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest("messages", f"{where} must be a string, and not empty")
    return value


def _id(id: str, format: ToolFormat) -> str:
    if not format.short_ids:
        return id
    return "".join(character for character in id if character.isalnum())[-_SHORT_ID:].rjust(_SHORT_ID, "0")
