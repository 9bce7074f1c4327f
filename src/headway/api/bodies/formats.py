"""The fields of a body that say what an answer's text must be, OpenAI's and vLLM's: at most one may say it.

What is plainly malformed is refused here, at once; what only compiling finds out ends the request with the same
status, before anything of its answer was sent (see `generate.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from headway.core.errors import GrammarError, InvalidRequest
from headway.core.plan import Grammar
from headway.text.grammar.gbnf import is_gbnf
from headway.text.grammar.schemas import MOST_LITERAL, read_schema

#: A schema, or JSON that is one.
Schema: TypeAlias = dict[str, Any] | bool | str

MOST_SOURCE = 1 << 18
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Whatever may hold `<` without naming a token: strings, regular expressions, comments.
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*', re.DOTALL)


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """`strict` changes nothing: an answer always fits its schema."""

    name: str
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's `response_format`. A schema may also be given as `schema`, as clients of llama.cpp and Together send
    it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | bool | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: one of the first five. The others are known, and have no effect: they must be null
    or false."""

    json: Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None


class Formats(msgspec.Struct, kw_only=True):
    """The fields of a body that this page is about."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class Asked(NamedTuple):
    """A grammar, and the field of the body that asks for it."""

    grammar: Grammar
    field: str


def asked_grammar(body: Formats) -> Asked | None:
    """What the answer must be, if the body says so. Raises InvalidRequest, naming the field, for more than one such
    field and for what cannot be compiled in any case."""
    given = [Asked(grammar, field) for field, grammar in _given(body) if grammar is not None]
    if len(given) > 1:
        names = " and ".join(asked.field for asked in given)
        raise InvalidRequest(given[1].field, f"{names} both constrain the answer; only one may")
    if not given:
        return None
    size = len(given[0].grammar.source)
    if size > MOST_SOURCE:
        message = f"{given[0].field} is {size} characters long; the limit is {MOST_SOURCE}"
        raise InvalidRequest(given[0].field, message)
    return given[0]


def _given(body: Formats) -> list[tuple[str, Grammar | None]]:
    plain = StructuredOutputs(
        json=body.guided_json, regex=body.guided_regex, choice=body.guided_choice, grammar=body.guided_grammar
    )
    guided = _kinds("guided_", plain)
    outputs = body.structured_outputs
    if outputs:
        _without_effect(outputs)
    within = _kinds("structured_outputs.", outputs) if outputs else []
    if outputs and len(within) != 1:
        message = "structured_outputs must have exactly one of json, regex, choice, grammar and json_object: true"
        raise InvalidRequest("structured_outputs", message)
    return [("response_format", _response_format(body.response_format)), *within, *guided]


def _without_effect(asked: StructuredOutputs) -> None:
    for name in asked.__struct_fields__[5:]:
        if getattr(asked, name) not in (None, False):
            message = f"structured_outputs.{name} is not supported; leave it out or send null"
            raise InvalidRequest(f"structured_outputs.{name}", message)


def _response_format(asked: ResponseFormat | None) -> Grammar | None:
    if asked is None:
        return None
    if asked.type != "json_schema" and asked.json_schema is not None:
        message = "response_format has a json_schema, so its type must be json_schema"
        raise InvalidRequest("response_format", message)
    if asked.type == "text" and asked.schema is not None:
        message = "response_format has a schema, so its type must be json_object or json_schema"
        raise InvalidRequest("response_format", message)
    if asked.json_schema is not None and asked.schema is not None:
        message = "response_format has both json_schema and schema; only one may be given"
        raise InvalidRequest("response_format", message)
    if asked.type == "text":
        return None
    if asked.json_schema is None and asked.schema is not None:
        return _schema("response_format", asked.schema)
    if asked.type == "json_object":
        return Grammar("json")
    if asked.json_schema is None:
        message = "response_format is of type json_schema, so it must have a json_schema with a name and a schema"
        raise InvalidRequest("response_format", message)
    if not _NAME.fullmatch(asked.json_schema.name):
        message = "response_format.json_schema.name must be 1 to 64 of the characters a-z A-Z 0-9 _ -"
        raise InvalidRequest("response_format", message)
    return _schema("response_format", asked.json_schema.schema)


def _kinds(prefix: str, asked: StructuredOutputs) -> list[tuple[str, Grammar | None]]:
    """The kinds that are given, as (field, grammar)."""
    kinds: list[tuple[str, Grammar | None]] = []
    if asked.json is not None:
        kinds.append((f"{prefix}json", _schema(f"{prefix}json", asked.json)))
    if asked.regex is not None:
        kinds.append((f"{prefix}regex", _regex(f"{prefix}regex", asked.regex)))
    if asked.choice is not None:
        kinds.append((f"{prefix}choice", _choice(f"{prefix}choice", asked.choice)))
    if asked.grammar is not None:
        kinds.append((f"{prefix}grammar", _grammar(f"{prefix}grammar", asked.grammar)))
    if asked.json_object:
        kinds.append((f"{prefix}json_object", Grammar("json")))
    return kinds


def _schema(field: str, schema: Schema) -> Grammar:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(field, f"{field} is a string that is not JSON: {error}") from error
    try:
        read = read_schema(schema)
    except GrammarError as error:
        raise InvalidRequest(field, f"{field}: {error}") from error
    return Grammar("json_schema", json.dumps(read, ensure_ascii=False))


def _no_number(word: str) -> None:
    """JSON has no such number, though Python's reader does."""
    raise ValueError(f"{word} is not a JSON number")


def _regex(field: str, pattern: str) -> Grammar:
    if not 0 < len(pattern) <= MOST_LITERAL:
        raise InvalidRequest(field, f"{field} has {len(pattern)} characters; it must have 1 to {MOST_LITERAL}")
    return Grammar("regex", pattern)


def _choice(field: str, texts: list[str]) -> Grammar:
    if not texts or "" in texts:
        raise InvalidRequest(field, f"{field} must be a list of non-empty strings to choose from")
    if (longest := max(map(len, texts))) > MOST_LITERAL:
        raise InvalidRequest(field, f"{field} has a string of {longest} characters; the limit is {MOST_LITERAL}")
    return Grammar("choice", json.dumps(texts, ensure_ascii=False))


def _grammar(field: str, source: str) -> Grammar:
    """Lark's notation, or GBNF, which writes `::=`."""
    if is_gbnf(source):
        return Grammar("gbnf", source)
    if "<" in _QUOTED.sub("", source):
        raise InvalidRequest(field, f"{field} refers to a token with <…>; special tokens cannot be part of an answer")
    return Grammar("lark", source)
