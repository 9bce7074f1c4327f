"""JSON that fits a schema, in Lark's notation, where the schema has numbers that the grammar library would round.

The library turns a schema into a grammar by itself (`%json`), with numbers of 53 bits. What lies on the way from the
root of a schema to a number of more is written out here, and `%json` stands for the rest. Written out are objects,
arrays, lists of values, `anyOf` and `$ref`; what combines schemas otherwise on that way is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from headway.core.errors import GrammarError
from headway.text.grammar.intervals import integers, numbers
from headway.text.grammar.schemafacts import ABOUT, TYPES, literals, types_of
from headway.text.grammar.schemanumbers import beyond, whole
from headway.text.grammar.spacing import Spacing

Json = dict[str, Any]
#: A property's name that is not written otherwise (`\u0061` for `a`), so that names can be told apart.
_NAME = r'/"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"/'
#: Each property and item is a rule; the compiler's own bounds are on time and memory.
_MOST_RULES = 20_000


def composed(schema: Any, spacing: Spacing) -> str:
    """The whole grammar. Raises GrammarError."""
    written = ExactJson(schema, spacing)
    start = written.start()
    return spacing.heading + "\n".join([f"start: {start}", *written.rules]) + "\n"


def is_beyond(schema: Any) -> bool:
    """Whether a schema that was read (see `schemas.py`) has a number that the library would round."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
        elif beyond(value):
            return True
    return False


@dataclass
class ExactJson:
    """Rules for JSON that fits one schema, read by `read_schema`. `prefix` begins their names."""

    schema: Any
    spacing: Spacing
    prefix: str = "json"
    rules: list[str] = field(default_factory=list)
    _references: dict[str, str] = field(default_factory=dict)

    def start(self) -> str:
        """The rule of the whole; all of them are in `rules` then. Raises GrammarError."""
        own = self.schema
        if isinstance(own, dict):
            own = {key: value for key, value in own.items() if key != "$defs"}
        return self._rule(self._value("#", own))

    @property
    def _definitions(self) -> Json:
        return dict(self.schema.get("$defs", {})) if isinstance(self.schema, dict) else {}

    def _rule(self, body: str) -> str:
        if len(self.rules) >= _MOST_RULES:
            raise GrammarError(f"it needs more than {_MOST_RULES} rules, which is the limit")
        name = f"{self.prefix}_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _value(self, at: str, schema: Any) -> str:
        if not self._needed(schema, set()):
            return self._rule(f"%json {json.dumps(self._alone(schema))}")
        own: Json = schema
        if own.keys() == {"$ref"}:
            return self._reference(own["$ref"])
        if (listed := literals(own)) is not None:
            self._only(at, own, "const", "enum", "type")
            return f"({' | '.join(map(self._literal, listed))})"
        if "anyOf" in own:
            self._only(at, own, "anyOf")
            return f"({' | '.join(self._value(f'{at}/anyOf/{i}', one) for i, one in enumerate(own['anyOf']))})"
        self._only(at, own, "type", *ABOUT)
        return self._by_type(at, own)

    def _only(self, at: str, schema: Json, *known: str) -> None:
        for key in schema:
            if key not in known:
                raise GrammarError(f"{at}: {key} is not supported where a number inside or beside it is beyond 2^53")

    def _by_type(self, at: str, schema: Json) -> str:
        """Alternatives by what a value may be; `%json` for types without such a number."""
        kinds, parts = types_of(schema), []
        for kinds_of_one, write in (
            (frozenset({"number", "integer"}), self._number),
            (frozenset({"array"}), self._array),
            (frozenset({"object"}), self._object),
        ):
            about = {key: value for key, value in schema.items() if ABOUT.get(key) == kinds_of_one}
            if not kinds & kinds_of_one:
                continue
            if self._needed(about, set()):
                parts.append(write(at, about | {"type": sorted(kinds & kinds_of_one)}))
                kinds -= kinds_of_one
        plain = sorted(kinds - ({"integer"} if "number" in kinds else set()))
        if plain:
            left = {key: value for key, value in schema.items() if ABOUT.get(key, TYPES) & kinds}
            parts.append(self._rule(f"%json {json.dumps(self._alone(left | {'type': plain}))}"))
        return f"({' | '.join(parts)})"

    def _needed(self, value: Any, seen: set[str]) -> bool:
        """Whether a number beyond the library is in it, or in what it refers to."""
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                if self._needed(self._target(reference), seen):
                    return True
            return any(self._needed(inner, seen) for inner in value.values())
        if isinstance(value, list):
            return any(self._needed(inner, seen) for inner in value)
        return beyond(value)

    def _target(self, reference: str) -> Any:
        return self._definitions.get(reference.removeprefix("#/$defs/"))

    def _alone(self, schema: Any) -> Json:
        """A part of the schema as a document of its own, with the definitions that it reaches."""
        found: Json = {}
        left = [schema]
        while left:
            value = left.pop()
            if isinstance(value, list):
                left += value
            elif isinstance(value, dict):
                name = str(value.get("$ref", "")).removeprefix("#/$defs/")
                if name in self._definitions and name not in found:
                    found[name] = self._definitions[name]
                    left.append(found[name])
                left += value.values()
        own = schema if isinstance(schema, dict) else {"allOf": [schema]}
        return own | ({"$defs": found} if found else {}) | {"x-guidance": self.spacing.options}

    def _reference(self, reference: str) -> str:
        if reference not in self._references:
            self._references[reference] = name = self._rule("")
            place = len(self.rules) - 1
            self.rules[place] = f"{name}: {self._value(reference, self._target(reference))}"
        return self._references[reference]

    # -- values ----------------------------------------------------------------------------------------------

    def _literal(self, value: Any) -> str:
        """One value as it is written, with space where it may stand."""
        if isinstance(value, list):
            return self._sequence("[", [self._literal(inner) for inner in value], "]")
        if isinstance(value, dict):
            pairs = [
                f"{_text(json.dumps(k, ensure_ascii=False))} {self._colon} {self._literal(v)}"
                for k, v in value.items()
            ]
            return self._sequence("{", pairs, "}")
        return _text(json.dumps(value, ensure_ascii=False))

    def _sequence(self, opening: str, parts: Sequence[str], closing: str) -> str:
        return f"({_text(opening)} {f' {self._comma} '.join(parts)} {_text(closing)})"

    @property
    def _comma(self) -> str:
        return _text(self.spacing.comma)

    @property
    def _colon(self) -> str:
        return _text(self.spacing.colon)

    def _number(self, at: str, schema: Json) -> str:
        self._only(at, schema, "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        above, below = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
        low = self._bound(at, schema, "exclusiveMinimum" if above else "minimum")
        high = self._bound(at, schema, "exclusiveMaximum" if below else "maximum")
        if "number" not in types_of(schema):
            parts = integers(low, high)
        else:
            parts = numbers(low, high, above=above, below=below)
        if not parts:
            raise GrammarError(f"{at}: minimum and maximum leave no number")
        return f"/{'|'.join(parts)}/"

    def _bound(self, at: str, schema: Json, key: str) -> int | None:
        if key not in schema:
            return None
        bound = whole(Decimal(repr(schema[key])) if isinstance(schema[key], float) else Decimal(schema[key]))
        if bound is None:
            raise GrammarError(f"{at}: {key} is {schema[key]}, beside or of more digits than 53 bits have")
        return bound

    def _array(self, at: str, schema: Json) -> str:
        self._only(at, schema, "type", "items", "prefixItems", "minItems", "maxItems")
        first = [self._value(f"{at}/prefixItems/{i}", one) for i, one in enumerate(schema.get("prefixItems", []))]
        rest = schema.get("items", True)
        item = None if rest is False else self._value(f"{at}/items", rest)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if item is None:
            most = len(first) if most is None else min(most, len(first))
        if most is not None:
            first = first[:most]
            if least > most:
                raise GrammarError(f"{at}: minItems is {least}, but at most {most} items are possible")
        body = self._items(first, item, least, most)
        return f"({_text('[')} {body} {_text(']')})"

    def _items(self, first: Sequence[str], item: str | None, least: int, most: int | None) -> str:
        """What an array holds: the items with schemas of their own, then the others."""
        if not first:
            if item is None or most == 0:
                return ""
            further = _times(f"{self._comma} {item}", max(least - 1, 0), None if most is None else most - 1)
            return f"({item} {further}){'' if least else '?'}"
        count = len(first)
        after = "" if item is None else _times(
            f"{self._comma} {item}", max(least - count, 0), None if most is None else most - count
        )  # fmt: skip
        for place in range(count - 1, 0, -1):
            body = f"{self._comma} {first[place]} {after}"
            after = self._rule(body if place < least else f"({body})?")
        return f"({first[0]} {after}){'' if least else '?'}"

    def _object(self, at: str, schema: Json) -> str:
        self._only(at, schema, "type", "properties", "required", "additionalProperties")
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        names = [*properties, *(name for name in required if name not in properties)]
        members = []
        for name in names:
            inner = properties.get(name, others)
            if inner is False:
                if name in required:
                    raise GrammarError(f"{at}: the required property {name!r} has no allowed value")
                continue
            value = self._value(f"{at}/properties/{name}", inner)
            members.append((f"{_quoted(name)} {self._colon} {value}", name in required))
        other = None
        if others is not False:
            taken = f" & ~({' | '.join(map(_quoted, names))})" if names else ""
            terminal = self._rule("").upper()
            self.rules[-1] = f"{terminal}: {_NAME}{taken}"
            other = f"{terminal} {self._colon} {self._value(f'{at}/additionalProperties', others)}"
        return f"({_text('{')} {self._members(members, other)} {_text('}')})"

    def _members(self, members: Sequence[tuple[str, bool]], other: str | None) -> str:
        """Properties in their order, then any others. `first` is what may stand where none is before, `after` where
        one is."""
        after = "" if other is None else self._rule(f"({self._comma} {other})*")
        first = "" if other is None else self._rule(f"({other} {after})?")
        for member, required in reversed(members):
            first = self._rule(f"{member} {after}" if required else f"({member} {after}) | {first or _text('')}")
            after = self._rule(
                f"{self._comma} {member} {after}" if required else f"({self._comma} {member})? {after}"
            )
        return first


def _times(body: str, least: int, most: int | None) -> str:
    if most is None:
        return f"({body})*" if not least else f"({body}){{{least},}}"
    return f"({body}){{{least},{most}}}" if most else ""


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _quoted(name: str) -> str:
    """A property's name in its quotes."""
    return _text(json.dumps(name, ensure_ascii=False))
