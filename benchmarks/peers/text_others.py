"""How busy the cores were with anything but what was measured: on a shared machine that has to be known."""

from __future__ import annotations

import os
import time
from pathlib import Path

from text_sides import family

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Others:
    """Started with the process that is measured; `cores` says how many others kept busy since, on average."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began, self._before = time.monotonic(), self._seconds()

    def cores(self) -> float:
        return round((self._seconds() - self._before) / (time.monotonic() - self._began), 2)

    def _seconds(self) -> float:
        """Processor time of the machine, less that of the measured process and its children, and of this process with
        those it waited for."""
        total = sum(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4])) * _TICK_S
        mine = os.times()
        return total - sum(_cpu_s(pid) for pid in family(self._pid)) - sum(mine[:4])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK_S
