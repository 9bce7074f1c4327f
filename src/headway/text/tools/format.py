"""How a model's chat template writes tool calls, learned from the template itself.

A probe is rendered: a conversation whose assistant message calls a function with a name and arguments that occur
nowhere else. What stands before, between and after them is the format. So no list of model names is needed, and a
template of which this cannot be learned is refused, not guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from headway.core.errors import InvalidRequest, TemplateBound
from headway.text.chat.template import ChatTemplate

#: What a function may be called.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMES = ("zq_probe_first", "zq_probe_second")
_ARGUMENTS = ({"zq_place": "zq_here"}, {"zq_when": "zq_now"})
_LONG_IDS = ("call_zq0000000001", "call_zq0000000002")
#: Some templates demand exactly nine letters and digits.
_SHORT_IDS = ("zq0000001", "zq0000002")
#: Begins and ends with what no marker begins or ends with.
_CONTENT = "¤zq content¤"
_USER = {"role": "user", "content": "zq question"}


@dataclass(frozen=True)
class ToolFormat:
    """How calls are written: `before` CALL (`between` CALL)* `after`.

    before, after  what encloses all calls of an answer. If several calls are each enclosed on their own, `between`
                   is the end of one, whitespace, and the beginning of the next
    between        what separates two calls, or None if the template allows only one
    keys           a CALL is a JSON object: the keys of its name and of its arguments. Or None: a CALL is the bare
                   name, `middle`, and the arguments as a JSON object
    middle         see `keys`
    as_text        earlier calls are given to the template with their arguments as JSON text, not as an object
    empty          the content of an assistant message without text, as the template wants it
    short_ids      the template demands call ids of nine letters and digits
    """

    before: str
    between: str | None
    after: str
    keys: tuple[str, str] | None
    middle: str = ""
    as_text: bool = False
    empty: str | None = None
    short_ids: bool = False

    @classmethod
    def of(cls, template: ChatTemplate) -> ToolFormat:
        """The format of one template, from some ten renderings of it. Raises InvalidRequest (field `tools`) if it
        has no tools, or writes their calls in a way that is not understood."""
        name = template.name
        if not _offers(template):
            raise InvalidRequest(
                "tools",
                f"the chat template of {name} does not support tools: leave out tools, and messages with tool calls",
            )
        for empty, as_text, short_ids in product((None, ""), (False, True), (False, True)):
            probe = _Probe(template, empty, as_text, short_ids)
            if (found := probe.learn()) is not None:
                return found
        raise InvalidRequest(
            "tools", f"the chat template of {name} writes tool calls in a form that Headway does not understand"
        )

    @property
    def each_enclosed(self) -> bool:
        """Whether several calls are each enclosed by `before` and `after`."""
        return self.between is not None and bare(self.between) == bare(self.after) + bare(self.before)

    @property
    def literals(self) -> tuple[str, ...]:
        """All text that is the format's own."""
        return (self.before, self.between or "", self.after, self.middle)


def bare(text: str) -> str:
    """Text without its whitespace: models take liberties with it around markers, so it is not compared."""
    return "".join(text.split())


@dataclass(frozen=True)
class _Call:
    """One call as it was found in a rendering: `start` and `end` enclose it (of a bare call: the name's start)."""

    start: int
    end: int
    keys: tuple[str, str] | None
    middle: str


@dataclass(frozen=True)
class _Probe:
    """One way to give earlier calls to a template."""

    template: ChatTemplate
    empty: str | None
    as_text: bool
    short_ids: bool

    def learn(self) -> ToolFormat | None:
        """The format, or None if calls given in this way are refused, or come out as something else."""
        plain = self._render([_USER, {"role": "assistant", "content": _CONTENT}])
        one = self._render([_USER, self._message(1)])
        if plain is None or one is None:
            return None
        # An answer's text, whatever it says, stands between the same beginning and end of its turn.
        start, end = _alike(plain, one), len(one) - _alike(plain[::-1], one[::-1])
        call = _find(one, start, 0)
        if call is None:
            return None
        between = None
        two = self._render([_USER, self._message(2)])
        if two is not None:
            first, second = _find(two, start, 0), _find(two, start, 1)
            if first is None or second is None or first.middle != second.middle:
                return None
            between = two[first.end : second.start]
        found = ToolFormat(
            one[start : call.start], between, one[call.end : end], call.keys, call.middle,
            self.as_text, self.empty, self.short_ids,
        )  # fmt: skip
        return found if _readable(found) else None

    def _message(self, calls: int) -> dict[str, Any]:
        ids = _SHORT_IDS if self.short_ids else _LONG_IDS
        return {
            "role": "assistant",
            "content": self.empty,
            "tool_calls": [
                {
                    "id": ids[i],
                    "type": "function",
                    "function": {
                        "name": _NAMES[i],
                        "arguments": json.dumps(_ARGUMENTS[i]) if self.as_text else _ARGUMENTS[i],
                    },
                }
                for i in range(calls)
            ],
        }

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """None for what the template refuses; another way may suit it. What crosses a bound is no way at all."""
        try:
            return self.template.render(messages, add_generation_prompt=False, tools=probe_tools())
        except TemplateBound:
            raise
        except InvalidRequest:
            return None


def _offers(template: ChatTemplate) -> bool:
    """Whether the model is told of the tools at all. Raises InvalidRequest for a model without a template."""
    return _NAMES[0] in template.render([_USER], tools=probe_tools())


def probe_tools() -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"zq_place": {"type": "string", "description": "where"}}}
    return [
        {"type": "function", "function": {"name": name, "description": "probe", "parameters": parameters}}
        for name in _NAMES
    ]


def _alike(a: str, b: str) -> int:
    """How many characters two texts have in common from the first on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _find(text: str, start: int, which: int) -> _Call | None:
    """One of the probe's calls in a rendering from `start` on."""
    name, arguments = _NAMES[which], _ARGUMENTS[which]
    decoder = json.JSONDecoder()
    named_at = text.find(name, start)
    opened_at = start - 1
    while named_at >= 0 and (opened_at := text.find("{", opened_at + 1)) >= 0:
        try:
            value, end = decoder.raw_decode(text, opened_at)
        except ValueError:
            continue
        keys = {json.dumps(item, sort_keys=True): key for key, item in value.items()}
        if json.dumps(name) in keys and json.dumps(arguments) in keys:
            return _Call(opened_at, end, (keys[json.dumps(name)], keys[json.dumps(arguments)]), "")
        if value == arguments and named_at < opened_at:
            return _Call(named_at, end, None, text[named_at + len(name) : opened_at])
    return None


def _readable(format: ToolFormat) -> bool:
    """Whether calls can be told from other text and from each other."""
    if any("zq" in literal for literal in format.literals):
        return False  # an id or a name stands where only markers should
    if format.between is not None and not format.each_enclosed:
        between, after = bare(format.between), bare(format.after)
        if not between or (after and (between.startswith(after) or after.startswith(between))):
            return False
    if format.keys is None:
        middle = bare(format.middle)
        return bool(bare(format.before)) and bool(middle) and not NAME.match(middle)
    return True
