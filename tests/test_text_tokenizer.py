"""The default model's tokenizer and template against ids that transformers made, and against the library's decode."""

from __future__ import annotations

import dataclasses
import itertools
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rules
from tokenizers import models

from headway.artifacts.files import ModelFiles
from headway.core.errors import UnsupportedModel
from headway.text.chat.template import ChatTemplate
from headway.text.detokenize import Detokenizer
from headway.text.tokenizer import _MOST_COMPOSED, Tokenizer, _byte_spelling

GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2-135m-greedy-fp32.json").read_text())
HARD = [
    "👩‍👩‍👧‍👦",
    "é",
    "e\u0301",
    "日本",
    "\u200b",
    "\n\n",
    "  ",
    "<|im_end|>",
    "<|im_start|>",
    "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "½",
    "x",
    "ß",
    "\x00",
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(HARD), max_size=8).map("".join))


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:20])
def test_golden_prompts_become_the_golden_ids_and_answers_the_golden_text(
    smollm2: ModelFiles, tokenizer: Tokenizer, case: dict[str, object]
) -> None:
    prompt = ChatTemplate(smollm2).render([{"role": "user", "content": case["prompt"]}])
    assert tokenizer.encode(prompt, add_bos=False) == case["prompt_ids"]
    assert tokenizer.decode(case["greedy_ids"], skip_special=False) == case["text"]
    whole = Detokenizer(tokenizer, skip_special=False)
    assert "".join(whole.push([id]) for id in case["greedy_ids"]) + whole.finish() == case["text"]


@pytest.fixture(scope="module")
def spelled(tokenizer: Tokenizer) -> set[int]:
    """The bytes that the vocabulary has a token for; this one lacks a few, and drops them."""
    tokens = (tokenizer.token_bytes(id) for id in range(tokenizer.vocabulary))
    return {token[0] for token in tokens if len(token) == 1}


@given(text=TEXTS, cuts=st.lists(st.integers(0, 40)))
def test_deltas_of_any_split_together_are_the_text_and_never_show_half_a_character(
    tokenizer: Tokenizer, spelled: set[int], text: str, cuts: list[int]
) -> None:
    ids = tokenizer.encode(text, add_bos=False)
    detokenizer = Detokenizer(tokenizer, skip_special=False)
    borders = itertools.pairwise([0, *sorted(cuts), 10**6])
    deltas = "".join(detokenizer.push(ids[start:end]) for start, end in borders)
    if spelled.issuperset(text.encode()):
        assert deltas == text
    assert deltas + detokenizer.finish() == tokenizer.decode(ids, skip_special=False)


@given(ids=st.lists(st.integers(0, 49151), max_size=30), skip=st.booleans())
def test_deltas_of_any_ids_together_are_what_the_library_decodes(
    tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    deltas = "".join(detokenizer.push([id]) for id in ids) + detokenizer.finish()
    assert deltas == tokenizer.decode(ids, skip_special=skip)


def test_an_emoji_over_several_tokens_appears_at_its_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🦜", add_bos=False)
    detokenizer = Detokenizer(tokenizer)
    assert len(ids) > 1
    assert [detokenizer.push([id]) for id in ids] == [""] * (len(ids) - 1) + ["🦜"]
    detokenizer.push(ids[:-1])
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_are_left_out_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>", add_bos=False)
    assert ids[0] == 1 and ids[-1] == 2 and {0, 1, 2} <= tokenizer.special_ids
    assert Detokenizer(tokenizer).push(ids) == "hi"
    assert Detokenizer(tokenizer, skip_special=False).push(ids) == "<|im_start|>hi<|im_end|>"


def test_the_bytes_of_all_tokens_are_those_that_the_library_decodes(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary == 49152
    for id in range(tokenizer.vocabulary):
        assert tokenizer.token_bytes(id).decode("utf-8", "replace") == tokenizer.decode([id], skip_special=False)
    assert tokenizer.token_bytes(10**6) == b"" and tokenizer.token(10**6) is None


def test_the_begin_token_comes_first_where_the_files_say_so(smollm2: ModelFiles) -> None:
    plain = Tokenizer(smollm2).encode("hi")
    starting = Tokenizer(dataclasses.replace(smollm2, add_bos=True))
    assert starting.encode("hi") == [1, *plain] == Tokenizer(smollm2).encode("hi", add_bos=True)
    assert starting.encode("hi", add_bos=False) == plain
    nothing = Tokenizer(dataclasses.replace(smollm2, bos_id=None, add_bos=True))
    assert nothing.encode("hi") == plain


def test_a_tokenizer_that_is_not_byte_level_encodes_but_does_not_stream(smollm2: ModelFiles, tmp_path: Path) -> None:
    rules = Rules(models.WordLevel({"hi": 0}, unk_token="hi"))
    rules.save(str(tmp_path / "tokenizer.json"))
    words = Tokenizer(dataclasses.replace(smollm2, tokenizer=tmp_path / "tokenizer.json"))
    assert words.encode("hi") == [0]
    with pytest.raises(UnsupportedModel, match="byte-level"):
        Detokenizer(words)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        Tokenizer(dataclasses.replace(smollm2, tokenizer=tmp_path / "tokenizer.json"))


@pytest.fixture(scope="module", params=["", "NFC"])
def normalizing(
    request: pytest.FixtureRequest, smollm2: ModelFiles, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """The default model's tokenizer as it is, and as one that has a token for each byte and composes characters."""
    if not request.param:
        return Tokenizer(smollm2)
    model = json.loads(smollm2.tokenizer.read_text())["model"]
    for character in _byte_spelling():
        model["vocab"].setdefault(character, len(model["vocab"]))
    change: dict[str, object] = {"model": model, "normalizer": {"type": request.param}}
    found = _changed(smollm2, tmp_path_factory.mktemp("tokenizer"), change)
    assert found.fewest_tokens("x" * 810) == 10
    return found


def _changed(files: ModelFiles, folder: Path, change: dict[str, object]) -> Tokenizer:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(files.tokenizer.read_text()) | change))
    return Tokenizer(dataclasses.replace(files, tokenizer=file))


@given(text=st.one_of(st.text(), st.text(alphabet=" \n\x02=-ae\u0301\u212b\u1fbe\u0308\u0341", max_size=400)))
@example(text="\u1fbe\u0308\u0341" * 300)
@example(text="e\u0301" * 300)
@example(text="\x02" * 300)
@example(text=("\n" + " " * 80) * 30)
def test_no_text_has_fewer_tokens_than_its_length_tells(normalizing: Tokenizer, text: str) -> None:
    assert normalizing.fewest_tokens(text) <= len(normalizing.encode(text, add_bos=False))


@pytest.mark.parametrize(
    ("change", "fewest"),
    [
        ({}, 10),
        ({"normalizer": {"type": "NFC"}}, 0),  # some bytes are in no token, and what composes may consist of them
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, 0),
        ({"truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}}, 0),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}}, 0),
        ({"pre_tokenizer": {"type": "Whitespace"}}, 0),
    ],
)
def test_a_tokenizer_that_may_drop_text_bounds_nothing(
    smollm2: ModelFiles, tmp_path: Path, change: dict[str, object], fewest: int
) -> None:
    assert _changed(smollm2, tmp_path, change).fewest_tokens("x" * 810) == fewest


def test_composing_makes_no_more_bytes_one_than_the_bound_assumes() -> None:
    """Over all characters that have parts: the longest way to spell one that composing (NFC) leaves as it is."""
    composed = [chr(c) for c in range(0x110000) if unicodedata.decomposition(chr(c)) or 0xAC00 <= c < 0xD7A4]
    parts = {character: unicodedata.normalize("NFD", character) for character in composed}
    longest = {part: len(part.encode()) for decomposed in parts.values() for part in decomposed}
    for character, decomposed in parts.items():
        if len(decomposed) == 1:
            longest[decomposed] = max(longest[decomposed], len(character.encode()))
    for character, decomposed in parts.items():
        size, spelled = len(character.encode()), sum(map(longest.__getitem__, decomposed))
        assert size <= spelled, "whole it is not longer than in parts"
        assert spelled <= _MOST_COMPOSED * size or not unicodedata.is_normalized("NFC", character)
    assert all(spelled <= _MOST_COMPOSED * len(part.encode()) for part, spelled in longest.items())
