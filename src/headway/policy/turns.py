"""Whose step is next, where several models share one device.

Each model has a weight. The one that has had the least device time for its weight goes next, so over time busy models
have the device in proportion to their weights, however long their steps are (fair queueing by virtual time, as in
start-time fair queueing, Goyal et al. 1996). Time that an idle model did not ask for is not saved up: when it becomes
busy, it starts level with the busy one that has had least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """What a model had of the device: `device_ns`, of which it is due a part in proportion to `weight` > 0."""

    device_ns: int
    weight: float

    @property
    def virtual_ns(self) -> float:
        """Device time for one unit of weight."""
        return self.device_ns / self.weight


def next_model(busy: Sequence[Share]) -> int:
    """The place in `busy` of the model whose step is next; among equals the first."""
    return min(range(len(busy)), key=lambda place: busy[place].virtual_ns)


def caught_up(returning: Share, busy: Sequence[Share]) -> int:
    """The device time at which a model that was idle counts on, beside those that were `busy` meanwhile."""
    least = min((share.virtual_ns for share in busy), default=0.0)
    return max(returning.device_ns, int(least * returning.weight))
