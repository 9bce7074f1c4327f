"""How an input becomes what is evaluated of it: whole, truncated, windows, or the chunks of one pass."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rules

from fake_encoders import CLS, SEP, encoder_files, letters
from headway.api.answers.vectors import as_base64, as_floats, rows_of, shortened, weighted_mean
from headway.api.bodies.windows import even_bounds, late, sized_chunks, split, truncate
from headway.artifacts.files import Modules
from headway.core.errors import UnsupportedModel
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from headway.story.tell.views import PartView
from headway.text.frame import Frame
from headway.text.tokenizer import Tokenizer
from mixed_world import MixedWorld

FRAME = Frame((CLS,), (SEP,), (SEP,), (SEP,))
TOKENS = st.lists(st.integers(4, 40), max_size=90)
LIMITS = st.integers(3, 40)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(encoder_files(tmp_path_factory.mktemp("files"), "e", Modules()))


# -- cutting --------------------------------------------------------------------------------------------------


@given(tokens=TOKENS, limit=LIMITS)
def test_windows_hold_every_token_once_in_order_and_none_is_longer_than_the_model_takes(
    tokens: list[int], limit: int
) -> None:
    cut = split(tokens, FRAME, limit)
    assert all(each.cost <= limit for each in cut.inputs)
    assert all(each.tokens[0] == CLS and each.tokens[-1] == SEP for each in cut.inputs)
    assert [token for each in cut.inputs for token in each.tokens[1:-1]] == tokens
    assert len(cut.inputs) == max(1, -(-len(tokens) // (limit - 2))), "as few as can be"
    lengths = [each.cost for each in cut.inputs]
    assert max(lengths) - min(lengths) <= 1, "equal ones are computed together"
    assert (cut.what == "split") == (len(cut.inputs) > 1)
    if cut.what == "split":
        assert list(cut.weights) == [length - 2 for length in lengths] and cut.given == len(tokens) + 2


@given(tokens=TOKENS, limit=LIMITS)
def test_what_is_truncated_is_the_inputs_beginning_and_its_whole_length_is_told(
    tokens: list[int], limit: int
) -> None:
    cut = truncate(tokens, FRAME, limit)
    (only,) = cut.inputs
    assert only.tokens == (CLS, *tokens[: limit - 2], SEP) and only.cost <= limit
    assert cut.given == len(tokens) + 2 and (cut.what == "truncated") == (cut.given > limit)


@given(chunks=st.lists(st.lists(st.integers(4, 40), min_size=1, max_size=9), min_size=1, max_size=9))
def test_the_chunks_of_a_late_pass_share_out_all_its_positions(chunks: list[list[int]]) -> None:
    cut = late(chunks, FRAME)
    (only,) = cut.inputs
    assert only.tokens == FRAME.single(list(itertools.chain(*chunks)))
    assert only.rows == len(chunks) == len(cut.chunks)
    assert (only.pools[0][0], only.pools[-1][1]) == (0, only.cost), "special tokens belong to the first and the last"
    assert all(before[1] == after[0] for before, after in itertools.pairwise(only.pools))
    own = [only.tokens[1:-1][start:end] for start, end in cut.chunks]
    assert own == [tuple(chunk) for chunk in chunks]


@given(length=st.integers(0, 500), most=st.integers(1, 60))
def test_even_ranges_cover_a_length_without_gaps(length: int, most: int) -> None:
    bounds = even_bounds(length, most)
    assert bounds[0][0] == 0 and bounds[-1][1] == length
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))
    assert all(end - start <= most for start, end in bounds)


def test_chunks_of_a_size_leave_a_shorter_one_at_the_end() -> None:
    assert [list(chunk) for chunk in sized_chunks([1, 2, 3, 4, 5], 2)] == [[1, 2], [3, 4], [5]]


# -- special tokens -------------------------------------------------------------------------------------------


def test_special_tokens_are_read_off_the_tokenizer_for_texts_and_pairs(tokenizer: Tokenizer) -> None:
    assert tokenizer.frame == FRAME
    first, second = (tokenizer.encode(text, add_bos=False) for text in ("paris is", "zq a"))
    assert list(tokenizer.frame.single(first)) == tokenizer.encode_with_special("paris is")[0]
    tokens, begin = tokenizer.frame.pair(first, second)
    assert (list(tokens), begin) == tokenizer.encode_with_special("paris is", "zq a")


def test_a_post_processor_that_does_more_than_add_tokens_around_texts_is_refused() -> None:
    rules = letters()
    rules.enable_truncation(2)  # it takes tokens away
    with pytest.raises(UnsupportedModel, match="post-processor"):
        Frame.of(rules, "odd")


WORDS = st.lists(st.text("abcq.é北\u200b\x00 \u0301-", max_size=12) | st.just("x" * 150), max_size=30)


@given(words=WORDS, between=st.sampled_from([" ", "\n", "  ", "\t"]))
def test_no_text_has_fewer_tokens_than_its_words_say(tokenizer: Tokenizer, words: list[str], between: str) -> None:
    """A word of 150 letters is one unknown token, so lengths tell nothing of such a tokenizer."""
    text = between.join(words)
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_bos=False))


def test_plain_words_are_counted_without_tokenising(tokenizer: Tokenizer) -> None:
    assert tokenizer.fewest_tokens("paris is the capital " * 1000) == 4000


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As of XLM-R: SentencePiece's pieces, spaces collapsed and then part of the next piece."""
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("▁paris", -2.0), ("▁is", -2.0), *((each, -4.0) for each in "abcqparis")]
    rules = Rules(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    collapsing = normalizers.Replace(Regex(" {2,}"), " ")
    rules.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), collapsing])
    rules.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    files = encoder_files(tmp_path_factory.mktemp("unigram"), "unigram", Modules())
    rules.save(str(files.tokenizer))
    return Tokenizer(files)


@given(words=WORDS, between=st.sampled_from([" ", "\n", "  ", "\t"]))
def test_no_text_has_fewer_pieces_than_its_words_say(unigram: Tokenizer, words: list[str], between: str) -> None:
    text = between.join(words)
    assert unigram.fewest_tokens(text) <= len(unigram.encode(text, add_bos=False))


def test_plain_words_of_pieces_are_counted_without_tokenising(unigram: Tokenizer) -> None:
    assert unigram.fewest_tokens("paris is  qqq " * 1000) == 3000
    assert len(unigram.encode("paris is", add_bos=False)) == 2


# -- vectors --------------------------------------------------------------------------------------------------


def test_a_vector_is_cut_first_and_then_made_of_length_1() -> None:
    rows = np.array([[3.0, 4.0, 12.0]], np.float32)
    assert shortened(rows, 2, normalize=True).tolist() == pytest.approx(np.array([[0.6, 0.8]]))
    assert shortened(rows, 2, normalize=False).tolist() == [[3.0, 4.0]]
    assert shortened(np.zeros((1, 3), np.float32), None, normalize=True).tolist() == [[0.0, 0.0, 0.0]]


def test_windows_count_by_their_tokens() -> None:
    rows = rows_of(np.array([1, 0, 0, 1], "<f4").tobytes(), 2)
    assert weighted_mean(rows, (3, 1)).tolist() == [[0.75, 0.25]]


def test_numbers_and_bytes_are_the_same_vector() -> None:
    rows = np.array([[0.1, -2.5], [1e-30, 3.0]], np.float32)
    assert np.array([np.frombuffer(row, "<f4") for row in as_base64(rows)]).tolist() == as_floats(rows)
    assert as_base64(rows[:, :1])[1] == rows[1, :1].tobytes()


# -- the story ------------------------------------------------------------------------------------------------


def test_every_window_is_told_by_its_positions_its_step_and_what_the_model_did() -> None:
    world = MixedWorld(budget=6, seats=2, names=("embed",))
    world.embed("long", 4, 4, 1, 6)

    def told() -> list[str]:
        return [words for words in tell(request_view(world.story, world.story.record("long"), 0)) if "indow" in words]

    assert told()[0] == "Window 1 of 4: 4 positions, not evaluated yet."
    world.step()
    world.engine.plan()
    assert told() == [
        "long is running, 0.0 ms after it arrived: 1 of 4 windows evaluated.",
        "Window 1 of 4: 4 positions, evaluated in step 1 (encode, pool).",
        "Window 2 of 4: 4 positions, in step 2, which runs.",
        "Window 3 of 4: 1 position, in step 2, which runs.",
        "Window 4 of 4: 6 positions, not evaluated yet.",
    ]
    world.engine.abort("it broke")
    assert told()[1] == "Window 2 of 4: 4 positions, in step 2, which gave no result."
    view = request_view(world.story, world.story.record("long"), 0)
    assert view.parts[0] == PartView(done=1, of=1, step=1, positions=4) and view.stages == ("encode", "pool")


def test_of_very_many_windows_the_first_and_the_last_are_told() -> None:
    world = MixedWorld(budget=50, names=("embed",))
    world.embed("book", *[5] * 40)
    world.run()
    lines = [words for words in tell(request_view(world.story, world.story.record("book"), 0)) if "indow" in words]
    assert lines[-2:] == ["and 33 more windows.", "Window 40 of 40: 5 positions, evaluated in step 4 (encode, pool)."]
    assert len(lines) == 9  # with the first sentence
