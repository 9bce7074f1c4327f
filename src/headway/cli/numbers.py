"""Numbers, lists of numbers and ranges as the measuring commands take them. Each parser raises ConfigError that names
the option."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from headway.core.errors import ConfigError

N = TypeVar("N", int, float)


def whole_numbers(option: str, text: str) -> list[int]:
    """A list like 1,8,32; each at least 1."""
    found = _numbers(option, text, int, "whole numbers like 1,8,32")
    if min(found) < 1:
        raise ConfigError(option, f"must be at least 1, got {min(found)}")
    return found


def rates(option: str, text: str) -> list[float]:
    """A list like 0.5,2,inf; each more than 0."""
    found = _numbers(option, text, float, "numbers like 0.5,2,inf")
    if not all(rate > 0 for rate in found):
        raise ConfigError(option, f"must be more than 0, got {text}")
    return found


def span(option: str, text: str) -> tuple[int, int]:
    """A whole number, or the ends of a range like 64-512; from 1 on."""
    low, dash, high = text.partition("-")
    try:
        ends = int(low), int(high if dash else low)
    except ValueError:
        raise ConfigError(option, f"{text!r} is neither a whole number nor a range like 64-512") from None
    if not 1 <= ends[0] <= ends[1]:
        raise ConfigError(option, f"must be at least 1, and a range must not fall, got {text}")
    return ends


def at_least(option: str, value: float | None, least: float) -> None:
    """`value` None is an option that was not given."""
    if value is not None and not (math.isfinite(value) and value >= least):
        raise ConfigError(option, f"must be at least {least:g}, got {value:g}")


def _numbers(option: str, text: str, parse: Callable[[str], N], like: str) -> list[N]:
    try:
        return [parse(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(option, f"{text!r} is not a list of {like}") from None
