"""Work that is lost and done again, and demand that is kept waiting: means per second, as events tell them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

#: What becomes of a recovery loop, or of the cut of admission that answers it.
Phase: TypeAlias = Literal["began", "lasts", "over"]


class Rates(msgspec.Struct, frozen=True):
    """Means per second: sequences `preempted`; positions `recomputed`; those and the positions of prompts together
    (`prompt`); tokens that callers got (`goodput`)."""

    preempted: float = 0.0
    recomputed: float = 0.0
    prompt: float = 0.0
    goodput: float = 0.0

    @property
    def share(self) -> float:
        """Of prompt work, what was done again."""
        return self.recomputed / self.prompt if self.prompt else 0.0


NO_RATES = Rates()


class Demand(msgspec.Struct, frozen=True):
    """Means per second: requests, and the positions of their prompts."""

    requests: float = 0.0
    positions: float = 0.0


NO_DEMAND = Demand()
