"""Bytes of a body to typed values; whatever is wrong with them becomes an InvalidRequest that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from headway.errors import InvalidRequest

StructT = TypeVar("StructT", bound=msgspec.Struct)


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest."""
    try:
        raw = msgspec.json.decode(data or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest("body", f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidRequest("body", "the body must be a JSON object")
    return raw


def as_struct(kind: type[StructT], given: dict[str, Any]) -> StructT:
    """`given` as `kind`; nulls count as absent. Raises InvalidRequest naming the first field that is wrong."""
    try:
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_field(error), str(error)) from error


def _field(error: msgspec.ValidationError) -> str:
    """The field that msgspec's message names: `… - at `$.top_p``, or `missing required field `model``."""
    found = re.search(r"\$\.([\w.]+)", str(error)) or re.search(r"field `(\w+)`", str(error))
    return found[1] if found else "body"
