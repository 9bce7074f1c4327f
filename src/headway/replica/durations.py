"""What steps took, kept between runs beside a model's converted weights, so that a cold start can answer too."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from headway.artifacts.cache import write_once
from headway.policy.durations import Durations, Row

_FILE = "durations.json"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """`machine` is where they were measured: elsewhere they say nothing."""

    machine: str
    rows: list[Row]


class KeptDurations:
    """`known` are the durations of one model on this machine; `save` writes what is new of them."""

    def __init__(self, path: Path, machine: str, known: Durations) -> None:
        self.known = known
        self._path, self._machine = path, machine
        self._saved = known.rows()

    @classmethod
    def open(cls, folder: Path, threads: int | None) -> KeptDurations:
        """Those in a model's folder of the cache; none, where the file is not there, is damaged, or was written on
        another machine or with another number of threads."""
        path, machine = folder / _FILE, this_machine(threads)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_File)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return cls(path, machine, Durations())
        return cls(path, machine, Durations.of(found.rows if found.machine == machine else ()))

    def save(self) -> None:
        """Write them if there are new ones. A cache that cannot be written costs the next start its measurements,
        and nothing else."""
        rows = self.known.rows()
        if rows == self._saved:
            return
        self._saved = rows
        try:
            write_once(self._path, msgspec.json.encode(_File(self._machine, rows)).decode())
        except OSError:
            return


def this_machine(threads: int | None) -> str:
    """What the durations of one model depend on beside what is evaluated."""
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores, {threads or 'all'} threads"
