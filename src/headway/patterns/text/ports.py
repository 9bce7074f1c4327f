"""What a text pattern may be given from outside: guesses at the next tokens, and ends that only text shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headway.core.errors import InvalidRequest
from headway.core.request import Drafter, TextRequest, Watch

#: Makes the drafter of one sequence; None: no drafts for it.
Drafters: TypeAlias = Callable[[TextRequest], Drafter | None]
#: Makes what follows a sequence's text: from its stop strings, and the number of tokens that they cannot end.
Watcher: TypeAlias = Callable[[tuple[str, ...], int], Watch]


def no_drafts(new: TextRequest) -> Drafter | None:
    """No sequence gets a drafter."""
    return None


def no_watcher(stop: tuple[str, ...], min_tokens: int) -> Watch:
    """An engine without a tokenizer knows no text. Raises InvalidRequest."""
    raise InvalidRequest("stop", "this engine was given no tokenizer, so it cannot look for stop strings")
