"""Models that come with Headway: folders of `models/`, which a wheel holds within the package and a checkout at its
top."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import headway
from headway.artifacts.location import Location
from headway.core.errors import ModelNotFound


@dataclass(frozen=True)
class Shipped:
    """A folder of `models/`. `needs` are aliases of models that it names and that are fetched at its first use."""

    folder: str
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"models/{self.folder}, part of Headway"


def locate(shipped: Shipped) -> Location:
    """Where it lies on this machine. Raises ModelNotFound for a build that left it out."""
    package = Path(headway.__file__).parent
    # src/headway of a checkout has its models two folders above
    places = package / "models" / shipped.folder, package.parents[1] / "models" / shipped.folder
    for place in places:
        if place.is_dir():
            return Location(place, source=str(shipped))
    raise ModelNotFound(f"{shipped.folder} comes with Headway, and this build lacks it ({places[0]} is not there)")
