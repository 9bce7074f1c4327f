"""Fair shares among callers: who has had least goes next (virtual token counters, Sheng et al., OSDI 2024).

Each caller's counter grows with what is served for it: the positions of its prompts that are computed, when a
request is first admitted, and `OUTPUT_WEIGHT` for each token that it gets. Who was idle saved nothing up: it starts
level with the busy one that has had least. What is computed again after a preemption is nobody's fault and is not
counted.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

#: A token of an answer holds a place in a step of its own; a position of a prompt shares one.
OUTPUT_WEIGHT = 2
#: Callers without a live request that are remembered.
MOST_IDLE = 4096
#: Entries of names that are gone which a heap may have beyond as many as it has names.
_LEFT_BEHIND = 64


class Least:
    """Whose number is the least, of names with numbers that only grow. All moves cost in proportion to the logarithm
    of how many names there are, taken together: a heap has an entry at or below each number, and is put right at its
    top only, when the least is asked for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, name: str, number: int) -> None:
        """It has this number from now on."""
        known = name in self._numbers
        self._numbers[name] = number
        if not known:
            heappush(self._heap, (number, name))

    def drop(self, name: str) -> None:
        """It is no longer one of them."""
        del self._numbers[name]
        if len(self._heap) > 2 * len(self._numbers) + _LEFT_BEHIND:
            self._heap = [(number, name) for name, number in self._numbers.items()]
            heapify(self._heap)

    def first(self) -> tuple[int, str] | None:
        """The least number, and whose it is; None where there is nobody."""
        while self._heap:
            number, name = self._heap[0]
            now = self._numbers.get(name)
            if now == number:
                return number, name
            if now is None:
                heappop(self._heap)
            else:
                heapreplace(self._heap, (now, name))
        return None


class Counters:
    """By caller, what was served for it, and how many of its requests are alive."""

    def __init__(self) -> None:
        self._live = Counter[str]()
        self._comes = count()
        self._clear()

    def __getitem__(self, caller: str) -> int:
        return self._served.get(caller, 0)

    def come(self, caller: str) -> None:
        """One more of its requests is alive."""
        if not self._live[caller]:
            first = self._least.first()
            self._served[caller] = max(self[caller], first[0] if first else 0)
            self._least.put(caller, self._served[caller])
            if caller in self._came:
                self._idle.drop(caller)
            self._came[caller] = next(self._comes)
        self._live[caller] += 1

    def leave(self, caller: str) -> None:
        """One of its requests is over. Where nobody is left, all start anew."""
        self._live[caller] -= 1
        if self._live[caller]:
            return
        del self._live[caller]
        if not self._live:
            self._clear()
            return
        self._least.drop(caller)
        self._idle.put(caller, self._came[caller])
        if len(self._idle) > MOST_IDLE:
            self._forget()

    def charge(self, caller: str, tokens: int) -> None:
        """So many virtual tokens were served for it, while a request of its own is alive."""
        self._served[caller] += tokens
        self._least.put(caller, self._served[caller])

    def _clear(self) -> None:
        self._served: dict[str, int] = {}
        self._came: dict[str, int] = {}
        self._least = Least()  # of the live ones: what was served
        self._idle = Least()  # of the others that are remembered: when they last came

    def _forget(self) -> None:
        """Of those who are idle, whoever came longest ago."""
        first = self._idle.first()
        assert first is not None
        _, caller = first
        self._idle.drop(caller)
        del self._served[caller], self._came[caller]
