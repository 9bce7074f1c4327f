"""When a decision that moves nothing is no progress: it was taken again and again for reasons that did not change."""

from __future__ import annotations

from headway.core.verdict import Wait

#: So many times in a row.
TIMES = 3


class Repeats:
    """By what was tried: who was told which wait for it last, and how often in a row."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Wait, int]] = {}

    def note(self, tried: str, request_id: str, wait: Wait) -> int:
        """It moved nothing: the request waits. How often exactly this came of it in a row."""
        before_id, before, times = self._last.get(tried, ("", None, 0))
        times = times + 1 if (before_id, before) == (request_id, wait) else 1
        self._last[tried] = request_id, wait, times
        return times

    def forget(self, tried: str) -> None:
        """It moved something, or is not tried any more."""
        self._last.pop(tried, None)
