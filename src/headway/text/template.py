"""A model's chat template: messages to the text of a prompt.

Templates come with models from anywhere, so they run in Jinja's immutable sandbox, with the names that Hugging
Face's `apply_chat_template` gives them and no others.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.artifacts.files import ModelFiles
from headway.errors import InvalidRequest, UnsupportedModel


class ChatTemplate:
    """The template of one model, compiled. Raises UnsupportedModel if Jinja cannot parse it."""

    def __init__(self, files: ModelFiles) -> None:
        self.name = files.name
        self._special = files.special
        try:
            source = files.chat_template
            self._template = None if source is None else _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise UnsupportedModel(files.name, f"a chat template that Jinja cannot parse ({error})") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt's text, special tokens spelled out (encode it with `add_bos=False`).

        A message's `content` is a string, or OpenAI's list of text parts, which are joined by newlines. With
        `add_generation_prompt` the text ends where the assistant's answer begins. `variables` reach the template
        under their names (`tools`, …). Raises InvalidRequest for what the template refuses or cannot handle.
        """
        if self._template is None:
            raise InvalidRequest(
                "messages", f"{self.name} has no chat template; send a plain prompt to /v1/completions"
            )
        names = {"tools": None, "documents": None, **self._special, **variables}
        plain = [_with_plain_content(index, message) for index, message in enumerate(messages)]
        try:
            return self._template.render(messages=plain, add_generation_prompt=add_generation_prompt, **names)
        except Exception as error:  # a template is a program: what it stumbles over can raise anything
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise InvalidRequest("messages", f"the chat template refused them: {kind}{error}") from error


def _with_plain_content(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequest("messages", f"messages[{index}] has a content part {kind!r}; only text is supported")
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant said, for training; here it only stands for
    what is inside."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
