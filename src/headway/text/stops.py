"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headway.core.errors import InvalidRequest


class StopStrings:
    """The automaton of Aho and Corasick (1975) over stop strings: its state after some text is the longest end of
    that text with which a stop string begins. The work per character depends on neither their number nor their
    lengths. Raises InvalidRequest for an empty one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequest("stop", "a stop string is empty")
        self._children: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the state of the next shorter such end
        self.depth = [0]  # how many characters of the text may become a stop string
        self.complete = [0]  # the length of the longest stop string that ends here; 0: none does
        self.none = not stops
        for stop in stops:
            self._insert(stop)
        self._link()

    def after(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._children[state]:
            state = self._shorter[state]
        return self._children[state].get(character, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            child = self._children[state].get(character)
            if child is None:
                child = self._children[state][character] = len(self._children)
                self._children.append({})
                self._shorter.append(0)
                self.depth.append(self.depth[state] + 1)
                self.complete.append(0)
            state = child
        self.complete[state] = len(stop)

    def _link(self) -> None:
        """Shorter states first, since each link is found by those of its parent."""
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._children[state].items():
                shorter = self._shorter[child] = self.after(self._shorter[state], character)
                self.complete[child] = self.complete[child] or self.complete[shorter]
                queue.append(child)


class StopMatcher:
    """Finds the first stop string, wherever the pieces' borders lie.

    The text ends before the stop string that is complete first; of several that end at the same character, before
    the longest; or with it, to `keep` it. What could still become a stop string is held back, and no more than that.
    """

    def __init__(self, stops: StopStrings | Sequence[str], *, keep: bool = False) -> None:
        self._keep = keep
        self._stops = stops if isinstance(stops, StopStrings) else StopStrings(stops)
        self._state = 0
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Add a piece; return the text that is safe to emit, and whether a stop string was found. After that the
        matcher takes no more: everything later answers ("", True)."""
        if self._stopped:
            return "", True
        if self._stops.none:
            return text, False
        for index, character in enumerate(text):
            self._state = self._stops.after(self._state, character)
            if length := self._stops.complete[self._state]:
                whole = self._held + text[: index + 1]
                self._stopped, self._held = True, ""
                return whole if self._keep else whole[:-length], True
        whole = self._held + text
        certain = len(whole) - self._stops.depth[self._state]
        self._held = whole[certain:]
        return whole[:certain], False

    def flush(self) -> str:
        """The text ends here: what was held back belongs to it."""
        held, self._held = self._held, ""
        self._state = 0
        return held
