"""Which fields of a body are served, accepted without effect, or refused; and what a number may be.

Nothing is silently ignored: a field is served, or named in the header `headway-ignored`, or refused by name. A known
field given as null or at its default counts as absent, even if it is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from headway.api.bodies.known import is_hint
from headway.api.bodies.reading import as_struct, read_object
from headway.core.errors import InvalidRequest
from headway.core.request import MOST, MOST_LOGPROBS, MOST_PREVIEWS

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


class Range(NamedTuple):
    """Numbers from `low` to `high`; with `above`, `low` itself is not one of them."""

    low: int
    high: int
    above: bool = False

    def check(self, field: str, value: float) -> None:
        """Raises InvalidRequest, naming the field, for a value outside."""
        if not self.low <= value <= self.high or (self.above and value == self.low):
            low, to = ("more than ", " and at most ") if self.above else ("from ", " to ")
            raise InvalidRequest(field, f"{field} is {value}; it must be {low}{self.low}{to}{self.high}")


#: What a number may be, by its field: checked here, and told by `/openapi.json`. -1 and 0 of `top_k` both mean all.
RANGES: dict[str, Range] = {
    "chunk_tokens": Range(1, MOST),
    "deadline_ms": Range(0, MOST, above=True),
    "dimensions": Range(1, MOST),
    "frequency_penalty": Range(-2, 2),
    "guidance": Range(0, 100),
    "logprobs": Range(0, MOST_LOGPROBS),
    "max_completion_tokens": Range(1, MOST),
    "max_tokens": Range(1, MOST),
    "max_tokens_per_doc": Range(1, MOST),
    "min_p": Range(0, 1),
    "min_tokens": Range(0, MOST),
    "n": Range(1, MOST),
    "partial_images": Range(0, MOST_PREVIEWS),
    "presence_penalty": Range(-2, 2),
    "priority": Range(-(1 << 63), (1 << 63) - 1),
    "prompt_logprobs": Range(0, MOST_LOGPROBS),
    "repetition_penalty": Range(0, 100, above=True),
    "seed": Range(-(1 << 63), (1 << 63) - 1),
    "steps": Range(1, MOST),
    "temperature": Range(0, 2),
    "top_k": Range(-1, MOST),
    "top_logprobs": Range(0, MOST_LOGPROBS),
    "top_n": Range(1, MOST),
    "top_p": Range(0, 1, above=True),
    "truncate_prompt_tokens": Range(-1, MOST),
}


def read_fields(
    kind: type[BodyT], data: bytes, unsupported: Mapping[str, tuple[Any, ...]]
) -> tuple[BodyT, list[str]]:
    """Returns the body, its numbers within `RANGES`, and the names of the fields that were accepted without effect.
    `unsupported` are known fields, and the values besides null at which they ask for nothing. Raises InvalidRequest.
    """
    given: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in read_object(data).items():
        if name in kind.__struct_fields__:
            given[name] = value
        elif is_hint(name):
            ignored += [name] if value is not None else []
        elif name not in unsupported:
            raise InvalidRequest(name, f"{name} is not a known field")
        elif not _asks_nothing(value, unsupported[name]):
            defaults = " or ".join(msgspec.json.encode(each).decode() for each in (None, *unsupported[name]))
            raise InvalidRequest(name, f"{name} is not supported; leave it out, or send {defaults}")
    body = as_struct(kind, given)
    for name, allowed in _ranges(kind):
        value = getattr(body, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            allowed.check(name, value)
    return body, ignored


@cache
def _ranges(kind: type[msgspec.Struct]) -> list[tuple[str, Range]]:
    """The fields of a kind of body that have a range."""
    return [(name, allowed) for name, allowed in RANGES.items() if name in kind.__struct_fields__]


def _asks_nothing(value: Any, defaults: tuple[Any, ...]) -> bool:
    """Null, or one of `defaults`; to Python `0 == False`, to JSON they differ."""
    return value is None or any(
        value == default and isinstance(value, bool) == isinstance(default, bool) for default in defaults
    )
