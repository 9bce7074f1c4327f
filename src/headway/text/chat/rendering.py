"""The process that renders chat templates.

    python -m headway.text.chat.rendering SECONDS

Templates come with models from anywhere, so they run in Jinja's immutable sandbox, with the names that Hugging
Face's `apply_chat_template` gives them and no others; and since a sandbox bounds neither time nor memory, in a
process that does (see `bounded.py`). A question is a JSON object with the template's source; if it also has
variables, the answer is the text that they are rendered to, else it is what the template names.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections import OrderedDict
from functools import partial
from typing import Any

import msgspec
from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.text.bounded import answer_lines
from headway.text.chat.outcomes import BoundExceeded, Names, Outcome, ParseFailed, Rendered, RenderFailed, bounds_of

_MOST_KNOWN = 8
_MOST_MESSAGE = 2000


class Renderer:
    """Answers questions; the last few templates stay compiled."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._known: OrderedDict[str, Template] = OrderedDict()

    def answer(self, line: bytes) -> bytes:
        try:
            return msgspec.json.encode(self._outcome(json.loads(line)))
        except MemoryError:
            return msgspec.json.encode(BoundExceeded("memory"))

    def _outcome(self, question: dict[str, Any]) -> Outcome:
        source, variables = question["source"], question["variables"]
        try:
            if variables is None:
                return self._names(source)
            return self._render(self._template(source), variables, question["most_bytes"])
        except MemoryError:
            raise
        except TemplateSyntaxError as error:
            return ParseFailed(_words(error))
        except Exception as error:  # a template is a program: what it stumbles over can raise anything
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            return (ParseFailed if variables is None else RenderFailed)(kind + _words(error))

    def _names(self, source: str) -> Names:
        self._template(source)
        tree = self._environment.parse(source)
        words = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        words |= {node.attr for node in tree.find_all(nodes.Getattr)}
        tracking = _Tracking(self._environment)
        tracking.visit(tree)
        return Names(frozenset(tracking.undeclared_identifiers), frozenset(map(_plain, words)))

    def _template(self, source: str) -> Template:
        if source not in self._known:
            self._known[source] = self._environment.from_string(source)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return self._known[source]

    def _render(self, template: Template, variables: dict[str, Any], most_bytes: int) -> Outcome:
        pieces, length = [], 0
        for piece in template.generate(**variables):
            try:
                pieces.append(piece.encode())
            except UnicodeEncodeError as error:
                code = ord(piece[error.start])
                return RenderFailed(f"it renders text that is not Unicode (the lone surrogate U+{code:04X})")
            if (length := length + len(pieces[-1])) > most_bytes:
                return BoundExceeded("length")
        return Rendered(b"".join(pieces).decode())


def _words(error: Exception) -> str:
    return _plain(str(error)[:_MOST_MESSAGE])


def _plain(text: str) -> str:
    """Text that a message can hold."""
    return text.encode(errors="replace").decode()


class _AsWritten(CodeGenerator):
    """Evaluates nothing while it compiles: what a template prints may take any time and memory."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible()
        return super()._output_child_to_const(node, frame, finalize)


class _Tracking(_AsWritten, TrackingCodeGenerator):
    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.optimizer = None


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _AsWritten


def _environment() -> Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _Generation]
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


def main(processor_s: str) -> int:
    """Answer each line of the input."""
    return answer_lines(Renderer().answer, partial(bounds_of, processor_s=float(processor_s)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
