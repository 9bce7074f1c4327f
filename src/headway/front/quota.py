"""A quota for prompts that wait for their first admission, counted in requests and in positions.

A prompt's positions are known only once it was tokenised, and tokenising is work. So an exchange claims an upper
bound before, corrects it to the true count afterwards, and splits it among its requests as they are submitted. Each
request gives its part back when it is admitted, or over. A bound may be far above the true count, so one beyond the
whole quota claims all of it: when nobody waits, the true count decides. A claim is made without waiting for anything:
of two prompts that fit one by one but not together, the second is refused however close together they come.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shortfall:
    """The quota is short now: `have` positions are left of `limit`, and `need` are claimed."""

    need: int
    have: int
    limit: int

    def __str__(self) -> str:
        return (
            f"the prompt may have up to {self.need} positions, and {self.have} of the {self.limit} that may wait are "
            "left; raise --max-waiting-positions"
        )


class WaitingQuota:
    """`positions` are claimed now; `coming` are the requests of exchanges with a claim that submitted none yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.positions = 0
        self.coming = 0

    def claim(self, positions: int, requests: int = 1) -> Claim | Shortfall:
        """Claim at most `positions` positions for `requests` requests, or the whole quota when they may be more;
        changes nothing when that is not free."""
        positions, have = min(positions, self.limit), max(0, self.limit - self.positions)
        if positions > have:
            return Shortfall(positions, have, self.limit)
        self.coming += requests
        return Claim(self, positions, coming=requests)


class Claim:
    """Positions of the quota that one exchange or one request holds."""

    def __init__(self, quota: WaitingQuota, positions: int, *, coming: int = 0) -> None:
        self._quota = quota
        self._coming = coming
        self.positions = 0
        self.correct(positions)

    def correct(self, positions: int) -> None:
        """Hold `positions` from now on. It may exceed the quota: it is the true count."""
        self._quota.positions += positions - self.positions
        self.positions = positions

    def split(self, positions: int) -> Claim:
        """Hand `positions` over to one request, which is submitted now."""
        self._arrive()
        self.correct(max(0, self.positions - positions))
        return Claim(self._quota, positions)

    def release(self) -> None:
        """Hold nothing; a second time changes nothing."""
        self._arrive()
        self.correct(0)

    def _arrive(self) -> None:
        self._quota.coming -= self._coming
        self._coming = 0
