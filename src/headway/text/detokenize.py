"""Token ids to text as they come: what is emitted is final, and no character is shown before it is whole."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from headway.text.tokenizer import Tokenizer


class Detokenizer:
    """The growing text of one sequence.

    All deltas together equal the decoded whole. A character spread over several tokens is held back until its last
    byte is there, so U+FFFD appears only for bytes that can never become UTF-8. Work per token is proportional to
    its own bytes. With `skip_special` special tokens add nothing, except those in `shown`.

    Raises UnsupportedModel at once for a tokenizer that is not byte-level.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, shown: Collection[int] = ()) -> None:
        tokenizer.token_bytes(0)
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids.difference(shown) if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Add tokens; return the text that became certain."""
        return "".join(map(self.add, ids))

    def add(self, id: int) -> str:
        """The same for one token."""
        return "" if id in self._skipped else self._decoder.decode(self._tokenizer.token_bytes(id))

    def finish(self) -> str:
        """What was held back, as U+FFFD, since the rest of its character will not come."""
        return self._decoder.decode(b"", final=True)
