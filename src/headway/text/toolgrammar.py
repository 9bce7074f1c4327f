"""A grammar that leaves an answer no choice but to call functions, in the chat template's own format.

Its notation is Lark's as `llguidance` reads it: `%json {…}` stands for JSON that fits a schema, `<[7]>` for token 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headway.plan import Grammar
from headway.text.tools import ToolFormat

#: JSON as templates write it; with free whitespace a model can go on with blanks for ever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def forced_calls(
    format: ToolFormat, functions: Mapping[str, Mapping[str, Any]], added: Mapping[str, int], *, several: bool
) -> Grammar:
    """An answer of one call, or with `several` of one and more if the format knows them.

    functions  name → JSON schema of its arguments
    added      the tokenizer's added tokens: text → id. Where a marker holds one, that very token must come: text that
               merely reads like it is other tokens, and special tokens are no text at all
    """
    before, between, after = (_literal(text, added) for text in (format.before, format.between or "", format.after))
    calls = f"{before} call {f'({between} call)* ' if several and format.between is not None else ''}{after}"
    rules = [f"start: {calls}", "call: " + " | ".join(f"call_{i}" for i in range(len(functions)))]
    for i, (name, parameters) in enumerate(functions.items()):
        schema = json.dumps({"type": "object", **parameters, "x-guidance": _SPACING})
        if format.keys is None:
            head, tail = name + format.middle, ""
        else:
            name_key, arguments_key = map(json.dumps, format.keys)
            head, tail = f'{{{name_key}: "{name}", {arguments_key}: ', "}"
        rules.append(f"call_{i}: {_literal(head, added)} arguments_{i} {_literal(tail, added)}")
        rules.append(f"arguments_{i}: %json {schema}")
    return Grammar("lark", "\n".join(rules) + "\n")


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
