"""Which JSON schemas an answer can be held to: read into the words of the grammar library, or refused by name.

The dialect is draft 2020-12, with what older drafts write differently. A schema restricts by the keywords that
`schemafacts.py` lists; every other one is an annotation and has no effect, as the dialect says, and so is a `format`
that is not among `FORMATS`. Departures:

- properties come in the order in which the schema names them, then those that `required` adds, then others
- keys that only `additionalProperties` or `patternProperties` allow may be repeated
- `oneOf` must be made of alternatives that plainly exclude each other, `patternProperties` of patterns that do
- `minProperties` and `maxProperties` count, but for 0 and 1, only where every named property is required
- `pattern` has no look-around and no back references; the formats in `FORMATS` are enforced
- what stands beside a `$ref` applies too, in every draft

`schemakeywords.py` says what else can be said in other words. Integers may have any size (see `exactjson.py`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from headway.core.errors import GrammarError
from headway.text.grammar.keynames import fits, leaves_a_key
from headway.text.grammar.schemafacts import always, disjoint
from headway.text.grammar.schemakeywords import refuse, simplified
from headway.text.grammar.schemanumbers import BOUNDS, check_divisors, count, exact, numeric, plain

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_NUMERIC = frozenset({*BOUNDS, "multipleOf"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
#: These are about the same value as what stands beside them.
_COMBINING = frozenset({"allOf", "anyOf", "$ref", "patternProperties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties"})
_SINGLE = frozenset({"items", "additionalProperties"})
#: Each level of schemas is two of JSON, and the grammar library reads 128 of those.
_DEEPEST = 50
#: A mask costs about 0.2 ms for every thousand characters of a text that is prescribed word for word.
MOST_LITERAL = 8192
#: Properties of one object that may be left out. Each is four items of the parser's row, which has 4,000.
MOST_OPTIONAL = 950
Json = dict[str, Any]


def read_schema(schema: Any) -> Any:
    """A schema of the same meaning as the grammar library reads it: no reference leads anywhere but to its `$defs`,
    and nothing without effect is left. Raises GrammarError, with the place in the schema as a JSON pointer, for what
    is not a schema or needs a keyword that is not supported. What only compiling finds out is not looked for: an
    empty intersection, a bad pattern."""
    return _Reader(schema).read()


class _Reader:
    """Reads one document. A schema that is referred to is read once, into `$defs`, whether it stands there or not."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._names: dict[int, str] = {}
        self._left: list[tuple[str, str, Any]] = []
        self._divisors: dict[float, str] = {}
        self._combines = False

    def read(self) -> Any:
        found = self._schema("#", self._root, 0)
        definitions: Json = {}
        while self._left:
            name, at, schema = self._left.pop()
            definitions[name] = self._schema(at, schema, 0)
        if self._combines:
            check_divisors(self._divisors)
        return found | {"$defs": definitions} if definitions else found

    def _schema(self, at: str, schema: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise GrammarError(f"{at}: schemas are nested more than {_DEEPEST} deep, which is the limit")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(f"{at}: a schema is a JSON object, true or false, not {_kind(schema)}")
        plain = simplified(at, schema)
        if isinstance(plain, bool):
            return plain
        read: Json = {}
        for key, value in plain.items():
            read |= self._keyword(at, plain, key, value, depth)
        if plain.keys() & _NUMERIC:
            read = numeric(at, plain, read)
        if "multipleOf" in read:
            self._divisors[read["multipleOf"]] = at
        self._combines |= bool(read.keys() & _COMBINING and (len(read) > 1 or len(read.get("allOf", [])) > 1))
        _not_too_many(at, read)
        return _without_empty_keys(_unwrapped(read))

    def _keyword(self, at: str, schema: Json, key: str, value: Any, depth: int) -> Json:
        """One keyword as it is to be read; nothing, if it has no effect."""
        if key in _LISTS:
            return self._list(at, key, value, depth)
        if key in _MAPS:
            if not isinstance(value, dict):
                raise GrammarError(f"{at}: {key} must be a JSON object, not {_kind(value)}")
            return {key: {name: self._schema(f"{at}/{key}/{_escaped(name)}", inner, depth + 1)
                          for name, inner in value.items()}}  # fmt: skip
        if key in _SINGLE:
            return {key: self._schema(f"{at}/{key}", value, depth + 1)}
        if key == "$ref":
            return {key: self._reference(at, value)}
        if key in _COUNTS:
            return count(at, key, value)
        if key in _NUMERIC or key == "type":
            return {key: value}
        return _other(at, key, value)

    def _list(self, at: str, key: str, value: Any, depth: int) -> Json:
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{at}: {key} must be a non-empty list of schemas")
        read = [self._schema(f"{at}/{key}/{i}", inner, depth + 1) for i, inner in enumerate(value)]
        if key == "allOf":
            read = [one for one in read if not always(one)]
            return {key: read} if read else {}
        if key != "oneOf":
            return {key: read}
        for i, one in enumerate(value):
            for j, other in enumerate(value[:i]):
                if not disjoint(one, other, lambda reference: self._find(at, reference)):
                    raise refuse(at, "oneOf", f"unless its alternatives exclude each other: {j} and {i} may not")
        return {"anyOf": read}

    def _reference(self, at: str, value: Any) -> str:
        target = self._find(at, value)
        if id(target) not in self._names or isinstance(target, bool):
            self._names[id(target)] = name = f"d{len(self._names)}"
            self._left.append((name, str(value), target))
        return f"#/$defs/{self._names[id(target)]}"

    def _find(self, at: str, reference: Any) -> Any:
        """What a reference points at, which may be anywhere in the document."""
        base, _, pointer = str(reference).partition("#")
        own = str(self._root.get("$id", "")).removesuffix("#") if isinstance(self._root, dict) else ""
        if not isinstance(reference, str) or base not in ("", own):
            raise GrammarError(f"{at}: $ref must point into this schema (#/$defs/…), not to {reference!r}")
        if pointer and not pointer.startswith("/"):
            found = _anchored(self._root, pointer)
        else:
            found = self._root
            for part in map(unquote, pointer.split("/")[1:]):
                found = _member(found, part.replace("~1", "/").replace("~0", "~"))
        if not isinstance(found, dict | bool):
            raise GrammarError(f"{at}: $ref points to {reference!r}, which this schema does not have")
        return found


def _member(value: Any, part: str) -> Any:
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    return value.get(part) if isinstance(value, dict) else None


def _anchored(root: Any, name: str) -> Any:
    """The first schema with this `$anchor`."""
    left = [root]
    while left:
        found = left.pop()
        if isinstance(found, dict) and found.get("$anchor") == name:
            return found
        left += found.values() if isinstance(found, dict) else found if isinstance(found, list) else []
    return None


def _other(at: str, key: str, value: Any) -> Json:
    """A keyword that holds no schemas and no numbers of its own."""
    texts = value if key == "enum" else [value]
    if key in ("enum", "const"):
        longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
        if longest > MOST_LITERAL:
            raise GrammarError(f"{at}: a string of {key} has {longest} characters; the limit is {MOST_LITERAL}")
        return {key: _numbers(at, key, value)}
    if key == "required":
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise GrammarError(f"{at}: required must be a list of names")
        return {key: list(dict.fromkeys(value))} if value else {}
    if key in ("pattern", "format") and not isinstance(value, str):
        raise GrammarError(f"{at}: {key} must be a string, not {_kind(value)}")
    return {key: value} if key == "pattern" or (key == "format" and value in FORMATS) else {}


def _numbers(at: str, key: str, value: Any) -> Any:
    """A listed value with its numbers in their plainest form."""
    if isinstance(value, dict):
        return {name: _numbers(at, key, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(at, key, inner) for inner in value]
    return (
        plain(at, key, exact(at, key, value))
        if isinstance(value, float | int) and not isinstance(value, bool)
        else value
    )


def _not_too_many(at: str, schema: Json) -> None:
    optional = len(schema.get("properties", {}).keys() - set(schema.get("required", [])))
    if optional > MOST_OPTIONAL:
        text = f"{at}: {optional} of its properties are not required; the limit is {MOST_OPTIONAL}"
        raise GrammarError(f"{text}. List some of them in required, or use several objects")


def _unwrapped(schema: Json) -> Json:
    """What an `allOf` of a single schema says, where nothing stands beside it."""
    inner = schema.get("allOf", [])
    return inner[0] if len(schema) == 1 and len(inner) == 1 and isinstance(inner[0], dict) else schema


def _without_empty_keys(schema: Json) -> Json:
    """A property's name that nothing can match is a dead end to the grammar library: it allows a comma before it.
    So a pattern of which every name is a property of its own, and `additionalProperties` where the patterns match
    every name, are left out."""
    patterns = schema.get("patternProperties")
    if not patterns:
        return schema
    properties: Json = dict(schema.get("properties", {}))
    left: Json = {}
    for pattern, inner in patterns.items():
        names = [name for name in properties if fits(pattern, name)]
        if not names or leaves_a_key({pattern: True}, names):
            left[pattern] = inner
        elif not always(inner):
            properties |= {name: {"allOf": [properties[name], inner]} for name in names}
    read = {key: value for key, value in schema.items() if key != "patternProperties"}
    read |= {"properties": properties} if properties else {}
    read |= {"patternProperties": left} if left else {}
    if read.get("additionalProperties", True) is not False and not leaves_a_key(
        dict.fromkeys(left, False), properties
    ):
        read["additionalProperties"] = False
    return read


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )
