"""Bytes of a body to typed values; whatever is wrong with them becomes an InvalidRequest that names the field."""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from headway.core.errors import InvalidRequest

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)
#: Up to here a body is read faster than a thread is asked to.
_SMALL_BYTES = 64 << 10


async def read_aside(read: Callable[[bytes], T], data: bytes) -> T:
    """`read(data)`, for a large body in another thread: only decoding itself holds the loop, not what Python does
    with each value (see `jsonsize.py`)."""
    return read(data) if len(data) <= _SMALL_BYTES else await asyncio.to_thread(read, data)


def only(query: Mapping[str, str], *names: str) -> None:
    """Raises InvalidRequest for a query parameter of another name."""
    for name in query:
        if name not in names:
            raise InvalidRequest(name, f"{name} is not a known query parameter; {', '.join(names)} are")


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest."""
    try:
        raw = msgspec.json.decode(data.removeprefix(BOM_UTF8) or b"null")  # RFC 8259 8.1 lets a reader ignore it
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest("body", f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidRequest("body", "the body must be a JSON object")
    return raw


def as_struct(kind: type[StructT], given: dict[str, Any]) -> StructT:
    """`given` as `kind`. Nulls count as absent, except of fields whose default is `UNSET`, which tell the two apart;
    1.0 is a whole number, as JSON schema has it. Raises InvalidRequest naming the first field that is wrong."""
    kept = {name: _whole(value) for name, value in given.items() if value is not None or name in _null_matters(kind)}
    try:
        return msgspec.convert(kept, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_field(error), str(error)) from error


@cache
def _null_matters(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The fields that tell null from absent. Asking a struct for its fields takes longer than reading a body."""
    return frozenset(field.name for field in msgspec.structs.fields(kind) if field.default is msgspec.UNSET)


def _whole(value: Any, lists: int = 2) -> Any:
    """A field's number, or the numbers in its lists and their lists, as integers where they are whole."""
    if isinstance(value, list) and lists and any(isinstance(item, float | list) for item in value):
        return [_whole(item, lists - 1) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field(error: msgspec.ValidationError) -> str:
    """The field that msgspec's message names: `… - at `$.top_p``, or `missing required field `model``."""
    found = re.search(r"\$\.([\w.]+)", str(error)) or re.search(r"field `(\w+)`", str(error))
    return found[1] if found else "body"
