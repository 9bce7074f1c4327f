"""What an engine may be given from outside: guesses at the next tokens, and ends that only text shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headway.errors import InvalidRequest
from headway.request import Watch

#: Guesses for the tokens after the known ones; the engine takes as many as it can afford, from the front.
Drafter: TypeAlias = Callable[[list[int]], list[int]]
#: Makes what follows a sequence's text: from its stop strings, and the number of tokens that they cannot end.
Watcher: TypeAlias = Callable[[tuple[str, ...], int], Watch]


def no_drafts(tokens: list[int]) -> list[int]:
    """The drafter that never guesses."""
    return []


def no_watcher(stop: tuple[str, ...], min_tokens: int) -> Watch:
    """An engine without a tokenizer knows no text. Raises InvalidRequest."""
    raise InvalidRequest("stop", "this engine was given no tokenizer, so it cannot look for stop strings")
