"""Grammars of tool calls in the chat template's own format: an answer must call, or must call or be JSON.

Its notation is Lark's as `llguidance` reads it: `%json {…}` stands for JSON that fits a schema, `<[7]>` for token 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.core.plan import Grammar
from headway.text.grammar.exactjson import ExactJson
from headway.text.grammar.spacing import SPACED
from headway.text.tools.format import ToolFormat


def forced_calls(
    format: ToolFormat, functions: Mapping[str, Any], added: Mapping[str, int], *, several: bool
) -> Grammar:
    """An answer of one call, or with `several` of one and more if the format knows them.

    functions  name → JSON schema of its arguments, as `read_schema` gives it
    added      the tokenizer's added tokens: text → id. Where a marker holds one, that very token must come: text that
               merely reads like it is other tokens, and special tokens are no text at all
    """
    return _composed([*_calls("start", format, functions, added, several)])


def calls_or_json(
    format: ToolFormat, functions: Mapping[str, Any], added: Mapping[str, int], text: Any, *, several: bool
) -> Grammar:
    """An answer of calls, as above, or one that is JSON and fits the schema `text`, spaced as calls are: then both
    may begin alike."""
    rules, start = _json("text", text)
    return _composed([f"start: calls | {start}", *rules, *_calls("calls", format, functions, added, several)])


def _composed(rules: Sequence[str]) -> Grammar:
    return Grammar("composed", "\n".join(rules) + "\n")


def _calls(
    start: str, format: ToolFormat, functions: Mapping[str, Any], added: Mapping[str, int], several: bool
) -> Iterator[str]:
    before, between, after = (_literal(text, added) for text in (format.before, format.between or "", format.after))
    more = f"({between} call)* " if several and format.between is not None else ""
    yield f"{start}: {before} call {more}{after}"
    yield "call: " + " | ".join(f"call_{i}" for i in range(len(functions)))
    for i, (name, schema) in enumerate(functions.items()):
        if format.keys is None:
            head, tail = [name + format.middle], ""
        else:  # in the pieces that JSON has, so that JSON beside calls may begin alike
            name_key, arguments_key = map(json.dumps, format.keys)
            head, tail = ["{", name_key, ": ", f'"{name}"', ", ", arguments_key, ": "], "}"
        rules, arguments = _json(f"arguments_{i}", schema if schema is False else {"type": "object", **schema})
        yield f"call_{i}: {' '.join(_literal(piece, added) for piece in head)} {arguments} {_literal(tail, added)}"
        yield from rules


def _json(prefix: str, schema: Any) -> tuple[list[str], str]:
    """Rules for JSON that fits a schema, and the first of them. Raises GrammarError."""
    written = ExactJson(schema, SPACED, prefix)
    start = written.start()
    return written.rules, start


def _literal(text: str, added: Mapping[str, int]) -> str:
    """Text as a sequence of strings and tokens."""
    if not text:
        return ""
    longest_first = sorted(filter(None, added), key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if longest_first else [text]
    return " ".join(
        f"<[{added[piece]}]>" if piece in added else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
        if piece
    )
