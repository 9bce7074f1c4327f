"""Room for prompts that wait for their first admission, counted in requests and in positions.

A prompt's positions are known only once it was tokenised, and tokenising is work. So an exchange claims an upper
bound before, corrects it to the true count afterwards, and splits it among its requests as they are submitted. Each
request gives its part back when it is admitted, or over. A bound may be far above the true count, so one beyond the
whole room claims all of it: when nobody waits, the true count decides. A claim is made without waiting for anything:
of two prompts that fit one by one but not together, the second is refused however close together they come.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shortfall:
    """There is no room now: `have` positions are left of `limit`, and `need` are claimed."""

    need: int
    have: int
    limit: int

    def __str__(self) -> str:
        return (
            f"the prompt may have {self.need} positions, and there is room for {self.have} of the {self.limit} that "
            "may wait; --max-waiting-positions raises the limit"
        )


class WaitingQuota:
    """`positions` are claimed now; `coming` are the requests of exchanges with a claim that submitted none yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.positions = 0
        self.coming = 0

    def claim(self, positions: int, requests: int = 1) -> Claim | Shortfall:
        """Claim room for at most `positions` positions of `requests` requests, or all the room there is when they may
        be more; changes nothing when that is not free."""
        positions, have = min(positions, self.limit), max(0, self.limit - self.positions)
        if positions > have:
            return Shortfall(positions, have, self.limit)
        self.coming += requests
        return Claim(self, positions, coming=requests)


class Claim:
    """Positions that one exchange or one request holds in the room."""

    def __init__(self, room: WaitingQuota, positions: int, *, coming: int = 0) -> None:
        self._room = room
        self._coming = coming
        self.positions = 0
        self.correct(positions)

    def correct(self, positions: int) -> None:
        """Hold `positions` from now on. It may be more than there is room for: it is true."""
        self._room.positions += positions - self.positions
        self.positions = positions

    def split(self, positions: int) -> Claim:
        """Hand `positions` over to one request, which is submitted now."""
        self._arrive()
        self.correct(max(0, self.positions - positions))
        return Claim(self._room, positions)

    def release(self) -> None:
        """Hold nothing; a second time changes nothing."""
        self._arrive()
        self.correct(0)

    def _arrive(self) -> None:
        self._room.coming -= self._coming
        self._coming = 0
