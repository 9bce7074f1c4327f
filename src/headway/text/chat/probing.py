"""What a template does not render of a conversation, found by rendering another one of the same shape.

A template is a program that may pass over anything without a word: a role that it does not test for, a system message
in the middle, text beside tool calls. So the same sequence of messages is rendered with words in place of its texts
that occur nowhere else; those that do not come out were passed over. This is done once for each shape of a
conversation, and remembered.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Any

from headway.core.errors import InvalidRequest, TemplateBound
from headway.text.chat.messages import REASONING
from headway.text.chat.template import ChatTemplate
from headway.text.tools.format import ToolFormat, probe_tools
from headway.text.tools.history import as_template_wants, is_cut_off

Messages = Sequence[Mapping[str, Any]]
_MARK = re.compile(r"zq(\d+)zq")
_MOST_SHAPES = 1024


@dataclass(frozen=True)
class Probed:
    """What came of a shape. `lost` names the first message that is passed over, `ignored` the fields that have no
    effect but may be there. `refused` says that the template refused the shape, so nothing is known."""

    lost: str | None = None
    ignored: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True)
class Variant:
    """How a conversation is put to a template: with `empty_arguments`, arguments that are no object are replaced by
    an empty one; with `text_before_calls`, text beside tool calls becomes a message of its own before them."""

    empty_arguments: bool = False
    text_before_calls: bool = False

    def put(self, messages: Messages) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for message in messages:
            calls = message.get("tool_calls")
            if calls and self.empty_arguments:
                message = {**message, "tool_calls": [_without_arguments(call) for call in calls]}
            if calls and self.text_before_calls and message["content"]:
                found.append({key: value for key, value in message.items() if key != "tool_calls"})
                message = {"role": message["role"], "content": None, "tool_calls": message["tool_calls"]}
            found.append(dict(message))
        return found


class Probes:
    """The shapes of conversations that one template was given."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._known: OrderedDict[bytes, Probed] = OrderedDict()
        self._lock = threading.Lock()

    def rendered(
        self, messages: Messages, format: ToolFormat | None, variables: Mapping[str, Any], tools: Any
    ) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """The conversation as this template renders all of it, and the fields without effect. Raises InvalidRequest
        for a message that it passes over in every variant."""
        first: Probed | None = None
        for variant in _variants(messages):
            seen = self._seen(messages, variant, format, variables, bool(tools))
            if not seen.lost and not seen.refused:
                empty_arguments = ("messages[].tool_calls[].function.arguments",) if variant.empty_arguments else ()
                return _wanted(variant.put(messages), format), seen.ignored + empty_arguments
            first = first or seen
        assert first is not None
        if (
            first.lost is None
        ):  # it says best itself what it does not like; if it does like these, nothing may be missing
            wanted = _wanted(messages, format)
            self._check_texts(messages, self._template.render(wanted, **variables, tools=tools))
            return wanted, ()
        raise self._refusal(first.lost)

    def _seen(
        self,
        messages: Messages,
        variant: Variant,
        format: ToolFormat | None,
        variables: Mapping[str, Any],
        offered: bool,
    ) -> Probed:
        marks = _Marks()
        shape = [marks.message(f"messages[{i}]", message) for i, message in enumerate(messages)]
        key = hashlib.sha256(repr((shape, variant, offered, sorted(variables.items()))).encode()).digest()
        with self._lock:
            seen = self._known.get(key)
        seen = seen or self._look(variant.put(shape), marks, format, variables, offered)
        with self._lock:
            self._known[key] = seen
            self._known.move_to_end(key)
            while len(self._known) > _MOST_SHAPES:
                self._known.popitem(last=False)
        return seen

    def _look(
        self,
        shape: Messages,
        marks: _Marks,
        format: ToolFormat | None,
        variables: Mapping[str, Any],
        offered: bool,
    ) -> Probed:
        tools = probe_tools() if offered else None
        try:
            text = self._template.render(_wanted(shape, format), **variables, tools=tools)
        except TemplateBound:
            raise
        except InvalidRequest:
            return Probed(refused=True)
        return marks.seen(json.dumps(shape), text)

    def _check_texts(self, messages: Messages, text: str) -> None:
        for i, message in enumerate(messages):
            if (message["content"] or "").strip() not in text:
                raise self._refusal(f"messages[{i}] (role {message['role']!r})")

    def _refusal(self, place: str) -> InvalidRequest:
        return InvalidRequest("messages", f"the chat template of {self._template.name} does not render {place}")


class _Marks:
    """Puts words that occur nowhere else in place of the texts of messages."""

    def __init__(self) -> None:
        self._required: dict[int, str] = {}
        self._optional: dict[int, str] = {}
        self._numbers = count()
        self._ids: dict[str, str] = {}

    def message(self, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
        role = given["role"]
        found: dict[str, Any] = {"role": role, "content": given["content"]}
        if (given["content"] or "").strip():
            found["content"] = self._mark(self._required, f"{where} (role {role!r})")
        if "name" in given:
            optional = {} if role == "tool" else self._optional  # a result was given the name of its function
            found["name"] = self._mark(optional, "messages[].name")
        for field in REASONING:
            if field in given:
                found[field] = self._mark(self._optional, f"messages[].{field}")
        if "tool_call_id" in given:
            found["tool_call_id"] = self._id(given["tool_call_id"])
        if calls := given.get("tool_calls"):
            found["tool_calls"] = [self._call(f"{where}.tool_calls[{j}]", call) for j, call in enumerate(calls)]
        return found

    def seen(self, shape: str, text: str) -> Probed:
        """`shape` is what was rendered: what is not in it cannot be missing from the text."""
        missing = _marks_in(shape) - _marks_in(text)
        lost = next((place for mark, place in self._required.items() if mark in missing), None)
        ignored = dict.fromkeys(field for mark, field in self._optional.items() if mark in missing)
        return Probed(lost, tuple(ignored))

    def _call(self, where: str, call: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = self._mark(self._required, where), call["function"]["arguments"]
        if is_cut_off(call):
            arguments = '{"' + self._mark(self._required, f"{where}.function.arguments")
        elif arguments:
            arguments = {"zq": self._mark(self._required, f"{where}.function.arguments")}
        return {
            "id": self._id(call["id"]),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _id(self, id: str) -> str:
        """Nine letters and digits, since some templates demand that."""
        return self._ids.setdefault(id, f"zqid{len(self._ids):05}")

    def _mark(self, marks: dict[int, str], place: str) -> str:
        number = next(self._numbers)
        marks[number] = place
        return f"zq{number}zq"


def _marks_in(text: str) -> set[int]:
    return {int(mark) for mark in _MARK.findall(text.casefold())}


def _variants(messages: Messages) -> list[Variant]:
    """The plainest first."""
    calls = [(message, call) for message in messages for call in message.get("tool_calls", ())]
    cut_off = any(is_cut_off(call) for _, call in calls)
    beside = any((message["content"] or "").strip() for message, _ in calls)
    variants = product((False, True)[: 1 + beside], (False, True)[: 1 + cut_off])
    return [Variant(empty_arguments, text_before_calls) for text_before_calls, empty_arguments in variants]


def _without_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    if not is_cut_off(call):
        return dict(call)
    return {**call, "function": {**call["function"], "arguments": {}}}


def _wanted(messages: Messages, format: ToolFormat | None) -> list[dict[str, Any]]:
    return [dict(message) for message in messages] if format is None else as_template_wants(messages, format)
