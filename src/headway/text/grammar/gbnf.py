"""Grammars in llama.cpp's notation (GBNF, and the EBNF that other servers read), said in Lark's.

    root ::= "yes" | "no" [.!]{0,3}    # a comment

GBNF is about characters. `llguidance` reads words first, each as long as it can be, so a word for each literal or
rule would lose texts (as its own converter does). Here each character is a word of its own, and the meaning stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from headway.core.errors import GrammarError

_HEAD = re.compile(r"^[ \t]*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
_ESCAPE = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[^xuU])"
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
_TOKEN = re.compile(
    rf"""(?P<space>\s+|\#[^\n]*)
    |(?P<head>[A-Za-z][\w-]*)\s*::=
    |(?P<name>[A-Za-z][\w-]*)
    |"(?P<literal>(?:{_ESCAPE}|[^"\\\n])*)"
    |\[(?P<class>\^?(?:{_ESCAPE}|[^\]\\\n])*)\]
    |\{{\s*(?P<times>\d*\s*,?\s*\d*)\s*\}}
    |(?P<sign>[().|*+?])""",
    re.VERBOSE | re.DOTALL,
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
#: Characters of a literal and of repeated parts are rules of their own to the library.
_MOST_TIMES = 10_000


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def is_gbnf(source: str) -> bool:
    """Whether a grammar is in this notation: a rule begins with its name and `::=`."""
    return _HEAD.search(source) is not None


def lark_of(source: str) -> str:
    """The same grammar in Lark's notation. Raises GrammarError, with the line."""
    tokens = list(_tokens(source))
    heads = [token for token in tokens if token.kind == "head"]
    names = {token.text: f"rule_{i}" for i, token in enumerate(heads)}
    if len(names) < len(heads):
        raise GrammarError("a rule is defined twice")
    if "root" not in names:
        raise GrammarError("there is no rule named root, where generation starts")
    if not tokens or tokens[0].kind != "head":
        raise GrammarError("it must start with a rule: its name, ::= and its definition")
    names["root"] = "start"
    lines: list[list[str]] = []
    depth = 0
    for i, token in enumerate(tokens):
        if token.kind == "head":
            _closed(token, depth)
            lines.append([f"{names[token.text]}:"])
            continue
        depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind == "sign" else 0
        if depth < 0:
            raise GrammarError(f"line {token.line}: unmatched closing bracket")
        lines[-1].append(_lark(token, names, tokens[i - 1]))
    _closed(tokens[-1], depth)
    return "\n".join(" ".join(line) for line in lines) + "\n"


def _tokens(source: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise GrammarError(f"line {line}: {source[at : at + 20]!r} is not valid GBNF")
        kind = str(found.lastgroup)
        if kind != "space":
            yield _Token(kind, found[kind], line)
        line += found[0].count("\n")
        at = found.end()


def _closed(token: _Token, depth: int) -> None:
    if depth:
        raise GrammarError(f"line {token.line}: a bracket before it is not closed")


def _lark(token: _Token, names: dict[str, str], before: _Token) -> str:
    match token.kind:
        case "name":
            if token.text not in names:
                raise GrammarError(f"line {token.line}: there is no rule named {token.text}")
            return names[token.text]
        case "literal":
            characters = [json.dumps(_plain(found), ensure_ascii=False) for found in _CHARACTER.findall(token.text)]
            return f"({' '.join(characters)})" if characters else '""'
        case "class":
            return f"/{_class(token)}/"
        case "times":
            _repeats(token, before)
            return _times(token)
        case _:
            if token.text in "*+?":
                _repeats(token, before)
            return "/(?s:.)/" if token.text == "." else token.text


def _repeats(token: _Token, before: _Token) -> None:
    if before.kind == "head" or (before.kind == "sign" and before.text in "(|"):
        raise GrammarError(f"line {token.line}: {token.text} has nothing before it to repeat")


def _times(token: _Token) -> str:
    least, comma, most = (part.strip() for part in token.text.partition(","))
    low = int(least or 0)
    high = int(most) if most else None if comma else low
    if high == 0:
        raise GrammarError(f"line {token.line}: {{{token.text}}} repeats nothing; leave it out with what it repeats")
    if (not comma and not least) or (high is not None and high < low) or max(low, high or 0) > _MOST_TIMES:
        raise GrammarError(f"line {token.line}: {{{token.text}}} must be one or two numbers up to {_MOST_TIMES}")
    return f"{{{low},{'' if high is None else high}}}"


def _class(token: _Token) -> str:
    """A class of characters as a regular expression, with every character by its number."""
    negated, members = token.text.startswith("^"), token.text.removeprefix("^")
    found = [_plain(each) if each != "-" else None for each in _CHARACTER.findall(members)]
    parts, i = [], 0
    while i < len(found):
        first = found[i] or "-"
        if i + 2 < len(found) and found[i + 1] is None:
            last = found[i + 2] or "-"
            if last < first:
                raise GrammarError(f"line {token.line}: the range {first}-{last} is empty")
            parts.append(f"{_number(first)}-{_number(last)}")
            i += 3
        else:
            parts.append(_number(first))
            i += 1
    if not parts:
        raise GrammarError(f"line {token.line}: an empty character class")
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _number(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


def _plain(written: str) -> str:
    """The character that is written, perhaps with an escape."""
    if len(written) > 2:
        code = int(written[2:], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise GrammarError(f"{written} is not a character")
        return chr(code)
    return _NAMED.get(written[1], written[1]) if len(written) == 2 else written
