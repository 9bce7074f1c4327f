"""What can be said about a JSON schema at a glance: that it allows everything or nothing, or which types; that two
have no value in common. Whatever is not plain to see is not claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
#: Keywords that say something about values of some types only.
ABOUT: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), frozenset({"number", "integer"})
    ),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), frozenset({"string"})),
    **dict.fromkeys(
        ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
         "maxContains", "unevaluatedItems"),
        frozenset({"array"}),
    ),
    **dict.fromkeys(
        ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
         "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
        frozenset({"object"}),
    ),
}  # fmt: skip
#: Keywords that apply schemas to the same value.
APPLICATORS = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef",
     "dependentSchemas", "dependencies"}
)  # fmt: skip
#: All that may restrict a value. Every other keyword, a known or an unknown one, is an annotation.
RESTRICTING = frozenset(ABOUT) | APPLICATORS | {"type", "enum", "const"}
_DEPTH = 8

Resolve = Callable[[str], Any]


def always(schema: Any) -> bool:
    """It allows everything."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() & RESTRICTING)


def never(schema: Any) -> bool:
    """It allows nothing."""
    return schema is False or (isinstance(schema, dict) and always(schema.get("not")))


def types_of(schema: Any) -> frozenset[str]:
    """The types that its `type` allows. A number may be an integer too."""
    given = schema.get("type") if isinstance(schema, dict) else None
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return TYPES
    return frozenset(names) | ({"integer"} if "number" in names else set())


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def literals(schema: Any) -> list[Any] | None:
    """The values that it lists, if it does."""
    if isinstance(schema, dict) and "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum") if isinstance(schema, dict) else None
    return listed if isinstance(listed, list) else None


def disjoint(one: Any, other: Any, resolve: Resolve, depth: int = _DEPTH) -> bool:
    """No value fits both. `resolve` finds what a `$ref` points at."""
    one, other = _target(one, resolve, depth), _target(other, resolve, depth)
    if never(one) or never(other):
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or not depth:
        return False
    listed, others = literals(one), literals(other)
    if listed is not None and others is not None:
        return not any(same(a, b) for a in listed for b in others)
    kinds = _kinds(one, listed) & _kinds(other, others)
    if not kinds:
        return True
    if kinds <= {"number", "integer"}:
        return all(_apart(a, b) or _apart(b, a) for a in _ranges(one, listed) for b in _ranges(other, others))
    return kinds == {"object"} and any(
        disjoint(_property(one, name), _property(other, name), resolve, depth - 1)
        for name in {*_required(one), *_required(other)}
    )


def _target(schema: Any, resolve: Resolve, depth: int) -> Any:
    """What a bare reference points at."""
    while isinstance(schema, dict) and schema.keys() & RESTRICTING == {"$ref"} and depth:
        schema, depth = resolve(schema["$ref"]), depth - 1
    return schema


def kind(value: Any) -> str:
    """The type of a JSON value."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null", int: "integer"}
    whole = isinstance(value, float) and value.is_integer()
    return "integer" if whole else names.get(type(value), "number")


def _kinds(schema: dict[str, Any], listed: list[Any] | None) -> frozenset[str]:
    return types_of(schema) if listed is None else types_of(schema) & frozenset(map(kind, listed))


def _ranges(schema: dict[str, Any], listed: list[Any] | None) -> list[dict[str, Any]]:
    """The numbers that it allows, as bounds."""
    if listed is None:
        return [schema]
    return [{"minimum": value, "maximum": value} for value in listed if kind(value) in ("number", "integer")]


def _apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """All numbers of the one are less than all of the other."""
    highest = [one[key] for key in ("maximum", "exclusiveMaximum") if type(one.get(key)) in (int, float)]
    lowest = [other[key] for key in ("minimum", "exclusiveMinimum") if type(other.get(key)) in (int, float)]
    if not highest or not lowest:
        return False
    strict = "exclusiveMaximum" in one or "exclusiveMinimum" in other
    return bool(min(highest) < max(lowest) or (strict and len(highest) == len(lowest) == 1 and highest == lowest))


def _required(schema: dict[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _property(schema: dict[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)
