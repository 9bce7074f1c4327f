"""The messages of a chat request, read: roles, fields and contents are what OpenAI's API knows, or refused by place.

A template takes whatever it is given: it prints an object as Python writes it, and says nothing of a role that it
does not know. So nothing reaches it that was not read here. Clients send answers back as they came, so fields that
are null or say nothing are accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headway.core.errors import InvalidRequest

#: OpenAI's; a template may name further ones.
ROLES = ("system", "developer", "user", "assistant", "tool")
#: Names that templates and clients have for what an assistant thought before it answered.
REASONING = ("reasoning_content", "reasoning", "thinking")
_FIELDS = frozenset({
    "role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations", "audio", "function_call",
    "prefix", *REASONING,
})  # fmt: skip
#: Fields that say nothing to a model: clients send answers back with what they noted beside them.
_WITHOUT_EFFECT = (
    "annotations", "cache_control", "id", "metadata", "provider_specific_fields", "reasoning_details",
    "thinking_blocks",
)  # fmt: skip
_KINDS = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}


@dataclass(frozen=True)
class Conversation:
    """What was said. Each message has `role` and `content` (text, or None beside tool calls), and what else it was
    given with of `name`, `tool_calls`, `tool_call_id` and one of `REASONING`.

    ignored  fields without effect, named as in `messages[].annotations`
    open     the last message is a beginning that the answer continues (its `prefix` is true)
    """

    messages: list[dict[str, Any]]
    ignored: tuple[str, ...] = ()
    open: bool = False


def read_messages(given: Sequence[Mapping[str, Any]], words: Collection[str]) -> Conversation:
    """`words` are what the chat template names: a role of its own, a field for reasoning. Raises InvalidRequest whose
    message begins with the place, `messages[2].content`."""
    ignored: dict[str, None] = {}
    messages = [_message(f"messages[{i}]", message, words, ignored) for i, message in enumerate(given)]
    for i, message in enumerate(given):
        if message.get("prefix") and i < len(given) - 1:
            _refuse(f"messages[{i}].prefix", "is true; only the last message can be continued")
    return Conversation(messages, tuple(ignored), bool(given and given[-1].get("prefix")))


def has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the conversation holds tool calls or results of them."""
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def _message(
    where: str, given: Mapping[str, Any], words: Collection[str], ignored: dict[str, None]
) -> dict[str, Any]:
    message = {key: value for key, value in given.items() if value is not None}
    for field in message:
        if field not in _FIELDS and field not in _WITHOUT_EFFECT:
            _refuse(f"{where}.{field}", "is not a known field of a message")
    role = _role(where, message, words)
    _refuse_old_or_foreign(where, role, message)
    for field in _WITHOUT_EFFECT:
        if message.get(field):
            ignored[f"messages[].{field}"] = None
    calls = message.get("tool_calls") or None
    found: dict[str, Any] = {"role": role, "content": _content(where, role, message, calls, ignored)}
    if "name" in message:
        found["name"] = _text(f"{where}.name", message["name"])
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            _refuse(f"{where}.tool_calls", "must be a list, in a message with role 'assistant'")
        found["tool_calls"] = calls
    if role == "tool" and "tool_call_id" in message:
        found["tool_call_id"] = _text(f"{where}.tool_call_id", message["tool_call_id"], empty=True)
    return found | _reasoning(where, role, message, words, ignored)


def _role(where: str, message: Mapping[str, Any], words: Collection[str]) -> str:
    role = message.get("role")
    if not isinstance(role, str):
        _refuse(f"{where}.role", f"must be a string; it is {_kind(role)}" if role is not None else "is missing")
    if role == "function":
        _refuse(
            f"{where}.role", "is 'function', from the deprecated function calling; use tool_calls and the role 'tool'"
        )
    if role not in ROLES and role not in words:
        known = ", ".join(ROLES)
        _refuse(f"{where}.role", f"is {role!r}; it must be one of {known}, or one that the chat template names")
    # no model was trained on a role that its template does not name; OpenAI's developer messages are system messages
    return "system" if role == "developer" and role not in words else role


def _refuse_old_or_foreign(where: str, role: str, message: Mapping[str, Any]) -> None:
    if "function_call" in message:
        _refuse(
            f"{where}.function_call", "is from the deprecated function calling; use tool_calls and the role 'tool'"
        )
    if "audio" in message:
        _refuse(f"{where}.audio", "is not supported; only text is")
    if not isinstance(message.get("prefix", False), bool):
        _refuse(f"{where}.prefix", f"must be a boolean; it is {_kind(message['prefix'])}")
    if message.get("prefix") and role != "assistant":
        _refuse(f"{where}.prefix", f"is true; only a message with role 'assistant' can be continued, not {role!r}")
    if role != "tool" and "tool_call_id" in message:
        _refuse(f"{where}.tool_call_id", f"belongs to messages with role 'tool', not {role!r}")


def _content(where: str, role: str, message: Mapping[str, Any], calls: Any, ignored: dict[str, None]) -> str | None:
    content = message.get("content")
    if "refusal" in message:
        if role != "assistant" or content:
            _refuse(f"{where}.refusal", "is only for an assistant message without content")
        return _text(f"{where}.refusal", message["refusal"])
    if content is None or (content == [] and calls):
        if role != "assistant" or not calls:
            _refuse(f"{where}.content", "is missing; only an assistant message with tool_calls has none")
        return None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(f"{where}.content", f"must be a string or a list of parts; it is {_kind(content)}")
    if not content:
        _refuse(f"{where}.content", "is an empty list; it must be a string or a list of parts")
    return "\n".join(_part(f"{where}.content[{j}]", role, part, ignored) for j, part in enumerate(content))


def _part(where: str, role: str, part: Any, ignored: dict[str, None]) -> str:
    """The text of a part. What an assistant refused with, it said."""
    if not isinstance(part, dict):
        _refuse(where, f"must be an object such as {{'type': 'text', 'text': '…'}}; it is {_kind(part)}")
    kind = part.get("type")
    field = "refusal" if kind == "refusal" and role == "assistant" else "text"
    if kind != field:
        said = f"is of type {kind!r}" if isinstance(kind, str) else "has no type"
        _refuse(where, f"{said}; only parts of type 'text' are supported")
    for other, value in part.items():
        if other == "cache_control":
            ignored["messages[].content[].cache_control"] = None
        elif other not in ("type", field) and value is not None:
            _refuse(f"{where}.{other}", "is not a known field of a content part")
    return _text(f"{where}.{field}", part.get(field), empty=True)


def _reasoning(
    where: str, role: str, message: Mapping[str, Any], words: Collection[str], ignored: dict[str, None]
) -> dict[str, str]:
    """Under the name that the template has for it. A model that was not made to reason has none: then it is what a
    client sends back of another model's answers."""
    given = [field for field in REASONING if message.get(field)]
    if not given:
        return {}
    texts = {_text(f"{where}.{field}", message[field]) for field in given}
    if role != "assistant" or len(texts) > 1:
        _refuse(f"{where}.{given[0]}", "must be a single text, in an assistant message")
    named = [field for field in (*given, *REASONING) if field in words]
    if not named:
        ignored[f"messages[].{given[0]}"] = None
        return {}
    return {named[0]: texts.pop()}


def _text(where: str, value: Any, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        _refuse(where, "is missing" if value is None else f"must be a string; it is {_kind(value)}")
    if not value and not empty:
        _refuse(where, "is empty")
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), "a string")


def _refuse(where: str, what: str) -> NoReturn:
    raise InvalidRequest("messages", f"{where} {what}")
