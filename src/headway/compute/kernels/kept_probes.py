"""What `RowProbe` found out, kept between starts: trying each number of rows takes most of a second."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from headway.compute.kept import KeptFile
from headway.core.config import kernel_settings

_FILE = "row_probes.json"


class KeptProbes:
    """By machine, kernel and shapes: for which numbers of rows a row has its usual bits. A machine is its processor
    with all its features, torch's version and build, its threads, and the settings of its libraries: whatever may
    change the bits of a product."""

    def __init__(self, folder: Path) -> None:
        """Those in a model's folder of the cache."""
        self._kept = KeptFile(folder / _FILE, dict[str, dict[int, bool]])

    def recall(self, kernel: str, shapes: Iterable[tuple[int, int]]) -> Mapping[int, bool]:
        """What is known of a kernel, named by its words, at products of these shapes (out, in)."""
        return self._kept.recall(_key(kernel, shapes)) or {}

    def keep(self, kernel: str, shapes: Iterable[tuple[int, int]], found: Mapping[int, bool]) -> None:
        """Write what was found out, unless it is known."""
        self._kept.keep(_key(kernel, shapes), dict(found))


def _key(kernel: str, shapes: Iterable[tuple[int, int]]) -> str:
    about = (kernel, sorted(shapes), torch.get_num_threads(), *_machine())
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _machine() -> tuple[str, ...]:
    return (platform.machine(), _processor(), torch.__version__, torch.__config__.show(), *kernel_settings())


def _processor() -> str:
    """Its name and features, as the first processor of /proc/cpuinfo tells them; what varies with time left out."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return platform.processor()
    return "\n".join(line for line in first.splitlines() if "MHz" not in line and "bogomips" not in line.lower())
