"""What `RowProbe` found out, kept between starts: trying each number of rows takes most of a second."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch

from headway.core.config import kernel_settings

_FILE = "row_probes.json"


class KeptProbes:
    """By machine, kernel and shapes: for which numbers of rows a row has its usual bits. A machine is its processor
    with all its features, torch's version and build, its threads, and the settings of its libraries: whatever may
    change the bits of a product. A file that cannot be read or written costs the next start its probes, and nothing
    else."""

    def __init__(self, path: Path, known: dict[str, dict[int, bool]]) -> None:
        self._path, self._known = path, known

    @classmethod
    def open(cls, folder: Path) -> KeptProbes:
        """Those in a model's folder of the cache; none where the file is not there or is damaged."""
        path = folder / _FILE
        try:
            return cls(path, msgspec.json.decode(path.read_bytes(), type=dict[str, dict[int, bool]]))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return cls(path, {})

    def recall(self, kernel: str, shapes: Iterable[tuple[int, int]]) -> Mapping[int, bool]:
        """What is known of a kernel, named by its words, at products of these shapes (out, in)."""
        return self._known.get(_key(kernel, shapes), {})

    def keep(self, kernel: str, shapes: Iterable[tuple[int, int]], found: Mapping[int, bool]) -> None:
        """Write what was found out, unless it is known."""
        key = _key(kernel, shapes)
        if self._known.get(key) == found:
            return
        self._known[key] = dict(found)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".partial-", delete=False) as file:
                file.write(msgspec.json.encode(self._known))
            os.replace(file.name, self._path)
        except OSError:
            return


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
