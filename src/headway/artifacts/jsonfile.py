"""JSON files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.core.errors import ArtifactError, ModelNotFound


def required(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path.name} not found in {path.parent}") from error
    except ValueError as error:
        raise ArtifactError(f"{path} is not JSON: {error}") from error
    return value


def optional(path: Path) -> dict[str, Any]:
    return required(path) if path.exists() else {}
