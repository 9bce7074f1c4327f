"""Schemas against texts byte by byte, without a model: what the grammar of a schema lets through."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from headway.core.errors import GrammarError
from headway.core.plan import Grammar
from headway.text.grammar.guide import _source
from headway.text.grammar.schemas import read_schema


@cache
def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def machine(schema: Any) -> LLMatcher:
    """At the start of a schema's grammar, made as a server makes it. Raises GrammarError."""
    source = json.dumps(read_schema(schema), ensure_ascii=False)
    return matcher(Grammar("json_schema", source))


def matcher(grammar: Grammar) -> LLMatcher:
    found = LLMatcher(byte_tokenizer(), _source(grammar), log_level=0)
    if found.is_error():
        raise GrammarError(found.get_error())
    return found


def lets_through(start: LLMatcher, text: str) -> bool:
    """Whether a whole text may come."""
    data = list(text.encode())
    at = start.deep_copy()
    return at.try_consume_tokens(data) == len(data) and at.is_accepting()


def next_bytes(at: LLMatcher) -> list[int]:
    mask = at.compute_bitmask()
    return [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]


def valid(schema: Any, value: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))
