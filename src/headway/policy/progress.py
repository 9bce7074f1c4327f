"""When a decision that moves nothing is no progress: it was taken again and again for reasons that did not change."""

from __future__ import annotations

from headway.core.tiers import Backlog
from headway.core.verdict import Wait

#: So many times in a row.
TIMES = 3
#: What comes from outside the step is looked at all the time, and may be slow: looks at it count that are so far
#: apart. So nothing may have come for a minute, as for `/health`.
APART_NS = 30_000_000_000
_WRITES = "writes"


class Repeats:
    """By what was tried: who was told which wait for it last, how often in a row, and when that was counted last."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, object, int, int]] = {}

    def note(self, tried: str, request_id: str, wait: Wait | int, at: int, apart_ns: int = 0) -> int:
        """It moved nothing: the request waits, or of a queue so many have moved ever. How often exactly this came of
        it in a row; 0 where it is not `apart_ns` since that was counted last."""
        before_id, before, times, counted_at = self._last.get(tried, ("", None, 0, 0))
        if (before_id, before) != (request_id, wait):
            times = 0
        elif at < counted_at:  # the clock went back: what has passed since is not known, what comes is counted
            self._last[tried] = request_id, wait, times, at
            return 0
        elif at - counted_at < apart_ns:
            return 0
        self._last[tried] = request_id, wait, times + 1, at
        return times + 1

    def forget(self, tried: str) -> None:
        """It moved something, or is not tried any more."""
        self._last.pop(tried, None)


class Writes:
    """Watches what is to be written to the tiers of one pool. `stuck` says that it is no progress."""

    def __init__(self) -> None:
        self.stuck = False
        self._repeats = Repeats()

    def note(self, backlog: Backlog | None, at: int) -> bool:
        """It was looked at. Whether `stuck` changed with that. Blocks that are evicted before they were written leave
        the queue, which is no progress of those behind them; an empty queue holds nobody up."""
        before = self.stuck
        if backlog is None:
            self._repeats.forget(_WRITES)
            self.stuck = False
            return before
        times = self._repeats.note(_WRITES, backlog.tier, backlog.moved, at, APART_NS)
        self.stuck = times == TIMES or (before and times != 1)
        return self.stuck is not before
