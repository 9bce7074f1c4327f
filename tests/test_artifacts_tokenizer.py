"""tokenizer.json built from a GGUF's vocabulary; oracles: transformers' tokenizers, and byte-pair merging by hand."""

from __future__ import annotations

import itertools
import re
import unicodedata
from pathlib import Path

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

import tiny_models
from headway.artifacts import bpe
from headway.text.tokenizer import _byte_spelling

TOKENS, MERGES = tiny_models.vocabulary()
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEXTS = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(["it's", "WE'LL", " the", "THERE", "1", "23", "4567", "²", "\n", "\r\n", "\t", " ", "  ", "é",
                         "e\u0301", "日本", "👩‍👧", "!?", "…", "\u00a0", "<|end|>", "<tool>", "'", "x="]),
        max_size=12,
    ).map("".join),
)  # fmt: skip


def metadata(pre: str) -> dict[str, object]:
    types = [1] * (len(TOKENS) - 3) + [3, 3, 4]
    names = {"model": "gpt2", "pre": pre, "tokens": TOKENS, "merges": MERGES, "token_type": types}
    return {f"tokenizer.ggml.{name}": value for name, value in names.items()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    kinds = ("gpt-2", "default", "smollm", "llama-bpe", "qwen2")
    return {pre: Tokenizer.from_file(str(bpe.build_once("tiny", metadata(pre), folder / pre))) for pre in kinds}


def by_hand(text: str, pre: str) -> list[int]:
    """Split by the published rules with the `regex` package, then merge the best pair again and again."""
    spelled = {byte: character for character, byte in _byte_spelling().items()}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}
    ids = []
    for part in re.split(r"(<\|begin\|>|<\|end\|>|<tool>)", text):
        if part in TOKENS[-3:]:
            ids.append(TOKENS.index(part))
            continue
        for piece in pieces(unicodedata.normalize("NFC", part) if pre == "qwen2" else part, pre):
            symbols = [spelled[byte] for byte in piece.encode("utf-8")]
            if pre == "llama-bpe" and "".join(symbols) in TOKENS:
                symbols = ["".join(symbols)]
            while pairs := [pair for pair in itertools.pairwise(symbols) if pair in ranks]:
                best = min(pairs, key=ranks.__getitem__)
                symbols = merged(symbols, best)
            ids += [TOKENS.index(symbol) for symbol in symbols]
    return ids


def pieces(text: str, pre: str) -> list[str]:
    if pre in ("llama-bpe", "qwen2"):
        return regex.findall(TikTokenConverter().pattern if pre == "llama-bpe" else PRETOKENIZE_REGEX, text)
    if pre == "smollm":
        parts = regex.findall(r"\p{N}|[^\p{N}]+", text)
        return [piece for part in parts for piece in regex.findall(GPT2, part)]
    return regex.findall(GPT2, text)


def merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    index = 0
    while index < len(symbols) - 1:
        if (symbols[index], symbols[index + 1]) == pair:
            symbols[index : index + 2] = ["".join(pair)]
        index += 1
    return symbols


@pytest.mark.parametrize("pre", ["gpt-2", "default", "smollm", "llama-bpe", "qwen2"])
@given(text=TEXTS)
def test_ids_are_those_of_splitting_and_merging_by_hand(built: dict[str, Tokenizer], pre: str, text: str) -> None:
    assert built[pre].encode(text, add_special_tokens=False).ids == by_hand(text, pre)


@given(text=TEXTS)
def test_gpt_2_and_qwen_2_split_as_transformers_splits(built: dict[str, Tokenizer], text: str) -> None:
    assume("<" not in text and "!" not in text)  # spelled-out special tokens, which differ here
    vocabulary = {token: id for id, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    for pre, kind in (("gpt-2", GPT2Tokenizer), ("qwen2", Qwen2Tokenizer)):
        theirs = kind(vocab=vocabulary, merges=merges, unk_token="!", bos_token="!", eos_token="!", pad_token="!")
        assert built[pre].encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False)


def test_control_tokens_are_special_and_user_defined_ones_are_only_added(built: dict[str, Tokenizer]) -> None:
    added = built["smollm"].get_added_tokens_decoder()
    first = len(TOKENS) - 3
    assert {id: (token.content, token.special) for id, token in added.items()} == {
        first: ("<|begin|>", True),
        first + 1: ("<|end|>", True),
        first + 2: ("<tool>", False),
    }
    assert built["smollm"].get_vocab_size() == len(TOKENS)


def test_llama_starts_a_text_with_its_begin_token_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert bpe.adds_bos(metadata("llama-bpe"))
    assert not bpe.adds_bos(metadata("llama-bpe") | {"tokenizer.ggml.add_bos_token": False})
    assert not bpe.adds_bos(metadata("qwen2"))
    assert bpe.adds_bos(metadata("qwen2") | {"tokenizer.ggml.add_bos_token": True})
