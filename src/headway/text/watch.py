"""Where text ends an answer: stop strings are looked for where tokens are emitted, so that no step is wasted."""

from __future__ import annotations

from collections.abc import Callable

from headway.text.detokenize import Detokenizer
from headway.text.stops import StopMatcher
from headway.text.tokenizer import Tokenizer


class TextWatch:
    """Follows one sequence; the front, which cuts the text, follows the same tokens and finds the same end."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._text = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stop)

    def completes(self, token: int) -> bool:
        """Add a token. Whether a stop string is complete now."""
        return self._matcher.push(self._text.push((token,)))[1]


def watcher(tokenizer: Tokenizer) -> Callable[[tuple[str, ...]], TextWatch]:
    """What an engine needs to end answers at stop strings."""
    return lambda stop: TextWatch(tokenizer, stop)
