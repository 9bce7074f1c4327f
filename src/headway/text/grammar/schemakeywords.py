"""Keywords of JSON Schema that the grammar library does not know, said in those that it knows.

What changes nothing where it stands is left out: `uniqueItems: false`, `if` without `then` and `else`, what is about
objects where only strings may be. What older drafts write is said as 2020-12 says it. What restricts, and cannot be
said otherwise, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.core.errors import GrammarError
from headway.text.grammar.schemafacts import (
    ABOUT,
    APPLICATORS,
    TYPES,
    always,
    kind,
    literals,
    never,
    same,
    types_of,
)

Json = dict[str, Any]


def simplified(at: str, schema: Json) -> Json | bool:
    """A schema that allows the same values. Only the keywords of this one are looked at, not those inside. Raises
    GrammarError."""
    kinds = types_of(schema)
    left = {key: value for key, value in schema.items() if key not in ABOUT or ABOUT[key] & kinds}
    for key in _RULES:
        if key in left:
            left = _RULES[key](at, left)
    return False if never(left) else left


def refuse(at: str, key: str, why: str = "") -> GrammarError:
    return GrammarError(f"{at}: the keyword {key!r} is not supported{why and f' {why}'}")


def _without(schema: Json, *keys: str) -> Json:
    return {key: value for key, value in schema.items() if key not in keys}


def _and(schema: Json, other: Any) -> Json:
    """Both at once."""
    return schema if always(other) else schema | {"allOf": [*schema.get("allOf", []), other]}


def _needs(at: str, key: str, value: Any, kinds: type | tuple[type, ...], what: str) -> None:
    if not isinstance(value, kinds):
        raise GrammarError(f"{at}: {key} must be {what}")


def _bound(at: str, schema: Json, key: str, value: Any) -> Json:
    """Beside a lower or an upper bound that is there."""
    there = schema.get(key)
    if there is None:
        return schema | {key: value}
    _needs(at, key, there, (int, float), "a number")
    return schema | {key: max(there, value) if key.startswith("min") else min(there, value)}


def _subschema(at: str, key: str, value: Any) -> None:
    _needs(at, key, value, (dict, bool), "a schema: a JSON object, true or false")


# -- one keyword each --------------------------------------------------------------------------------------------


def _not(at: str, schema: Json) -> Json:
    excluded, left = schema["not"], _without(schema, "not")
    _subschema(at, "not", excluded)
    if never(excluded):
        return left
    if always(excluded):
        return {"not": True}
    if "type" in excluded and not types_of(excluded) & types_of(schema):
        return left
    if (listed := literals(left)) is not None and (others := literals(excluded)) is not None:
        rest = [value for value in listed if not any(same(value, other) for other in others)]
        return _without(left, "const") | {"enum": rest} if rest else {"not": True}
    if excluded.keys() & (frozenset(ABOUT) | APPLICATORS | {"enum", "const", "type"}) == {"type"}:
        names, rest_of_types = types_of(excluded), types_of(schema) - types_of(excluded)
        if "integer" in names and "number" in rest_of_types:
            raise refuse(at, "not", 'of "integer" where other numbers may be')
        return left | {"type": sorted(rest_of_types - ({"integer"} if "number" in rest_of_types else set()))}
    raise refuse(at, "not")


def _if(at: str, schema: Json) -> Json:
    left = _without(schema, "if", "then", "else")
    if "if" not in schema:
        return left
    then, otherwise = schema.get("then", True), schema.get("else", True)
    for key, value in (("if", schema["if"]), ("then", then), ("else", otherwise)):
        _subschema(at, key, value)
    if always(then) and always(otherwise):
        return left
    if always(schema["if"]):
        return _and(left, then)
    if never(schema["if"]):
        return _and(left, otherwise)
    raise refuse(at, "if")


def _dependencies(at: str, schema: Json) -> Json:
    """Of draft 7: both kinds under one name."""
    given = schema["dependencies"]
    _needs(at, "dependencies", given, dict, "a JSON object")
    lists = {name: value for name, value in given.items() if isinstance(value, list)}
    schemas = {name: value for name, value in given.items() if not isinstance(value, list)}
    left = _without(schema, "dependencies")
    left = _dependent_required(at, left | {"dependentRequired": lists}, "dependencies")
    return _dependent_schemas(at, left | {"dependentSchemas": schemas}, "dependencies")


def _dependent_required(at: str, schema: Json, word: str = "dependentRequired") -> Json:
    given, left = schema["dependentRequired"], _without(schema, "dependentRequired")
    _needs(at, word, given, dict, "a JSON object")
    for name, names in given.items():
        _needs(at, word, names, list, "lists of names")
        required = left.get("required", [])
        if name in required:
            left = left | {"required": list(dict.fromkeys([*required, *names]))}
        elif not _absent(schema, name) and not set(names) <= {name, *required}:
            raise refuse(at, word)
    return left


def _dependent_schemas(at: str, schema: Json, word: str = "dependentSchemas") -> Json:
    given, left = schema["dependentSchemas"], _without(schema, "dependentSchemas")
    _needs(at, word, given, dict, "a JSON object")
    for name, other in given.items():
        _subschema(at, word, other)
        if name in left.get("required", []):
            left = _and(left, other)
        elif not always(other) and not _absent(schema, name):
            raise refuse(at, word)
    return left


def _absent(schema: Json, name: str) -> bool:
    """Whether no object that fits has a property of this name."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return never(properties[name])
    return not schema.get("patternProperties") and never(schema.get("additionalProperties", True))


def _property_names(at: str, schema: Json) -> Json:
    names, left = schema["propertyNames"], _without(schema, "propertyNames")
    _subschema(at, "propertyNames", names)
    if never(names) or "string" not in types_of(names):
        return _bound(at, left, "maxProperties", 0)
    if always(names):
        return left
    relevant = {key for key in names if key in APPLICATORS or "string" in ABOUT.get(key, ())} | {"enum", "const"}
    if not names.keys() & relevant:
        return left
    listed = literals(names)
    if listed is None or names.keys() & relevant - {"enum", "const"} or left.get("patternProperties"):
        raise refuse(at, "propertyNames", "but for a list of names, or what allows every name")
    properties, others = left.get("properties", {}), left.get("additionalProperties", True)
    _needs(at, "properties", properties, dict, "a JSON object")
    allowed = [name for name in listed if isinstance(name, str)]
    ordered = [*(name for name in properties if name in allowed), *allowed]
    return left | {
        "properties": {name: properties.get(name, others) for name in ordered},
        "additionalProperties": False,
    }


def _unique_items(at: str, schema: Json) -> Json:
    unique, left = schema["uniqueItems"], _without(schema, "uniqueItems")
    _needs(at, "uniqueItems", unique, bool, "true or false")
    most = schema.get("maxItems")
    if not unique or (isinstance(most, int | float) and most <= 1):
        return left
    raise refuse(at, "uniqueItems")


def _contains(at: str, schema: Json) -> Json:
    left = _without(schema, "contains", "minContains", "maxContains")
    if "contains" not in schema:
        return left
    wanted, least, most = schema["contains"], schema.get("minContains", 1), schema.get("maxContains")
    _subschema(at, "contains", wanted)
    _needs(at, "minContains", least, (int, float), "a number")
    _needs(at, "maxContains", most, (int, float, type(None)), "a number")
    if least <= 0 and most is None:
        return left
    if not always(wanted):
        raise refuse(at, "contains")
    left = _bound(at, left, "minItems", least)
    return left if most is None else _bound(at, left, "maxItems", most)


def _unevaluated(word: str, equivalent: str, others: tuple[str, ...]) -> Callable[[str, Json], Json]:
    """`word` is about what no keyword beside it was about: without keywords that look deeper it is `equivalent`."""

    def rule(at: str, schema: Json) -> Json:
        value, left = schema[word], _without(schema, word)
        _subschema(at, word, value)
        if always(value) or equivalent in schema:
            return left
        if schema.keys() & (APPLICATORS | set(others)):
            raise refuse(at, word, "beside " + min(schema.keys() & (APPLICATORS | set(others))))
        return left | {equivalent: value}

    return rule


def _items(at: str, schema: Json) -> Json:
    """Of draft 7: a tuple is a list under `items`, and `additionalItems` is about the rest."""
    if not isinstance(schema["items"], list):
        return schema
    if "prefixItems" in schema:
        raise GrammarError(f"{at}: items is a list, and so is prefixItems; only one may be")
    left = _without(schema, "items", "additionalItems") | (
        {"prefixItems": schema["items"]} if schema["items"] else {}
    )
    return left | ({"items": schema["additionalItems"]} if "additionalItems" in schema else {})


def _exclusive(word: str, bound: str) -> Callable[[str, Json], Json]:
    """Of draft 4: true says that the bound itself is not allowed."""

    def rule(at: str, schema: Json) -> Json:
        value = schema[word]
        if not isinstance(value, bool):
            return schema
        left = _without(schema, word)
        return _without(left, bound) | {word: left[bound]} if value and bound in left else left

    return rule


def _type(at: str, schema: Json) -> Json:
    given = schema["type"]
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name in TYPES for name in names):
        raise GrammarError(
            f"{at}: type is {given!r}; it must be one of {', '.join(sorted(TYPES))}, or a list of them"
        )
    if not names:
        raise GrammarError(f"{at}: type is an empty list, so no value fits")
    if "number" in names:
        names = [name for name in names if name != "integer"]
    names = list(dict.fromkeys(names))
    return schema | {"type": names[0] if len(names) == 1 else names}


def _listed(at: str, schema: Json) -> Json:
    """Values that are listed, as far as they have the right type."""
    listed = literals(schema)
    if "enum" in schema and not isinstance(schema["enum"], list):
        raise GrammarError(f"{at}: enum must be a list")
    if "const" in schema and "enum" in schema:
        listed = [value for value in schema["enum"] if same(value, schema["const"])]
    assert listed is not None
    rest = [value for value in listed if kind(value) in types_of(schema)]
    if not rest:
        word = "enum" if "enum" in schema else "const"
        raise GrammarError(
            f"{at}: no value of {word} satisfies the keywords beside it" if listed else f"{at}: enum is empty"
        )
    return _without(schema, "const", "enum") | ({"const": rest[0]} if len(rest) == 1 else {"enum": rest})


def _refused(word: str) -> Callable[[str, Json], Json]:
    def rule(at: str, schema: Json) -> Json:
        raise refuse(at, word)

    return rule


#: In this order: what one leaves, a later one reads.
_RULES: dict[str, Callable[[str, Json], Json]] = {
    "$dynamicRef": _refused("$dynamicRef"),
    "$recursiveRef": _refused("$recursiveRef"),
    "type": _type,
    "items": _items,
    "not": _not,
    "const": _listed,
    "enum": _listed,
    "if": _if,
    "then": _if,
    "else": _if,
    "unevaluatedProperties": _unevaluated("unevaluatedProperties", "additionalProperties", ()),
    "unevaluatedItems": _unevaluated("unevaluatedItems", "items", ("contains",)),
    "dependencies": _dependencies,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "propertyNames": _property_names,
    "uniqueItems": _unique_items,
    "contains": _contains,
    "minContains": _contains,
    "maxContains": _contains,
    "exclusiveMinimum": _exclusive("exclusiveMinimum", "minimum"),
    "exclusiveMaximum": _exclusive("exclusiveMaximum", "maximum"),
}
