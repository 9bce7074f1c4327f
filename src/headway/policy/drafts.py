"""What to guess, and when guessing pays: drafts from the sequence's own past.

Text repeats itself: code, names, quotations of the prompt. If the last tokens were seen before, what followed them
then is guessed to follow now (prompt lookup, Saxena 2023; the n-gram speculation of other engines). The executor
verifies guesses in the step that computes the newest position anyway; only wrong ones cost something.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.core.request import Drafter, Pause, TextRequest

#: Lengths of the runs of tokens that are looked up, the longest first.
RUNS = (3, 2)
#: Guesses after which it is decided whether they pay, and the share of them that must have been right. A position to
#: verify costs far less than a step, but not nothing: in a full batch it displaces others' prompts.
JUDGED_AFTER = 64
LEAST_SHARE = 0.2
#: Tokens without guesses when they did not pay; twice as many each time, up to the last number.
PAUSE_TOKENS, MOST_PAUSE_TOKENS = 128, 2048


class PromptLookup:
    """Implements `Drafter` for one sequence, `most` guesses at a time. Work per token is constant."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._after: dict[tuple[int, ...], int] = {}  # a run of tokens → the latest position that followed it
        self._indexed = 0
        self._drafted = self._accepted = 0
        self._pause = PAUSE_TOKENS
        self._known = self._resumes_at = 0

    def guess(self, tokens: list[int]) -> list[int]:
        """What followed the latest earlier occurrence of the last tokens; where that leads up to the end, it is taken
        to go round again. Empty when there is none, or in a pause."""
        self._known = len(tokens)
        if self._known < self._resumes_at:
            return []
        self._index(tokens)
        for run in RUNS:
            at = self._after.get(tuple(tokens[-run:]))
            if at is not None:
                period = self._known - at
                return [tokens[at + i % period] for i in range(self._most)]
        return []

    def verified(self, drafted: int, accepted: int) -> Pause | None:
        self._drafted += drafted
        self._accepted += accepted
        if self._drafted < JUDGED_AFTER:
            return None
        judged, self._drafted, self._accepted = (self._drafted, self._accepted), 0, 0
        if judged[1] >= LEAST_SHARE * judged[0]:
            self._pause = PAUSE_TOKENS
            return None
        pause = Pause(drafted=judged[0], accepted=judged[1], tokens=self._pause)
        self._resumes_at = self._known + accepted + 1 + self._pause
        self._pause = min(2 * self._pause, MOST_PAUSE_TOKENS)
        return pause

    def _index(self, tokens: list[int]) -> None:
        """Runs that something follows already; the last one is what is looked for."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for run in RUNS:
                if end >= run:
                    self._after[tuple(tokens[end - run : end])] = end
        self._indexed = len(tokens)


def lookup_drafts(most: int) -> Callable[[TextRequest], Drafter | None]:
    """Drafters that guess `most` tokens at a time, unless a request says how many it wants; 0: none."""

    def make(new: TextRequest) -> Drafter | None:
        wanted = most if new.draft is None else new.draft
        return PromptLookup(wanted) if wanted else None

    return make
