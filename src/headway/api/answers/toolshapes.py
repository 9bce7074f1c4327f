"""The JSON of chat answers that may call tools."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from headway.api.answers.logprobs import Told
from headway.api.answers.shapes import ChatShape, Choice
from headway.api.bodies.tools import Tools
from headway.text.tokenizer import Tokenizer
from headway.text.tools.calls import ArgumentsPiece, CallBegun, TextPiece, ToolCallParser, ToolEvent
from headway.text.tools.format import ToolFormat


@dataclass
class _Message:
    """What one choice says, calls told from content."""

    parser: ToolCallParser
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, event: ToolEvent) -> dict[str, Any]:
        """Returns what a stream says about it."""
        match event:
            case TextPiece(text=text):
                self.content += text
                return {"content": text}
            case CallBegun(index=index, id=id, name=name):
                function = {"name": name, "arguments": ""}
                self.calls.append({"id": id, "type": "function", "function": dict(function)})
                return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
            case ArgumentsPiece(index=index, text=text):
                self.calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


@dataclass
class ToolShape(ChatShape):
    """Chat in which calls are told from content; both are streamed as they come.

    The reason of the end is `tool_calls` if the answer ended by itself and its calls are whole. An answer that was
    cut off keeps the reason why, and a call that was cut off the arguments it has; one without its name is left out.
    """

    tools: Tools = field(kw_only=True)
    format: ToolFormat = field(kw_only=True)
    messages: dict[int, _Message] = field(default_factory=dict)

    def choice(self, choice: Choice) -> dict[str, Any]:
        row = super().choice(choice)
        message = self._message(choice)
        row["message"]["content"] = message.content or (None if message.calls else "")
        if message.calls:
            row["message"]["tool_calls"] = message.calls
        return row

    def deltas(self, choice: Choice, text: str, finish: str | None, told: Told = ()) -> list[dict[str, Any]]:
        message = self._message(choice)
        deltas: list[dict[str, Any]] = []
        if not choice.begun:
            choice.begun = True
            deltas.append({"role": "assistant", "content": None})
        events = message.parser.push(text)
        if finish is not None:
            events += message.parser.finish(cut=finish == "length")
        deltas += [message.add(event) for event in events]
        if told and self.spelling and not deltas:
            deltas.append({"content": ""})  # all of it is held back, or a marker
        if finish == "stop" and message.calls and message.parser.whole:
            finish = choice.finish = "tool_calls"
        return self.rows(choice, deltas, finish, told)

    def _message(self, choice: Choice) -> _Message:
        if choice.index not in self.messages:
            self.messages[choice.index] = _Message(self.tools.parser(self.format))
        return self.messages[choice.index]


def tool_shape(plain: ChatShape, tools: Tools, format: ToolFormat, tokenizer: Tokenizer) -> ToolShape:
    """`plain`, in which calls are told from content."""
    shown = {
        id
        for text, id in tokenizer.added.items()
        if id in tokenizer.special_ids and any(text in literal for literal in format.literals)
    }
    same = {each.name: getattr(plain, each.name) for each in fields(plain)}
    return ToolShape(
        **same | {"shown": plain.shown | shown, "unsaid": plain.unsaid - shown}, tools=tools, format=format
    )
