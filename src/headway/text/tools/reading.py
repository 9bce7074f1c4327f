"""What a call looks like, in readings that get one character at a time.

A reading is a generator: it is sent a character at each `yield`, returns what it found, and raises `Mismatch` at the
first character that cannot belong to it. Whitespace between words is passed over: models take liberties with it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import NamedTuple, TypeVar

from headway.text.grammar.jsontext import JsonObject
from headway.text.tools.format import ToolFormat, bare

#: Members of a call's object that carry nothing: some templates and models write them.
_EXTRA_KEYS = ("id", "type")
T = TypeVar("T")
Reading = Generator[None, str, T]


class Mismatch(Exception):
    """The text is not what was looked for."""


class Head(NamedTuple):
    """The beginning of a call. `arguments` is an opening brace, the rest is to come; or all of them, if they stand
    before the name, and then the call's object is closed."""

    name: str
    arguments: str


def opening(format: ToolFormat, names: Collection[str]) -> Reading[Head]:
    """The beginning of the first call, of one of the functions `names`."""
    yield from _one_of((bare(format.before),))
    return (yield from call(format, names))


def call(format: ToolFormat, names: Collection[str]) -> Reading[Head]:
    """The beginning of a call without what encloses it."""
    if format.keys is not None:
        return (yield from _object(names, *format.keys))
    character = yield from _after_space()
    name = ""
    while any(known.startswith(name + character) for known in names):
        name += character
        character = yield
    if name not in names:
        raise Mismatch
    yield from _one_of((bare(format.middle),), character)
    return Head(name, (yield from _one_of(("{",))))


def ending(format: ToolFormat, *, more: bool) -> Reading[str]:
    """What stands between a call and the next one (if there may be `more`), or ends all calls."""
    options = [bare(format.after)]
    if more and not format.each_enclosed:
        options.append(bare(format.between or ""))
    return (yield from _one_of(tuple(filter(None, options)) or ("",)))


def _object(names: Collection[str], name_key: str, arguments_key: str) -> Reading[Head]:
    yield from _one_of(("{",))
    left = [name_key, arguments_key, *_EXTRA_KEYS]
    name = arguments = ""
    while True:
        yield from _one_of(('"',))
        left.remove(key := (yield from _rest_of_string(left)))
        yield from _one_of((":",))
        if key == name_key:
            yield from _one_of(('"',))
            name = yield from _rest_of_string(names)
        elif key != arguments_key:
            yield from _any_string()
        elif name:
            return Head(name, (yield from _one_of(("{",))))
        else:
            arguments = yield from _whole_object()
        if (yield from _one_of((",", "}"))) == "}":
            break
    if not name or not arguments:
        raise Mismatch
    return Head(name, arguments)


def end_of_object() -> Reading[str]:
    """What may stand between a call's arguments and the end of its object."""
    left = list(_EXTRA_KEYS)
    while (yield from _one_of((",", "}"))) == ",":
        yield from _one_of(('"',))
        left.remove((yield from _rest_of_string(left)))
        yield from _one_of((":",))
        yield from _any_string()
    return "}"


def _after_space() -> Reading[str]:
    while (character := (yield)).isspace():
        continue
    return character


def _one_of(options: tuple[str, ...], first: str = "") -> Reading[str]:
    """One of several texts, none the beginning of another, whitespace anywhere before or within it. `first` is a
    character that was read already. An empty one is there without reading."""
    found = "" if first.isspace() else first
    while found not in options:
        if not any(option.startswith(found) for option in options):
            raise Mismatch
        character = yield
        found += "" if character.isspace() else character
    return found


def _rest_of_string(options: Collection[str]) -> Reading[str]:
    """One of several strings whose opening quote was read, up to the closing one."""
    found = ""
    while (character := (yield)) != '"' or found not in options:
        found += character
        if not any(option.startswith(found) for option in options):
            raise Mismatch
    return found


def _any_string() -> Reading[str]:
    yield from _one_of(('"',))
    found, escaped = "", False
    while (character := (yield)) != '"' or escaped:
        found += character
        escaped = character == "\\" and not escaped
    return found


def _whole_object() -> Reading[str]:
    whole, follow = "{", JsonObject()
    yield from _one_of(("{",))
    follows = follow.push("{")
    while follows == "more":
        character = yield
        whole += character
        follows = follow.push(character)
    if follows == "wrong":
        raise Mismatch
    return whole
