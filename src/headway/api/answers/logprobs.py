"""Logprobs as OpenAI's and vLLM's clients expect them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from headway.core.plan import TokenLogprob
from headway.text.detokenize import Detokenizer
from headway.text.tokenizer import Tokenizer

#: Tokens with what is reported about them; the first of a prompt has nothing before it, so nothing is.
Told: TypeAlias = Sequence[tuple[int, TokenLogprob | None]]

#: JSON has no infinity; what no sampling could choose is this unlikely (as OpenAI and vLLM have it).
LOWEST = -9999.0


class Spelling:
    """How one model's tokens read, one at a time. A token that is not whole UTF-8 reads `bytes:\\xf0\\x9f`. Special
    tokens in `shown` are part of the text."""

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = shown

    def text(self, token: int) -> str:
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def chat(self, told: Told) -> dict[str, Any]:
        """`logprobs` of a chat choice."""
        return {"content": [self._entry(one) for _, one in told if one is not None], "refusal": None}

    def plain(self, told: Told, offsets: Sequence[int]) -> dict[str, Any]:
        """`logprobs` of a plain completion's choice; `offsets` are characters of its text before each token."""
        return {
            "text_offset": list(offsets),
            "tokens": [self.text(token) for token, _ in told],
            "token_logprobs": [None if one is None else _finite(one.logprob) for _, one in told],
            "top_logprobs": [None if one is None else self._by_text(one) for _, one in told],
        }

    def prompt(self, told: Told) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: by token id, the prompt's own token and the likeliest ones."""
        return [None if one is None else self._by_id(one) for _, one in told]

    def offsets(self) -> Offsets:
        return Offsets(self._tokenizer, self._shown)

    def _entry(self, one: TokenLogprob) -> dict[str, Any]:
        top = [self._row(token, value) for token, value in one.top]
        return {**self._row(one.token, one.logprob), "top_logprobs": top}

    def _row(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token)
        return {"token": self.text(token), "logprob": _finite(logprob), "bytes": list(raw)}

    def _by_text(self, one: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens, and the token itself where it is none of them: one more than were asked for."""
        return {self.text(token): _finite(value) for token, value in (*one.top, (one.token, one.logprob))}

    def _by_id(self, one: TokenLogprob) -> dict[str, Any]:
        rows = [(one.token, one.logprob, one.rank)]
        rows += [(token, value, rank) for rank, (token, value) in enumerate(one.top, 1) if token != one.token]
        return {
            str(token): {"logprob": _finite(value), "rank": rank, "decoded_token": self.text(token)}
            for token, value, rank in rows
        }


class Offsets:
    """Where in the growing text of one choice its tokens begin, in characters."""

    def __init__(self, tokenizer: Tokenizer, shown: Collection[int] = ()) -> None:
        self._text = Detokenizer(tokenizer, shown=shown)
        self._length = 0

    def take(self, told: Told) -> list[int]:
        found = []
        for token, _ in told:
            found.append(self._length)
            self._length += len(self._text.push((token,)))
        return found


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
