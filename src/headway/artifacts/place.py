"""A path on this machine that holds a model, and which reader understands it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles
from headway.errors import ModelNotFound


@dataclass(frozen=True)
class Place:
    """Where a model lies.

    path      a `.gguf` file or a Hugging Face folder
    identity  a text that already changes with the content (a wheel's sha256 is in it), or None
    source    one line for people, or None for the path itself
    """

    path: Path
    identity: str | None = None
    source: str | None = None


def load(name: str, place: Place, cache: Cache) -> ModelFiles:
    """Read everything but the weights. Raises ModelNotFound if `place` holds no model, UnsupportedModel if it
    holds one that needs something that is not implemented."""
    from headway.artifacts import folder, gguf

    if place.path.is_file() and place.path.suffix == ".gguf":
        return gguf.load(name, place, cache)
    if place.path.is_dir() and (place.path / "config.json").is_file():
        return folder.load(name, place)
    kind = "folder has no config.json" if place.path.is_dir() else "file is not a .gguf"
    raise ModelNotFound(f"{place.path} holds no model: the {kind}")
