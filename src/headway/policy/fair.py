"""Fair shares among callers: who has had least goes next (virtual token counters, Sheng et al., OSDI 2024).

Each caller's counter grows with what is served for it: the positions of its prompts that are computed, when a
request is first admitted, and `OUTPUT_WEIGHT` for each token that it gets. Who was idle saved nothing up: it starts
level with the busy one that has had least. What is computed again after a preemption is nobody's fault and is not
counted.
"""

from __future__ import annotations

from collections import Counter

#: A token of an answer holds a place in a step of its own; a position of a prompt shares one.
OUTPUT_WEIGHT = 2
#: Callers without a live request that are remembered.
MOST_IDLE = 4096


class Counters:
    """By caller, what was served for it, and how many of its requests are alive."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._live = Counter[str]()

    def __getitem__(self, caller: str) -> int:
        return self._served.get(caller, 0)

    def come(self, caller: str) -> None:
        """One more of its requests is alive."""
        if not self._live[caller]:
            least = min((self[other] for other in self._live if other != caller), default=0)
            self._served[caller] = max(self._served.pop(caller, 0), least)
        self._live[caller] += 1

    def leave(self, caller: str) -> None:
        """One of its requests is over. Where nobody is left, all start anew."""
        self._live[caller] -= 1
        if self._live[caller]:
            return
        del self._live[caller]
        if not self._live:
            self._served.clear()
        elif len(self._served) > len(self._live) + MOST_IDLE:
            del self._served[next(other for other in self._served if other not in self._live)]

    def charge(self, caller: str, tokens: int) -> None:
        """So many virtual tokens were served for it."""
        self._served[caller] = self[caller] + tokens
