"""What a preemption costs the one who is preempted."""

from __future__ import annotations

import msgspec


class Price(msgspec.Struct, frozen=True):
    """What it takes to resume if nothing else happens meanwhile.

    recompute   positions to compute again; of an image its encoding, which is one, and updates
    reload      blocks to bring back from a tier
    """

    recompute: int = 0
    reload: int = 0
