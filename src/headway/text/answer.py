"""The text of one answer as it comes, up to where a stop string ends it.

The replica follows it to end the sequence with the very token that completes a stop string, so that no step is wasted
and usage is exact; the front follows the same tokens for the text itself, and so finds the same end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from weakref import WeakValueDictionary

from headway.text.detokenize import Detokenizer
from headway.text.stops import StopMatcher, StopStrings
from headway.text.tokenizer import Tokenizer


class AnswerText:
    """What the first `min_tokens` tokens say cannot be part of a stop string, and no stop string goes across a
    special token: so those in `shown`, which add their text here and nothing where the sequence is ended, make no
    difference to the end. With `keep_stop` the text ends with its stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: StopStrings | Sequence[str],
        min_tokens: int,
        shown: Collection[int] = (),
        *,
        keep_stop: bool = False,
    ) -> None:
        self._text = Detokenizer(tokenizer, shown=shown)
        self._special = tokenizer.special_ids
        self._matcher = StopMatcher(stop, keep=keep_stop)
        self._unmatched = min_tokens
        self._stopped = False

    def push(self, tokens: Iterable[int]) -> str:
        """Add tokens; the text that is certain now. What could become a stop string is held back."""
        return "".join(self._add(token) for token in tokens)

    def finish(self) -> str:
        """The answer is over: what was held back, unless a stop string ended it."""
        if self._stopped:
            return ""
        text, _ = self._matcher.push(self._text.finish())
        return text + self._matcher.flush()

    def completes(self, token: int) -> bool:
        """Add a token. Whether a stop string is complete now."""
        self._add(token)
        return self._stopped

    def _add(self, token: int) -> str:
        text = self._text.add(token)
        if self._unmatched:
            self._unmatched -= 1
            return text
        if token in self._special:
            return "" if self._stopped else self._matcher.flush() + text
        text, self._stopped = self._matcher.push(text)
        return text


class AnswerTexts:
    """Makes an `AnswerText` for each sequence. Those with the same stop strings share one automaton, which lives for
    as long as one of them does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stops: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()

    def __call__(
        self, stop: tuple[str, ...], min_tokens: int, shown: Collection[int] = (), *, keep_stop: bool = False
    ) -> AnswerText:
        stops = self._stops.get(stop)
        if stops is None:
            stops = self._stops[stop] = StopStrings(stop)
        return AnswerText(self._tokenizer, stops, min_tokens, shown, keep_stop=keep_stop)
