"""What comes of asking a process about a chat template, and what that may take."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headway.text.bounded import Bounds

#: What any rendering may take, and how much more for what it is given. A usual one takes a millisecond.
PROCESSOR_S = 2.0
_MEMORY_BYTES = 128 << 20
_BYTES_PER_SECOND = 4 << 20
#: A text is held several times over: as a line, as values, as pieces, whole, and as the answer.
_MEMORY_FACTOR = 24


class Names(msgspec.Struct, tag="names"):
    """What a template names: variables that it does not set itself, and words, which are literals and attributes."""

    variables: frozenset[str]
    words: frozenset[str]


class Rendered(msgspec.Struct, tag="rendered"):
    text: str


class RenderFailed(msgspec.Struct, tag="render_failed"):
    """The template refused what it was given, or it could not handle it."""

    message: str


class ParseFailed(msgspec.Struct, tag="parse_failed"):
    """Jinja cannot parse the template."""

    message: str


class BoundExceeded(msgspec.Struct, tag="bound_exceeded"):
    """`bound` is "memory" or "length"."""

    bound: str


Outcome: TypeAlias = Names | Rendered | RenderFailed | ParseFailed | BoundExceeded


def bounds_of(length: int, processor_s: float) -> Bounds:
    """What a question of so many bytes may take: `processor_s`, and more if it is long."""
    return Bounds(processor_s + length / _BYTES_PER_SECOND, _MEMORY_BYTES + _MEMORY_FACTOR * length)
