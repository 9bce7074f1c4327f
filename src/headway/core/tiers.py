"""State tiers: where blocks of the KV cache lie outside the pool, and what was decided on bringing them back."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

TierName: TypeAlias = Literal["host", "disk"]
#: What can be wrong with a block in a tier: it could not be written, or read, or is not what its header says; or,
#: when the tier was opened, its header was damaged, or another model's.
Fault: TypeAlias = Literal["write", "read", "checksum", "header", "foreign"]


class TierLevel(msgspec.Struct, frozen=True):
    """How much a tier holds: `blocks` of `total` slots, of `bytes` each. `evictions` counts since the start."""

    name: TierName
    blocks: int
    total: int
    bytes: int = 0
    evictions: int = 0


class Backlog(msgspec.Struct, frozen=True):
    """What is to be written to a tier and cannot be by a step alone.

    tier      where it is held up: `disk` while writes to it are on their way
    writing   writes to disk that are on their way
    queued    blocks of the pool that wait for a host slot, through which every write goes
    pinned    of `slots` host slots, those that a read, a write or a reload needs as they are
    moved     blocks that came to this tier, or failed to, since the start
    """

    tier: TierName
    writing: int
    queued: int
    pinned: int
    slots: int
    moved: int


class ReloadChoice(msgspec.Struct, frozen=True):
    """Whether the blocks of a prefix that lie in tiers are brought back, or computed again.

    host, disk    blocks that were found in each tier
    bandwidth     bytes per second at which they would come, as measured lately; None: not measured
    break_even    bytes per second below which computing them is faster: bytes of state per position times prefill
                  positions per second, as measured lately; None: not measured
    """

    reload: bool
    host: int
    disk: int
    bandwidth: float | None = None
    break_even: float | None = None

    @property
    def blocks(self) -> int:
        return self.host + self.disk
