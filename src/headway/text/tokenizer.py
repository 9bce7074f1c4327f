"""Text to token ids and back, by the model's own `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Rules
from tokenizers import decoders, models

from headway.artifacts.files import ModelFiles
from headway.core.errors import UnsupportedModel

#: From this length on a text is encoded as a batch of one: only then does the library let go of the interpreter, so
#: that other threads go on (a megabyte takes a second). For short texts that costs more than it gives.
_LONG_CHARACTERS = 4096
#: Composing (NFC) makes at most one byte of so many: three and a half, of U+1FBE U+0308 U+0341.
_MOST_COMPOSED = 4
#: Steps before the merges that lose no byte of a text; `Split` does not, unless it removes what it splits at.
_KEEPING = {"ByteLevel", "Digits", "Split"}


class Tokenizer:
    """One model's tokenizer. Nothing here changes after construction but a memo of token bytes.

    Raises UnsupportedModel if the file is of a kind that the `tokenizers` library does not know.
    """

    def __init__(self, files: ModelFiles) -> None:
        try:
            self._rules = Rules.from_file(str(files.tokenizer))
        except Exception as error:  # the library raises bare Exception
            raise UnsupportedModel(files.name, f"a tokenizer.json that cannot be read ({error})") from error
        self._name = files.name
        self._begin = (files.bos_id,) if files.bos_id is not None else ()
        self._add_bos = files.add_bos
        added = self._rules.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.added = {token.content: id for id, token in added.items()}
        self._bytes: dict[int, bytes] = {}
        self._byte_level = isinstance(self._rules.decoder, decoders.ByteLevel)

    @property
    def vocabulary(self) -> int:
        """The number of tokens, added ones included."""
        return self._rules.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """The text's token ids; special tokens spelled out in it become those tokens.

        With `add_bos` the begin token comes first; None means what the model's files say for a plain prompt. A
        rendered chat template spells its own begin token, so it is encoded with False.
        """
        begin = self._begin if (self._add_bos if add_bos is None else add_bos) else ()
        if len(text) < _LONG_CHARACTERS:
            return [*begin, *self._rules.encode(text, add_special_tokens=False).ids]
        (encoding,) = self._rules.encode_batch_fast([text], add_special_tokens=False)
        return [*begin, *encoding.ids]

    def fewest_tokens(self, text: str) -> int:
        """No encoding of `text` has fewer tokens: known from its length alone, without tokenising it. 0 if this
        tokenizer's rules do not tell."""
        if self._longest_token is None:
            return 0
        kept = size = len(data := text.encode())
        if self._rules.normalizer is not None:
            # one ASCII character is lost to each other character at most, as the letter below an accent
            kept = max(size // _MOST_COMPOSED, 3 * len(text) - 2 * size)
        elif self._dropped:
            kept = len(data.translate(None, self._dropped))
        return -(-kept // self._longest_token)

    @cached_property
    def _dropped(self) -> bytes:
        """The bytes that no token spells: they vanish from a text."""
        return bytes(byte for character, byte in _BYTES.items() if self._rules.token_to_id(character) is None)

    @cached_property
    def _longest_token(self) -> int | None:
        """Bytes of the longest token. None where one token may stand for text of any length: whitespace that an added
        token swallows, or what a normalizer or a split removes."""
        rules, added = self._rules, [*self._rules.get_added_tokens_decoder().values()]
        keeps_all = (
            isinstance(rules.model, models.BPE)
            and (rules.normalizer is None or not self._dropped)
            and all(step["type"] == "NFC" for step in _steps(rules.normalizer, "normalizers"))
            and all(
                step["type"] in _KEEPING and step.get("behavior") != "Removed"
                for step in _steps(rules.pre_tokenizer, "pretokenizers")
            )
            and not any(token.lstrip or token.rstrip for token in added)
            and rules.truncation is None
        )
        # one character spells one byte, but in an added token, which is spelled as it reads
        longest = max(*map(len, rules.get_vocab()), *(len(token.content.encode()) for token in added))
        return longest if keeps_all else None

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of the ids together; bytes that are no UTF-8 become U+FFFD."""
        (text,) = self._rules.decode_batch([list(ids)], skip_special_tokens=skip_special)
        return text

    def token(self, id: int) -> str | None:
        """How the vocabulary spells a token, or None for an id outside it."""
        return self._rules.id_to_token(id)

    def token_bytes(self, id: int) -> bytes:
        """What a token adds to the text, in UTF-8; a character may be spread over several tokens. An id outside
        the vocabulary adds nothing. Raises UnsupportedModel unless the tokenizer is byte-level."""
        if id not in self._bytes:
            if not self._byte_level:
                raise UnsupportedModel(self._name, "text generation with a tokenizer that is not byte-level BPE")
            spelled = self._rules.id_to_token(id) or ""
            try:
                self._bytes[id] = bytes(_BYTES[character] for character in spelled)
            except KeyError:  # an added token is spelled as it reads
                self._bytes[id] = spelled.encode()
        return self._bytes[id]


def _steps(component: Any, within: str) -> Iterator[dict[str, Any]]:
    """What a normalizer or pre-tokenizer does, one after the other; nothing, if there is none."""
    if component is not None:
        state = json.loads(component.__getstate__())
        yield from state[within] if state["type"] == "Sequence" else (state,)


def _byte_spelling() -> dict[str, int]:
    """How byte-level vocabularies spell each byte as one visible character.

    Bytes that are visible in Latin-1 stand for themselves, the others, in order, for U+0100 and on (Radford et
    al. 2019, `bytes_to_unicode` of the GPT-2 release).
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}


_BYTES = _byte_spelling()
