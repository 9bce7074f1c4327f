"""Where on this machine a model lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.artifacts.files import Modules


@dataclass(frozen=True)
class Location:
    """A path that holds a model.

    path      a GGUF file, a folder with one, or a Hugging Face folder
    identity  a text that already changes with the content (a wheel's sha256 is in it), or None
    source    one line for people, or None for the path itself
    config    what stands in for a `config.json` that is not there
    modules   what stands in for a `modules.json` that is not there
    """

    path: Path
    identity: str | None = None
    source: str | None = None
    config: dict[str, Any] | None = None
    modules: Modules | None = None
