"""The folders that Headway keeps between runs. All of it can be deleted; it is fetched or built again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from headway.core.errors import ArtifactError


@dataclass(frozen=True)
class Cache:
    """`models/` holds what was downloaded, `converted/` what was built from a model's own files."""

    root: Path

    @classmethod
    def at(cls, root: Path | None) -> Cache:
        """The cache in `root`, or the user's own one."""
        return cls(root or Path(platformdirs.user_cache_dir("headway", appauthor=False)))

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def converted(self) -> Path:
        return self.root / "converted"

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder of one's own, gone afterwards, on the same file system as `models/`: what is complete can
        be renamed into place, so that no other process ever sees half of it. Raises ArtifactError if the cache
        cannot be written."""
        try:
            self.models.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(prefix=".partial-", dir=self.models)
        except OSError as error:
            raise ArtifactError(
                f"cannot write to the cache {self.root}: {error.strerror}; set HEADWAY_CACHE to another folder"
            ) from error
        with folder as path:
            yield Path(path)


def publish(source: Path, target: Path) -> None:
    """Move a complete folder to `target`. If another process was first, its copy stays, and so does `source`."""
    try:
        os.rename(source, target)
    except OSError:
        if not target.is_dir():
            raise


def write_once(target: Path, text: str) -> None:
    """Write a file so that readers see the old content, or the whole of the new one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=".partial-", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    os.replace(file.name, target)
