"""Which JSON schemas an answer can be held to: a first look, that needs no model, and names what is not supported.

The dialect is draft 2020-12, with `definitions` for older schemas. Supported are the keywords of `_VALUES`, `_LISTS`,
`_MAPS` and `_SINGLE`, with these departures:

- properties come in the order in which the schema names them, then those that `required` adds, then others
- keys that only `additionalProperties` or `patternProperties` allow may be repeated
- `oneOf` must be made of alternatives that plainly exclude each other, `patternProperties` of patterns that do
- `minProperties` and `maxProperties` count, but for 0 and 1, only where every named property is required
- `pattern` has no look-around and no back references; `format` is enforced for strings, and must be one of `FORMATS`

Annotations have no effect, as the dialect says. Every other keyword is refused by name, and so is an unknown one: it
may be a slip of the pen. A name that begins with `x-` is the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.errors import GrammarError

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_VALUES = frozenset(
    {"type", "enum", "const", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength",
     "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "$ref"}
)  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SINGLE = frozenset({"items", "additionalProperties"})
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
     "$id", "$schema", "$anchor", "contentEncoding", "contentMediaType", "contentSchema", "discriminator"}
)  # fmt: skip
_UNSUPPORTED = frozenset(
    {"not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies", "propertyNames",
     "contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems", "unevaluatedProperties",
     "additionalItems", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"}
)  # fmt: skip
#: Each level of schemas is two of JSON, and the grammar library reads 128 of those.
_DEEPEST = 50
#: A mask costs about 0.2 ms for every thousand characters of a text that is prescribed word for word.
MOST_LITERAL = 8192


def check_schema(schema: Any) -> None:
    """Raises GrammarError, with the place in the schema as a JSON pointer, for what is not a schema or needs a
    keyword that is not supported. What only compiling finds out is not looked for: an empty intersection, a bad
    pattern."""
    left = [("#", 0, schema)]
    while left:
        at, depth, part = left.pop()
        if depth > _DEEPEST:
            raise GrammarError(f"{at}: schemas are nested more than {_DEEPEST} deep, which is the limit")
        left += [(f"{at}/{place}", depth + 1, inner) for place, inner in _parts(at, part)]


def _parts(at: str, schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside one."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise GrammarError(f"{at}: a schema is a JSON object, true or false, not {_kind(schema)}")
    for key, value in schema.items():
        if key in _LISTS:
            if not isinstance(value, list) or not value:
                raise GrammarError(f"{at}: {key} must be a list of schemas, and not empty")
            yield from ((f"{key}/{i}", inner) for i, inner in enumerate(value))
        elif key in _MAPS:
            if not isinstance(value, dict):
                raise GrammarError(f"{at}: {key} must be a JSON object, not {_kind(value)}")
            yield from (
                (f"{key}/{name.replace('~', '~0').replace('/', '~1')}", inner) for name, inner in value.items()
            )
        elif key in _SINGLE:
            yield key, value
        elif key in _VALUES:
            _check_value(at, schema, key, value)
        elif key == "x-guidance" or not (key in _ANNOTATIONS or key.startswith("x-")):
            raise GrammarError(f"{at}: {_refusal(key)}")


def _refusal(key: str) -> str:
    if key in _UNSUPPORTED:
        return f"the keyword {key!r} is not supported"
    return f"{key!r} is no keyword that is known here (a name of your own begins with x-)"


def _check_value(at: str, schema: dict[str, Any], key: str, value: Any) -> None:
    if key == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        raise GrammarError(f"{at}: $ref must point into this schema (#/$defs/…); {value!r} does not")
    types = schema.get("type", "string")
    if key == "format" and "string" in types and value not in FORMATS:
        raise GrammarError(f"{at}: the format {value!r} is not supported; {', '.join(sorted(FORMATS))} are")
    texts = value if key == "enum" and isinstance(value, list) else [value]
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    if longest > MOST_LITERAL:
        raise GrammarError(f"{at}: a text of {key} has {longest} characters; the limit is {MOST_LITERAL}")


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
