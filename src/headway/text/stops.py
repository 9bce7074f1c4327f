"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from headway.errors import InvalidRequest


class StopMatcher:
    """Finds the first stop string, wherever the pieces' borders lie.

    The text ends before the stop string that is complete first; of several that end at the same character, before
    the longest. What could still become a stop string is held back, and no more than that.

    Each stop string is matched by Knuth, Morris and Pratt's automaton (1977), so the work per character does not
    depend on the length of the stop strings. Raises InvalidRequest for an empty one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InvalidRequest("stop", "a stop string is empty")
        # Longest first, so that the first to complete at a character is the longest of those.
        self._stops = sorted(stops, key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Add a piece; return the text that is safe to emit, and whether a stop string was found. After that the
        matcher takes no more: everything later answers ("", True)."""
        if self._stopped:
            return "", True
        for index, character in enumerate(text):
            complete = self._advance(character)
            if complete is not None:
                whole = self._held + text[: index + 1]
                self._stopped, self._held = True, ""
                return whole[: -len(complete)], True
        whole = self._held + text
        certain = len(whole) - max(self._matched, default=0)
        self._held = whole[certain:]
        return whole[:certain], False

    def flush(self) -> str:
        """The text ends here: what was held back belongs to it."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> str | None:
        """One character; the stop string that it completes, if any."""
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != character:
                matched = self._borders[which][matched - 1]
            matched += stop[matched] == character
            self._matched[which] = matched
            if matched == len(stop):
                return stop
        return None


def _borders(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        length += pattern[index] == pattern[length]
        borders[index] = length
    return borders
