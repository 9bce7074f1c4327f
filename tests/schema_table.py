"""Schemas of draft 2020-12 that answers are held to in tests: small enough for short answers, and varied."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def text(**more: Any) -> Schema:
    return {"type": "string", "maxLength": 8} | more


def listed(*, most: int = 3, **more: Any) -> Schema:
    return {"type": "array", "maxItems": most} | more


def closed(required: list[str] | None = None, /, **properties: Any) -> Schema:
    """An object of these properties and no others; all are required unless told otherwise."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def numbers() -> list[Schema]:
    return [
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"type": "integer", "minimum": -20, "maximum": -3},
        {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 1000},
        {"type": "integer", "minimum": 1, "maximum": 100, "multipleOf": 7},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
        {"type": "number", "minimum": 2.5, "maximum": 3.5, "multipleOf": 0.5},
        {"type": "integer", "minimum": 1000, "maximum": 1003},
        {"type": "integer", "minimum": -5, "maximum": 5},
        {"type": "integer", "format": "int32", "minimum": 1, "maximum": 20},
    ]


def texts() -> list[Schema]:
    return [
        text(),
        text(minLength=3),
        text(minLength=5, maxLength=5),
        text(maxLength=0),
        {"type": "string", "pattern": "^[a-z]{1,6}$"},
        {"type": "string", "pattern": r"^\d{3}-\d{4}$"},
        {"type": "string", "pattern": "^(cat|dog|bird)s?$"},
        {"type": "string", "pattern": "^[A-Z][a-z]{2,5} [A-Z][a-z]{2,5}$"},
        {"type": "string", "pattern": "ab", "maxLength": 6},
        {"type": "string", "pattern": "^x", "maxLength": 6},
        {"type": "string", "pattern": "^[äöü]{1,3}$"},
        {"type": "string", "pattern": "^[a-f0-9]{4}$", "minLength": 4},
        *({"type": "string", "format": name} for name in ("date", "time", "date-time", "ipv4", "uuid")),
        {"type": "string", "format": "duration", "maxLength": 10},
        {"type": "string", "format": "email", "pattern": r"^[a-z]{1,5}@[a-z]{1,5}\.org$"},
        {"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]{4}$"},
    ]


def choices() -> list[Schema]:
    return [
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["red", "green", "blue"]},
        {"enum": [1, 2, 3]},
        {"enum": ["a", 1, None, True, [1, 2], {"b": 2.5}]},
        {"const": "the one"},
        {"const": 42},
        {"const": {"a": [1, {"b": None}]}},
        {"const": 'quoted "text"\nand a line'},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        {"type": ["boolean", "null"]},
        {"type": "string", "enum": ["ä", "ß", "世界"]},
        {"enum": ["in", "input", "inputs"]},
        {"type": "integer", "enum": [1, 2, 300], "minimum": 2},
    ]


def arrays() -> list[Schema]:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    return [
        listed(items=digit),
        listed(items=digit, minItems=2),
        listed(most=0),
        listed(items=text(), minItems=1, most=2),
        listed(items=listed(items=digit, most=2), most=2),
        listed(items={"enum": ["x", "y"]}, minItems=3),
        {"type": "array", "prefixItems": [digit, text()], "items": False, "minItems": 2},
        {"type": "array", "prefixItems": [digit, {"type": "boolean"}], "items": False},
        listed(prefixItems=[{"const": "head"}], items=digit, minItems=2),
        listed(items=closed(x=digit), most=2),
        listed(items={"anyOf": [digit, {"type": "null"}]}),
        listed(items={"type": "boolean"}, minItems=3),
    ]


def objects() -> list[Schema]:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    return [
        closed(name=text(), age={"type": "integer", "minimum": 0, "maximum": 120}),
        closed([], a=digit, b=digit),
        closed(["b"], a=digit, b=digit, c=digit),
        closed(a=closed(b=closed(c=digit))),
        closed(points=listed(items=closed(x=digit, y=digit), most=2)),
        closed(**{"a key": digit, 'quote"': digit, "ü": digit}),
        {"type": "object", "properties": {"a": digit}, "required": ["a"], "additionalProperties": digit,
         "maxProperties": 2},
        {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
        {"type": "object", "patternProperties": {"^k[0-9]$": digit}, "additionalProperties": False,
         "minProperties": 1, "maxProperties": 2},
        closed(kind={"const": "dog"}, name=text()),
        closed(a={"type": ["integer", "null"], "minimum": 0, "maximum": 9}, b={"type": "boolean"}),
        closed(when={"type": "string", "format": "date"}, tags=listed(items={"enum": ["new", "old"]})),
        {"type": "object", "maxProperties": 0},
        {"type": "object", "required": ["z"], "properties": {"z": True, "a": False}, "additionalProperties": False}
        | {"properties": {"z": digit, "a": False}},
        closed(**{f"k{i}": digit for i in range(6)}),
        closed([], only=text()),
    ]  # fmt: skip


def combined() -> list[Schema]:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    cat, dog = closed(kind={"const": "cat"}, lives=digit), closed(kind={"const": "dog"}, tricks=digit)
    return [
        {"anyOf": [digit, {"type": "boolean"}]},
        {"anyOf": [cat, dog]},
        {"oneOf": [cat, dog]},
        {"oneOf": [{"type": "boolean"}, digit]},
        {"oneOf": [{"const": "a"}, {"const": "b"}]},
        {"oneOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
        {"allOf": [{"type": "string", "maxLength": 6}, {"minLength": 2}]},
        {"allOf": [{"type": "object", "properties": {"a": digit}, "required": ["a"]},
                   {"type": "object", "properties": {"b": digit}, "required": ["b"]}],
         "additionalProperties": digit, "maxProperties": 2},
        {"type": "integer", "minimum": 0, "anyOf": [{"maximum": 3}, {"minimum": 10, "maximum": 12}]},
        {"anyOf": [{"type": "null"}, listed(items=digit)]},
        closed(value={"anyOf": [text(), digit, {"type": "null"}]}),
        closed(pet={"oneOf": [cat, dog]}),
        {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]},
    ]  # fmt: skip


def referring() -> list[Schema]:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    tree = closed(["value"], value=digit, next={"$ref": "#/$defs/tree"})
    return [
        {"$defs": {"digit": digit}, "$ref": "#/$defs/digit"},
        {"$defs": {"digit": digit}, **closed(a={"$ref": "#/$defs/digit"}, b={"$ref": "#/$defs/digit"})},
        {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"},
        {"definitions": {"name": text()}, **listed(items={"$ref": "#/definitions/name"}, most=2)},
        {"$defs": {"n": {"type": "integer", "minimum": 0}}, **closed(a={"$ref": "#/$defs/n", "maximum": 5})},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "boolean"}}, "$ref": "#/$defs/a"},
        {"$defs": {"pair": {"type": "array", "prefixItems": [digit, digit], "items": False, "minItems": 2}},
         **listed(items={"$ref": "#/$defs/pair"}, minItems=1, most=2)},
        {"$defs": {"a/b": digit}, "$ref": "#/$defs/a~1b"},
        {"$defs": {"item": {"anyOf": [digit, {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}]}},
         "$ref": "#/$defs/item"},
        {"properties": {"x": digit}, **closed(x=digit, y={"$ref": "#/properties/x"})},
    ]  # fmt: skip


def annotated() -> list[Schema]:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    return [
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://headway.example/a", **digit},
        digit | {"title": "Digit", "description": "one of ten", "default": 3, "examples": [1, 2], "$comment": "!"},
        closed(a=digit | {"deprecated": True}, b=digit | {"readOnly": True}) | {"x-order": ["a", "b"]},
        closed(title=text(), description=text(maxLength=4)),
        closed(type={"const": "type"}, properties=digit, required={"type": "boolean"}),
    ]


def schemas() -> list[Schema]:
    """All of them: one hundred."""
    kinds = (numbers, texts, choices, arrays, objects, combined, referring, annotated)
    return [schema for kind in kinds for schema in kind()]
