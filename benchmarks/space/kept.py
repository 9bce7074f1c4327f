"""What stands beside a result whose time is modelled: nothing of the machine has a part in it."""

from __future__ import annotations

import datetime
import platform

from headway import __version__


def described() -> dict[str, str]:
    """Versions and date."""
    return {
        "time": "modelled",
        "python": platform.python_version(),
        "headway": __version__,
        "date": datetime.date.today().isoformat(),
    }
