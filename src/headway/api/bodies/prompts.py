"""The prompt of a conversation: messages, tools and what else reaches the model's chat template."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.api.bodies.tools import Tools
from headway.core.errors import InvalidRequest
from headway.front.models import FrontTextModel
from headway.text.chat.messages import has_calls, read_messages
from headway.text.chat.template import ChatTemplate
from headway.text.tools.history import read_calls

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: What a template relies on: a variable of that name would stand in its place.
RESERVED = frozenset({
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception",
    "strftime_now",
})  # fmt: skip
#: Put at the end of a message that the answer continues, to find that end; the space tells whether it was trimmed.
_OPEN_END = "zq_open_end_zq "


class TemplateFields(Protocol):
    """The fields of a body that reach the template."""

    @property
    def add_generation_prompt(self) -> bool: ...

    @property
    def continue_final_message(self) -> bool: ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any]: ...

    @property
    def reasoning_effort(self) -> str | None: ...


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt's text, and the fields that have no effect on it."""

    text: str
    ignored: tuple[str, ...]


async def chat_prompt(
    model: FrontTextModel, messages: Sequence[Mapping[str, Any]], fields: TemplateFields, tools: Tools | None
) -> ChatPrompt:
    """The conversation through the model's chat template. Raises InvalidRequest for what cannot be put to it, and
    ProcessEnded. Rendered in threads of their own: however long a template takes, only renderings wait for it."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(model.rendering, _chat_prompt, model, messages, fields, tools)


def _chat_prompt(
    model: FrontTextModel, messages: Sequence[Mapping[str, Any]], fields: TemplateFields, tools: Tools | None
) -> ChatPrompt:
    template = model.template
    if not messages:
        raise InvalidRequest("messages", "messages is empty; at least one message is required")
    conversation = read_messages(messages, template.names.words)
    variables, unused = _variables(template, fields)
    read = read_calls(conversation.messages)
    format = model.tool_format if tools is not None or has_calls(read) else None
    offered = None if tools is None else tools.given
    is_open = conversation.open or _is_continued(fields)
    asks = {"add_generation_prompt": fields.add_generation_prompt and not is_open}
    wanted, ignored = model.probes.rendered(read, format, variables | asks, offered)
    if is_open:
        wanted[-1] = _opened(len(messages) - 1, wanted[-1])
    text = template.render(wanted, **variables, **asks, tools=offered)
    return ChatPrompt(_cut(text) if is_open else text, (*conversation.ignored, *ignored, *unused))


def _variables(template: ChatTemplate, fields: TemplateFields) -> tuple[dict[str, Any], list[str]]:
    """Those that the template names, and the fields of those that it does not."""
    given = {f"chat_template_kwargs.{name}": (name, value) for name, value in fields.chat_template_kwargs.items()}
    for name in fields.chat_template_kwargs:
        if not VARIABLE.fullmatch(name):
            message = f"chat_template_kwargs has the key {name!r}; keys must be variable names"
            raise InvalidRequest("chat_template_kwargs", message)
        if name in RESERVED or name in template.special:
            message = f"chat_template_kwargs.{name} cannot be set: the server passes {name} to the template itself"
            raise InvalidRequest("chat_template_kwargs", message)
    if (effort := fields.reasoning_effort) is not None:
        if effort not in REASONING_EFFORTS:
            known = ", ".join(REASONING_EFFORTS)
            raise InvalidRequest("reasoning_effort", f"reasoning_effort is {effort!r}; it must be one of {known}")
        if fields.chat_template_kwargs.get("reasoning_effort", effort) != effort:
            message = "reasoning_effort and chat_template_kwargs.reasoning_effort differ; send one of them"
            raise InvalidRequest("reasoning_effort", message)
        given["reasoning_effort"] = ("reasoning_effort", effort)
    known_names = template.names.variables
    return (
        {name: value for name, value in given.values() if name in known_names},
        [field for field, (name, _) in given.items() if name not in known_names],
    )


def _is_continued(fields: TemplateFields) -> bool:
    if fields.continue_final_message and fields.add_generation_prompt:
        message = "continue_final_message requires add_generation_prompt: false, since no new message is started"
        raise InvalidRequest("continue_final_message", message)
    return fields.continue_final_message


def _opened(place: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("tool_calls") or not isinstance(message["content"], str):
        raise InvalidRequest("messages", f"messages[{place}] has tool_calls; only text can be continued")
    return {**message, "content": message["content"] + _OPEN_END}


def _cut(text: str) -> str:
    """What stands before the open end. Where the template trims contents, their end is trimmed too."""
    end = text.rfind(_OPEN_END.strip())
    if end < 0:
        raise InvalidRequest("messages", "the chat template does not render the end of the last message")
    return text[:end] if text.startswith(_OPEN_END, end) else text[:end].rstrip()
