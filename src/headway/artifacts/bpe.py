"""A `tokenizer.json` from the vocabulary and merges that a GGUF file carries.

Byte-level BPE only: Sennrich et al. 2016 over the bytes of GPT-2 (Radford et al. 2019). How text is split
before merging is not in the file; GGUF names it (`tokenizer.ggml.pre`), and each name stands for the rules that
the model's own public `tokenizer.json` holds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headway.artifacts.cache import write_once
from headway.artifacts.gguf_config import missing
from headway.core.errors import ArtifactError, UnsupportedModel

#: Part of the cached file's name: raise it when the same metadata would give another tokenizer.
_BUILD = 1


class TokenType(enum.IntEnum):
    """GGUF's kinds of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Splitting:
    """How one family splits text before merging.

    pattern         pieces by regular expression, or None for GPT-2's own, which `tokenizers` has built in
    single_digits   every digit is a piece, before anything else
    nfc             text is composed first (Unicode NFC)
    whole_pieces    a piece that is a token is taken as it is, whatever the merges would give
    adds_bos        whether a plain text starts with the begin token when the file does not say
    """

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole_pieces: bool = False
    adds_bos: bool = False


def _words(digits: str) -> str:
    """The pattern that Llama 3 and Qwen 2 share, but for how many digits make a piece."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_SPLITTINGS = {
    "default": _Splitting(),
    "gpt-2": _Splitting(),
    "smollm": _Splitting(single_digits=True),
    "llama-bpe": _Splitting(_words(r"\p{N}{1,3}"), whole_pieces=True, adds_bos=True),
    "qwen2": _Splitting(_words(r"\p{N}"), nfc=True),
}


def build_once(name: str, metadata: Mapping[str, Any], folder: Path) -> Path:
    """The path of the tokenizer in `folder`, built if it is not there yet. Raises UnsupportedModel."""
    splitting = _splitting(name, metadata)
    path = folder / f"tokenizer-{_BUILD}.json"
    if not path.exists():
        write_once(path, _build(name, metadata, splitting).to_str())
    return path


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a plain text starts with the begin token."""
    splitting = _SPLITTINGS[metadata["tokenizer.ggml.pre"]]
    return bool(metadata.get("tokenizer.ggml.add_bos_token", splitting.adds_bos))


def _splitting(name: str, metadata: Mapping[str, Any]) -> _Splitting:
    model = metadata.get("tokenizer.ggml.model")
    kind = metadata.get("tokenizer.ggml.pre")
    for key, value in (("tokenizer.ggml.model", model), ("tokenizer.ggml.pre", kind)):
        if value is None:
            raise missing(name, key)
    if model == "llama":
        raise UnsupportedModel(name, "a SentencePiece tokenizer built from GGUF metadata")
    if model != "gpt2":
        raise UnsupportedModel(name, f"a GGUF tokenizer of type {model!r}")
    if kind not in _SPLITTINGS:
        raise UnsupportedModel(name, f"the pre-tokenizer {kind!r} (known: {', '.join(_SPLITTINGS)})")
    if metadata.get("tokenizer.ggml.add_eos_token", False):
        raise UnsupportedModel(name, "an EOS token after every prompt (tokenizer.ggml.add_eos_token)")
    return _SPLITTINGS[kind]


def _build(name: str, metadata: Mapping[str, Any], splitting: _Splitting) -> Tokenizer:
    for key in ("tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
        if key not in metadata:
            raise missing(name, key)  # without types no special token could be told from ordinary text
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    if len(types) != len(tokens):
        raise ArtifactError(f"{name}: {len(tokens)} tokens, but {len(types)} types (tokenizer.ggml.token_type)")
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or any(len(merge) != 2 for merge in merges):
        raise UnsupportedModel(name, "a vocabulary with duplicate tokens, or merges that do not have two parts")
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=splitting.whole_pieces))
    except Exception as error:  # the library raises no narrower class
        raise ArtifactError(f"{name}: no tokenizer can be built from its tokens and merges: {error}") from error
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(splitting)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([_added(tokens[id], type) for id, type in enumerate(types) if type in _ADDED])
    return tokenizer


def _pre_tokenizer(splitting: _Splitting) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
    return pre_tokenizers.Sequence(steps)


_ADDED = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)


def _added(token: str, type: int) -> AddedToken:
    """A token that is recognised as a whole in any text; special ones are left out of decoded answers."""
    return AddedToken(token, special=type != TokenType.USER_DEFINED, normalized=False)
