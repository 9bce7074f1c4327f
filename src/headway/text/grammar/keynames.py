"""Which names of properties a pattern matches, by the grammar library itself, so that both agree."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from headway.core.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher


def fits(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name. Raises GrammarError for a pattern that the library does not know."""
    matcher = _matcher({"type": "string", "pattern": pattern})
    text = json.dumps(name, ensure_ascii=False).encode()
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


def leaves_a_key(patterns: Mapping[str, bool], names: Collection[str]) -> bool:
    """Whether a property may be called something else than `names`: what the patterns with true match, or, without
    such, what none of the patterns matches."""
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, False),
        "patternProperties": dict(patterns),
        "additionalProperties": not any(patterns.values()),
        "minProperties": 1,
    }
    matcher = _matcher(schema, empty_is_fine=True)
    return not matcher.is_error() and matcher.consume_token(ord("{")) and _goes_on(matcher)


def _goes_on(matcher: LLMatcher) -> bool:
    mask = matcher.compute_bitmask()
    return not matcher.is_error() and any(mask[: 256 // 8])


def _matcher(schema: dict[str, Any], *, empty_is_fine: bool = False) -> LLMatcher:
    from llguidance import LLMatcher, LLTokenizer

    source = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
    matcher = LLMatcher(LLTokenizer("byte"), source, log_level=0)
    if matcher.is_error() and not (empty_is_fine and "nsatisfiable" in matcher.get_error()):
        raise GrammarError(f"a pattern of patternProperties: {matcher.get_error().strip()}"[:600])
    return matcher
