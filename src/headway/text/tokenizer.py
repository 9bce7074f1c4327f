"""Text to token ids and back, by the model's own `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Rules
from tokenizers import decoders, models

from headway.artifacts.files import ModelFiles
from headway.core.errors import UnsupportedModel
from headway.text.frame import Frame

#: From this length on a text is encoded as a batch of one: only then does the library let go of the interpreter, so
#: that other threads go on (a megabyte takes a second). For short texts that costs more than it gives.
_LONG_CHARACTERS = 4096
#: Composing (NFC) makes at most one byte of so many: three and a half, of U+1FBE U+0308 U+0341.
_MOST_COMPOSED = 4
#: Steps before the merges that lose no byte of a text; `Split` does not, unless it removes what it splits at.
_KEEPING = {"ByteLevel", "Digits", "Split"}
#: Steps that leave letters and digits of ASCII what they are, and a space a space (or drop one of several in a row).
_NORMALIZING = {
    "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Strip", "StripAccents",
}  # fmt: skip
_PARTING = {"BertPreTokenizer", "Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"}
_SPACE = re.compile(r"[ \t\r\n]")
#: A word's beginning that no normalizer drops, behind a space that all of them know.
_WORD = re.compile(r"(?:\A|(?<=[ \t\r\n]))[A-Za-z0-9]")


def _leaves_words(step: dict[str, Any]) -> bool:
    collapses = step["type"] == "Replace" and step["pattern"] == {"Regex": " {2,}"} and step["content"] in (" ", "▁")
    return step["type"] in _NORMALIZING or collapses


def _parts_at_spaces(step: dict[str, Any]) -> bool:
    kind = step["type"]
    return kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit") or (kind == "Metaspace" and step["split"])


class Tokenizer:
    """One model's tokenizer. Nothing here changes after construction but a memo of token bytes.

    Raises UnsupportedModel if the file is of a kind that the `tokenizers` library does not know.
    """

    def __init__(self, files: ModelFiles) -> None:
        try:
            self._rules = Rules.from_file(str(files.tokenizer))
        except Exception as error:  # the library raises bare Exception
            raise UnsupportedModel(files.name, f"a tokenizer.json that cannot be read ({error})") from error
        self._modules = files.modules
        if files.modules is not None:  # lengths are the server's affair: what is cut off is said
            self._rules.no_truncation()
            self._rules.no_padding()
        self._name = files.name
        self._begin = (files.bos_id,) if files.bos_id is not None else ()
        self._add_bos = files.add_bos
        added = self._rules.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.added = {token.content: id for id, token in added.items()}
        self._bytes: dict[int, bytes] = {}
        self._byte_level = isinstance(self._rules.decoder, decoders.ByteLevel)

    @cached_property
    def frame(self) -> Frame:
        """The special tokens around a text. Raises UnsupportedModel for a tokenizer that does more than that."""
        return Frame.of(self._rules, self._name)

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

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The own tokens of each text, without a begin token. The library lets go of the interpreter meanwhile, and
        uses several cores."""
        return [each.ids for each in self._rules.encode_batch_fast(list(texts), add_special_tokens=False)]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each of the text's own tokens, which characters it stands for: (start, end)."""
        (encoding,) = self._rules.encode_batch([text], add_special_tokens=False)
        return list(encoding.offsets)

    def encode_with_special(self, text: str, pair: str | None = None) -> tuple[list[int], int]:
        """An encoder's input: the text's token ids, or those of `text` and `pair`, with the special tokens that the
        model wants around them, however many there are; and where the second text begins (0: there is none, or the
        model tells the two apart by special tokens alone)."""
        texts = [text] if pair is None else [text, pair]
        if self._modules is not None and self._modules.lowercase:
            texts = [each.lower() for each in texts]
        if sum(map(len, texts)) < _LONG_CHARACTERS:
            encoding = self._rules.encode(texts[0], None if pair is None else texts[1])
        else:
            (encoding,) = self._rules.encode_batch([texts[0] if pair is None else tuple(texts)])
        second = encoding.type_ids
        return encoding.ids, second.index(1) if pair is not None and 1 in second else 0

    def fewest_tokens(self, text: str) -> int:
        """No encoding of `text` has fewer tokens: known from its length, or the number of its words, without
        tokenising it. 0 if this tokenizer's rules do not tell."""
        if self._longest_token is None:
            return len(_WORD.findall(text)) if self._splits_words else 0
        kept = size = len(data := text.encode())
        if self._rules.normalizer is not None:
            # one ASCII character is lost to each other character at most, as the letter below an accent
            kept = max(size // _MOST_COMPOSED, 3 * len(text) - 2 * size)
        elif self._dropped:
            kept = len(data.translate(None, self._dropped))
        return -(-kept // self._longest_token)

    @cached_property
    def _splits_words(self) -> bool:
        """Whether each word is a token of its own, or several: one that is not known is one token however long it is,
        so lengths tell nothing. Only words that begin with a letter or digit of ASCII are sure to be left by a
        normalizer."""
        rules = self._rules
        return (
            isinstance(rules.model, models.WordPiece | models.Unigram)
            and all(map(_leaves_words, _steps(rules.normalizer, "normalizers")))
            and any(_parts_at_spaces(step) for step in _steps(rules.pre_tokenizer, "pretokenizers"))
            and all(step["type"] in _PARTING for step in _steps(rules.pre_tokenizer, "pretokenizers"))
            and not any(_SPACE.search(token.content) for token in rules.get_added_tokens_decoder().values())
            and rules.truncation is None
        )

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
