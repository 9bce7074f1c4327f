"""Which schemas are served, and as what. `jsonschema` judges every value; texts are followed byte by byte."""

from __future__ import annotations

import copy
import json
import random
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator, validators

from headway.core.errors import GrammarError
from headway.text.grammar.schemas import read_schema
from schema_machine import lets_through, machine, next_bytes, valid

DIGIT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9}
BIG = 2**53 + 1


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [0, -(2**63), 2**63 - 1],
         [-(2**63) - 1, 2**63, 10**30]),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, [0, 2**64 - 1], [-1, 2**64]),
        ({"type": "integer", "exclusiveMinimum": BIG, "exclusiveMaximum": BIG + 2}, [BIG + 1], [BIG, BIG + 2]),
        ({"type": "integer", "minimum": BIG, "maximum": BIG}, [BIG], [BIG - 1, BIG + 1]),
        ({"type": "number", "minimum": BIG, "exclusiveMaximum": BIG + 1}, [BIG], [BIG - 1]),
        ({"enum": [1234567890123456789, 1234567890123456790]}, [1234567890123456789, 1234567890123456790],
         [1234567890123456788, 1234567890123456800]),
        ({"const": BIG}, [BIG], [BIG - 1]),
        ({"const": 1e20}, [10**20], [10**20 + 1]),
        ({"const": 1.0}, [1], [2]),
        ({"enum": [2**60]}, [2**60], [1152921504606847000]),
        ({"enum": [[BIG, {"a": [2 * BIG]}], "x", None]}, [[BIG, {"a": [2 * BIG]}], "x", None], [[BIG], 1]),
        ({"type": "integer", "enum": [1, BIG, 2 * BIG], "minimum": 2, "multipleOf": 2}, [2 * BIG], [1, BIG]),
        ({"type": "integer", "minimum": BIG, "maximum": BIG + 5, "multipleOf": 3}, [BIG, BIG + 3], [BIG + 1]),
        ({"type": "integer", "maximum": 1e20}, [-5, 10**20], [10**20 + 1]),
        (closed(a={"type": "integer", "minimum": BIG}, b={"type": "string"}), [{"a": BIG, "b": "x"}],
         [{"a": 1, "b": "x"}, {"a": BIG}, {"a": BIG, "b": 1}]),
        ({"type": "object", "properties": {"a": {"const": BIG}}}, [{}, {"a": BIG}, {"b": [1]}, {"a": BIG, "c": {}}],
         [{"a": BIG + 1}, {"b": 1, "a": 5}]),
        ({"type": "object", "properties": {}, "additionalProperties": {"const": BIG}}, [{}, {"q": BIG}], [{"q": 1}]),
        ({"type": "array", "items": {"anyOf": [{"const": BIG}, {"type": "null"}]}, "minItems": 1, "maxItems": 2},
         [[BIG], [None, BIG]], [[], [1], [None, None, None]]),
        ({"type": "array", "prefixItems": [{"const": BIG}, {"type": "boolean"}], "items": False},
         [[], [BIG], [BIG, True]], [[1], [BIG, 1], [BIG, True, 1]]),
        ({"type": ["integer", "string", "null"], "minimum": BIG}, [BIG, "x", None], [BIG - 1, True]),
        ({"minimum": 2**60}, [2**60, "x", [1], {"a": 1}, True], [5]),
        ({"$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}, "v": {"const": BIG}},
                          "required": ["v"], "additionalProperties": False}},
          "$ref": "#/$defs/t"}, [{"v": BIG}, {"n": {"v": BIG}, "v": BIG}], [{"v": 1}, {"n": {}, "v": BIG}]),
    ],
)  # fmt: skip
def test_integers_are_exact_whatever_their_size_and_however_they_are_written(
    schema: dict[str, Any], inside: list[Any], outside: list[Any]
) -> None:
    start = machine(schema)
    assert all(valid(schema, value) for value in inside) and not any(valid(schema, value) for value in outside)
    assert [value for value in inside if not lets_through(start, text(value))] == []
    assert [value for value in outside if lets_through(start, text(value))] == []


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"allOf": [{"type": "integer", "minimum": BIG}, {"maximum": 2 * BIG}]}, "#: allOf is not supported"),
        (closed(a={"const": BIG}) | {"maxProperties": 3}, "#: maxProperties is not supported where"),
        ({"items": {"type": "integer", "minimum": BIG, "multipleOf": 3}}, "#/items: multipleOf 3 with minimum"),
        ({"multipleOf": 2**33}, "#: multipleOf 8589934592"),
        ({"type": "number", "minimum": 0.5, "maximum": BIG}, "minimum is 0.5"),
        ({"type": "integer", "minimum": 1e400}, "#: minimum is inf"),
        ({"const": int("9" * 101)}, "#: const has more than 100 digits"),
        ({"minimum": "1"}, "#: minimum must be a number"),
        ({"minimum": True}, "#: minimum must be a number"),
        ({"allOf": [{"multipleOf": 100000}, {"multipleOf": 99999}]}, "multipleOf is 100000 at #/allOf/0, 99999 at #"),
        ({"multipleOf": 0}, "#: multipleOf is 0; it must be more than 0"),
        ({"multipleOf": -2}, "#: multipleOf is -2; it must be more than 0"),
        ({"minLength": 2**40}, "#: minLength is 1099511627776; no answer is that long"),
        ({"maxItems": 1.5}, "#: maxItems is 1.5; it must be a whole"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "#: minimum (5) is greater than maximum (4)"),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "#: no number is left with minimum 1.2"),
        ({"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7}, "#: no multiple of 7 (multipleOf) is"),
        ({"enum": [1, 2], "minimum": 3}, "#: no value of enum satisfies the keywords beside it"),
        ({"const": "a", "type": "integer"}, "#: no value of const satisfies the keywords beside it"),
        ({"enum": []}, "#: enum is empty"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_served_is_refused_by_its_keyword(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(GrammarError) as caught:
        machine(schema)
    assert says in str(caught.value)


def test_counts_beyond_any_answer_have_no_effect_and_those_of_floats_count() -> None:
    for key in ("maxLength", "maxItems", "maxProperties"):
        assert read_schema({key: 10**30}) == {}
    assert read_schema({"minLength": 0, "minItems": 0.0, "minProperties": 0}) == {}
    assert read_schema({"maxLength": 5.0}) == {"maxLength": 5}


WORDS = st.sampled_from(["a", "b", "ab", ""])
INTEGERS = st.integers(-12, 12) | st.sampled_from(
    [2**53 - 1, 2**53, BIG, BIG + 2, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 10**20, 1234567890123456789]
)
NUMBERS = INTEGERS | st.integers(-12, 12).map(float)
BOUND_KEYS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LITERALS = st.recursive(
    NUMBERS | st.none() | st.booleans() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def measured(draw: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "integer", "number", ["integer", "null"]]))}
    schema |= {key: draw(NUMBERS) for key in BOUND_KEYS if draw(st.integers(0, 3)) == 0}
    return schema | (
        {"multipleOf": draw(st.sampled_from([1, 2, 3, 0.5, 2.0]))} if draw(st.integers(0, 4)) == 0 else {}
    )


LEAVES = st.one_of(
    measured(),
    st.fixed_dictionaries({"enum": st.lists(LITERALS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": LITERALS}),
    st.sampled_from(
        [True, {"type": "string", "maxLength": 1}, {"type": "boolean"}, {"type": "string", "pattern": "^a"}]
    ),
)


def nested(inner: Any) -> Any:
    patterns = st.dictionaries(st.sampled_from(["^a$", "^a", "b", "^(a|b)$", "^.*$"]), inner, max_size=1)
    counts = st.integers(0, 3) | st.integers(0, 3).map(float)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(WORDS, inner, max_size=3)},
            optional={"required": st.lists(WORDS, max_size=2), "additionalProperties": st.just(False) | inner,
                      "patternProperties": patterns, "uniqueItems": st.just(True)},
        ),
        st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={"items": st.just(False) | inner, "prefixItems": st.lists(inner, min_size=1, max_size=2),
                      "minItems": counts, "maxItems": counts, "uniqueItems": st.just(False)},
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    )  # fmt: skip


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=5)


def whole(value: Any) -> Any:
    """As Headway writes numbers: without a point where there need be none."""
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def mentioned(schema: Any) -> list[Any]:
    """Values on the edges of what a schema says."""
    found: list[Any] = []
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            found += [int(part[key]) + step for key in BOUND_KEYS if key in part for step in (-1, 0, 1)]
            found += part.get("enum", []) + [part[key] for key in ("const",) if key in part]
            left += part.values()
        elif isinstance(part, list):
            left += part
    return found


def instance(schema: Any, chance: random.Random, pool: list[Any]) -> Any:
    """A value that may well fit, properties in the order in which the schema names them."""
    if isinstance(schema, bool) or chance.random() < 0.08:
        return chance.choice(pool)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return instance(chance.choice(schema[key]), chance, pool)
    if "enum" in schema or "const" in schema:
        return chance.choice(schema.get("enum") or [schema["const"]])
    if schema["type"] == "array":
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        return [instance([*first[i:], rest][0], chance, pool) for i in range(chance.randint(0, 3))]
    if schema["type"] != "object":
        return chance.choice(["a", "ab", True] if schema["type"] in ("string", "boolean") else pool)
    own, required, others = schema["properties"], schema.get("required", []), schema.get("additionalProperties", True)
    names = [*own, *(name for name in required if name not in own)]
    names = [name for name in names if name in required or chance.random() < 0.5]
    more = [chance.choice(["a", "b", "ab", "zz"])] if chance.random() < 0.3 else []
    names += [name for name in more if name not in own and name not in names]
    return {name: instance(own.get(name, others), chance, pool) for name in names}


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 1 << 30))
def test_a_schema_is_refused_or_lets_through_exactly_what_fits(schema: Any, seed: int) -> None:
    """And no way into it is a dead end."""
    try:
        start = machine(schema)
    except GrammarError:
        return
    chance = random.Random(seed)
    pool = [*map(whole, mentioned(schema)), 0, 1, -3, 12, None, True, "a", "ab", "", [], {}, [1], {"a": 1}, 2.5]
    for _ in range(20):
        value = whole(instance(schema, chance, pool))
        assert lets_through(start, text(value)) is valid(schema, value), text(value)
    for _ in range(3):
        assert dead_end(start, chance) is None


def dead_end(start: Any, chance: random.Random) -> bytes | None:
    """Walks on bytes that soon end a text; where it cannot go on, though it may not end."""
    at, walked = start.deep_copy(), b""
    for _ in range(60):
        choices = next_bytes(at)
        if at.is_stopped() or (not choices and at.is_accepting()):
            return None
        if not choices:
            return walked
        short = [byte for byte in choices if chr(byte) in '"}],:{[0123456789abtfn-'] or choices
        byte = chance.choice(short)
        assert at.consume_token(byte)
        walked += bytes([byte])
    return None


# -- dead ends ---------------------------------------------------------------------------------------------------


SCORE = {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (closed(score=SCORE) | {"patternProperties": {"^score$": {"type": "integer"}}}, [{"score": 5}],
         [{"score": 3}, {}]),
        (closed(score=SCORE) | {"patternProperties": {"^sc": {"maximum": 10}}}, [{"score": 5}, {"score": 5, "sc": 1}],
         [{"score": 15}, {"score": 5, "sc": 11}]),
        (closed(a=DIGIT, b=DIGIT) | {"patternProperties": {"^(a|b)$": {"minimum": 5}}}, [{"a": 5, "b": 9}],
         [{"a": 1, "b": 9}, {"a": 5, "b": 5, "c": 1}]),
        ({"type": "object", "properties": {"a": DIGIT}, "patternProperties": {"^.*$": {"minimum": 5}}},
         [{}, {"a": 5}, {"b": 6}], [{"a": 1}, {"b": 1}]),
        ({"type": "object", "patternProperties": {"": False}}, [{}], [{"a": 1}, {"": 1}]),
        ({"type": "object", "patternProperties": {"^a": False}, "additionalProperties": DIGIT}, [{}, {"b": 1}],
         [{"a": 1}, {"b": "x"}]),
        ({"type": "object", "properties": {"a": False, "b": DIGIT}, "additionalProperties": False}, [{}, {"b": 1}],
         [{"a": 1}]),
        ({"type": "array", "items": False}, [[]], [[1]]),
        ({"type": "array", "items": {"allOf": [{"type": "string"}, {"type": "null"}]}}, [[]], [["a"]]),
    ],
)  # fmt: skip
def test_no_comma_leads_to_a_name_or_a_value_that_nothing_can_be(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    start = machine(schema)
    assert all(valid(schema, value) for value in good) and not any(valid(schema, value) for value in bad)
    assert [value for value in good if not lets_through(start, text(value))] == []
    assert [value for value in bad if lets_through(start, text(value))] == []
    chance = random.Random(1)
    assert [found for _ in range(40) if (found := dead_end(start, chance)) is not None] == []


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "object", "required": ["b"], "additionalProperties": False}, "'b' is unsatisfiable"),
        (closed(a={"type": "string", "pattern": "^a$", "minLength": 2}), "'a' is unsatisfiable"),
        (closed(a={"type": "string", "format": "date", "pattern": "^x"}), "'a' is unsatisfiable"),
        (closed(a={"allOf": [{"type": "string"}, {"type": "integer"}]}), "'a' is unsatisfiable"),
        (closed(a={"type": "array", "minItems": 2, "maxItems": 1}), "'a' is unsatisfiable"),
        (closed(a={"type": "array", "items": False, "minItems": 1}), "'a' is unsatisfiable"),
        (closed(a={"type": "array", "prefixItems": [False], "minItems": 1}), "'a' is unsatisfiable"),
        (closed(a=DIGIT) | {"minProperties": 2}, "minProperties"),
        ({"allOf": [closed(a=DIGIT), {"required": ["b"]}]}, "'b' is unsatisfiable"),
        (closed(a={"not": {}}), "'a' is unsatisfiable"),
        ({"patternProperties": {"(?=a)": DIGIT}, "properties": {"a": DIGIT}}, "patternProperties"),
        ({"patternProperties": {"a": DIGIT, "b": True}}, "patternProperties"),
    ],
)
def test_what_no_value_can_fit_is_refused_before_the_first_token(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        machine(schema)


# -- keywords ----------------------------------------------------------------------------------------------------

#: Each has a keyword that changes nothing where it stands.
WITHOUT_EFFECT: dict[str, Any] = {
    "propertyNames string": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": DIGIT},
    "propertyNames true": {"type": "object", "propertyNames": True, "additionalProperties": DIGIT},
    "uniqueItems false": {"type": "array", "items": DIGIT, "maxItems": 2, "uniqueItems": False},
    "uniqueItems of one": {"type": "array", "items": DIGIT, "maxItems": 1, "uniqueItems": True},
    "uniqueItems of text": {"type": "string", "maxLength": 2, "uniqueItems": True},
    "endsWith of zod": {"type": "string", "format": "ends_with", "pattern": "^[a-y]*z$"},
    "format of Pydantic": {"type": "string", "format": "binary", "maxLength": 2},
    "format of the dialect": {"type": "string", "format": "iri-reference", "maxLength": 2},
    "format of a number": {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255},
    "unused $defs": {"$defs": {"U": {"not": {"minimum": 3}}, "V": 5}, **DIGIT},
    "annotations": {**DIGIT, "enumDescriptions": ["x"], "$comment": "", "examples": [1], "readOnly": True,
                    "deprecated": False, "nullable": True, "x-order": 1, "discriminator": {"propertyName": "a"}},
    "contentMediaType": {"type": "string", "contentMediaType": "text/html", "contentSchema": {}, "maxLength": 2},
    "a slip of the pen": {"type": "integer", "minimum": 0, "maximum": 9, "minimun": 5},
    "dependentRequired": {"type": "object", "properties": {"a": DIGIT}, "dependentRequired": {}},
    "dependentRequired of what is there": closed(a=DIGIT, b=DIGIT) | {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "properties": {"a": DIGIT}, "dependentSchemas": {"a": {}, "b": True}},
    "minItems 0": {"type": "array", "items": DIGIT, "minItems": 0},
    "not false": {**DIGIT, "not": False},
    "not not": {**DIGIT, "not": {"not": {}}},
    "not another type": {"type": "string", "maxLength": 1, "not": {"type": "null"}},
    "if alone": {**DIGIT, "if": {"minimum": 3}},
    "then alone": {**DIGIT, "then": {"minimum": 3}, "else": False},
    "if with empty branches": {**DIGIT, "if": {"minimum": 3}, "then": {}, "else": True},
    "minContains alone": {"type": "array", "items": DIGIT, "minContains": 3, "maxContains": 1},
    "contains none": {"type": "array", "items": DIGIT, "contains": {"const": 1}, "minContains": 0},
    "unevaluatedProperties true": {"type": "object", "properties": {"a": DIGIT}, "unevaluatedProperties": True},
    "unevaluatedProperties beside others": closed(a=DIGIT) | {"unevaluatedProperties": False},
    "unevaluatedItems beside items": {"type": "array", "items": DIGIT, "unevaluatedItems": False},
    "additionalItems without a tuple": {"type": "array", "items": DIGIT, "additionalItems": False},
    "required nothing": {"type": "object", "properties": {"a": DIGIT}, "required": []},
    "$anchor and $id": {"$id": "https://headway.example/a", "$anchor": "top", "$vocabulary": {}, **DIGIT},
    "$dynamicAnchor": {"$dynamicAnchor": "node", **DIGIT},
}  # fmt: skip
#: Each has a keyword that is said in other words.
IN_OTHER_WORDS: dict[str, Any] = {
    "draft 7 tuple": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [DIGIT, DIGIT],
                      "additionalItems": False},
    "draft 7 open tuple": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
                           "items": [DIGIT, {"type": "null"}], "additionalItems": DIGIT},
    "draft 7 dependencies": {"$schema": "http://json-schema.org/draft-07/schema#", **closed(a=DIGIT, b=DIGIT),
                             "dependencies": {"a": ["b"], "b": {"required": ["a"]}}},
    "draft 4 bounds": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 0,
                       "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
    "never": {"type": "object", "properties": {"a": {"not": {}}, "b": DIGIT}},
    "not a type": {"not": {"type": ["object", "array", "string"]}},
    "not of a list": {"enum": [1, 2, 3], "not": {"enum": [2]}},
    "if true": {"type": "integer", "if": True, "then": {"minimum": 3}, "else": False},
    "if false": {"type": "integer", "if": False, "then": False, "else": {"maximum": 3}},
    "dependentRequired of a required": {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a"],
                                        "dependentRequired": {"a": ["b"]}},
    "record of zod": {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                      "additionalProperties": DIGIT, "required": ["a"]},
    "no names": {"type": "object", "propertyNames": False},
    "contains anything": {"type": "array", "items": DIGIT, "contains": True, "minContains": 2, "maxContains": 3},
    "unevaluatedProperties alone": {"type": "object", "properties": {"a": DIGIT}, "unevaluatedProperties": False},
    "unevaluatedItems alone": {"type": "array", "prefixItems": [DIGIT], "unevaluatedItems": False},
    "types twice": {"type": ["integer", "number", "integer"], "minimum": 3},
    "oneOf of numbers": {"oneOf": [{"const": 1}, {"const": 2}, {"type": "integer", "minimum": 5}]},
    "oneOf with references": {"$defs": {"A": closed(k={"const": "a"}), "B": closed(k={"const": "b"}, v=DIGIT)},
                              "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
    "a reference anywhere": {"components": {"schemas": {"D": DIGIT}}, **closed(a={"$ref": "#/components/schemas/D"})},
    "a reference to an anchor": {"$defs": {"d": {"$anchor": "digit", **DIGIT}}, **closed(a={"$ref": "#digit"})},
    "a reference to the root": {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    "a reference by the $id": {"$id": "https://h.example/s", "$defs": {"d": DIGIT},
                               **closed(a={"$ref": "https://h.example/s#/$defs/d"})},
    "an escaped reference": {"$defs": {"a b/c%": DIGIT}, **closed(a={"$ref": "#/$defs/a%20b~1c%25"})},
}  # fmt: skip
VALUES = [
    None, True, False, 0, 1, 2, 3, 4, 5, 9, 10, 255, -1, 0.5, "", "a", "ab", "az", "z", [], [0], [1, 2], [1, None],
    [1, None, 3], [1, 2, 3], [1, 2, 3, 4], [True], {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"c": 1},
    {"a": {}}, {"a": {"a": {}}}, {"k": "a"}, {"k": "b", "v": 1}, {"k": "b"},
]  # fmt: skip


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, *IN_OTHER_WORDS])
def test_a_keyword_without_effect_or_with_other_words_for_it_is_served(name: str) -> None:
    schema = (WITHOUT_EFFECT | IN_OTHER_WORDS)[name]
    given = copy.deepcopy(schema)
    start = machine(schema)
    assert schema == given  # nobody's schema is changed
    if name == "unused $defs":  # the judge looks at those too
        schema = DIGIT
    judge = validators.validator_for(schema, default=Draft202012Validator)(schema)
    for value in VALUES:
        assert lets_through(start, text(value)) is judge.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "array", "items": DIGIT, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"type": "array", "contains": {"const": 1}, "minContains": 0, "maxContains": 2}, "contains"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies"),
        ({"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas"),
        ({"type": "integer", "not": {"minimum": 3}}, "not"),
        ({"type": "number", "not": {"type": "integer"}}, "not"),
        ({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}, "if"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}, "unevaluatedProperties": False},
         "unevaluatedProperties"),
        ({"allOf": [{"prefixItems": [DIGIT]}], "unevaluatedItems": False}, "unevaluatedItems"),
        ({"$dynamicRef": "#node"}, "$dynamicRef"),
        ({"$recursiveRef": "#"}, "$recursiveRef"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [{"minimum": 3}, {"maximum": 5}]}, "oneOf"),
    ],
)  # fmt: skip
def test_a_keyword_that_restricts_and_has_no_other_words_is_refused_by_name(schema: Any, keyword: str) -> None:
    with pytest.raises(GrammarError) as caught:
        machine(schema)
    assert keyword in str(caught.value)
    for advice in ("lenient", "coerce", "option", "x-"):
        assert advice not in str(caught.value)


def test_every_pair_of_keywords_without_effect_has_none_together() -> None:
    """In one object's properties, so that each stands beside, below and above others."""
    for one, other in product(list(WITHOUT_EFFECT)[::3], list(IN_OTHER_WORDS)[::3]):
        if "$" in json.dumps([WITHOUT_EFFECT[one], IN_OTHER_WORDS[other]]):
            continue  # references are to the root
        schema = closed(p=WITHOUT_EFFECT[one], q=IN_OTHER_WORDS[other])
        start = machine(schema)
        for value in VALUES[::4]:
            pair = {"p": value, "q": VALUES[-1 - VALUES.index(value)]}
            assert lets_through(start, text(pair)) is valid(schema, pair), (one, other, pair)


def test_the_judge_knows_the_drafts() -> None:
    assert validators.validator_for(IN_OTHER_WORDS["draft 7 tuple"]) is Draft7Validator
