"""Whether a model's weights are taken in int8 where no format is asked for: where that is faster on this processor,
and costs this very model little, which is measured once and kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

import headway
from headway.compute.kept import KeptFile
from headway.compute.native.library import ABI, Absent, choose, find

#: Dot products with which int8 is clearly faster than bf16 on the same processor: docs/speed.md. With AVX2 alone it
#: is not at 32 sequences and for prompts; NEON was not measured.
FASTER = {"avx512vnni": "AVX-512 VNNI", "avxvnni": "AVX-VNNI"}
_FILE = "int8_trial.json"

#: A measurement's numbers, in its own order.
Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """What int8 is tried on.

    name     says which texts these are: another name is another measurement
    read     their tokens, as many as the model has; asked for only where a measurement is to be made
    begins   told before one begins, which takes a second or two
    """

    name: str
    read: Callable[[], Sequence[Sequence[int]]]
    begins: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Choice:
    """A format, and why it is that one where none was asked for: a clause with the numbers."""

    weights: str
    why: str = ""


def faster(native: str) -> tuple[str, str] | None:
    """The level and the dot products of the native kernels where these make int8 faster; else None. Raises
    ConfigError for a level of `--native` that cannot run here."""
    library = find()
    level = choose(native, library)
    if level is None or isinstance(library, Absent) or (dots := library.dots_of(level)) not in FASTER:
        return None
    return level, dots


class KeptTrials:
    """What trials of one model found, by texts, kernels and version of Headway."""

    def __init__(self, folder: Path) -> None:
        """Those in the model's folder of the cache, which is one for each revision."""
        self._kept = KeptFile(folder / _FILE, dict[str, Numbers])

    def measured(
        self, kernels: tuple[str, str], against: str, trial: Trial, measure: Callable[[], Numbers]
    ) -> Numbers:
        """What is known of int8 `against` another format; measured now where nothing is."""
        about = (headway.__version__, ABI, *kernels, against, trial.name, torch.__version__)
        key = hashlib.sha256(repr(about).encode()).hexdigest()
        known = self._kept.recall(key)
        if known is None:
            trial.begins()
            known = measure()
            self._kept.keep(key, known)
        return known
