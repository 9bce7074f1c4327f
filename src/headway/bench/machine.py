"""What a result was measured on, so that it can be compared with another one honestly."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from headway import __version__


def machine() -> dict[str, str | int | float]:
    """The host, and what torch makes of it."""
    import torch

    return host() | {"capability": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}


def host() -> dict[str, str | int | float]:
    """Processor, cores, load, versions and date, without importing torch."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
        "python": platform.python_version(),
        "headway": __version__,
        "date": datetime.date.today().isoformat(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
