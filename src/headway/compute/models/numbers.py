"""Numbers of a `config.json`, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headway.core.errors import ArtifactError


def positive(config: Mapping[str, Any], name: str, key: str, default: float) -> float:
    """Raises ArtifactError unless it is a finite number above 0."""
    value = config.get(key, default)
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ArtifactError(f"{name}: {key} in config.json is {value!r}; it must be a number above 0")
    return float(value)


def count(config: Mapping[str, Any], name: str, key: str, default: int | None = None) -> int:
    """Raises ArtifactError unless it is a whole number above 0; `default` where it is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ArtifactError(f"{name}: {key} in config.json is {value!r}; it must be a whole number above 0")
    return value
