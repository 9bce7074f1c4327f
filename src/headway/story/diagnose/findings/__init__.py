"""What `headway doctor` can find: one pure function for each cause, from what was seen to a finding, or None.

A finding is claimed only with evidence, and only where it matters: most thresholds are a share of all the time that
requests spent (`SHARE`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.story.diagnose.observations import Observations

#: A cause is worth telling from this share of the requests' time on, and of the positions evaluated.
SHARE = 0.05
#: So many steps or requests at least, so that chance is no cause.
FEW = 3


@dataclass(frozen=True)
class Finding:
    """One cause.

    name     a short name for scripts
    cost_s   how much sooner all requests together could have been served at most, in seconds; 0 if that is unknown
    lost     requests that got no (whole) answer
    says     what is the case, with its numbers in words
    next     the one thing to do
    but      what that costs, or what would not help, and why
    evidence the numbers, by name
    model    whose it is, where several are served
    """

    name: str
    cost_s: float
    says: str
    next: str
    but: str = ""
    lost: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)
    model: str | None = None


def worth(observed: Observations, cost_ns: float) -> bool:
    """Whether a cost matters beside all the time that steps held requests up."""
    return cost_ns > 0 and cost_ns >= SHARE * observed.held_up_ns


def duration(ns: float) -> str:
    """Seconds from a tenth on, else milliseconds."""
    return f"{ns / 1e9:.2f} s" if ns >= 1e8 else f"{ns / 1e6:.1f} ms"


def named(things: list[Any], most: int = 5) -> str:
    """`1, 2, 3 and 4 more`."""
    shown, more = ", ".join(map(str, things[:most])), len(things) - most
    return f"{shown} and {more} more" if more > 0 else shown


def size(number_bytes: int) -> str:
    """Binary units, from KiB on."""
    return f"{number_bytes / 2**20:,.1f} MiB" if number_bytes >= 1 << 20 else f"{number_bytes / 2**10:,.1f} KiB"
