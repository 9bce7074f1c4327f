"""`--weights auto`: int8 where that is faster on this machine and costs this model little, which is measured once and
told with its numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles
from headway.compute import int8_trial
from headway.compute.embed import formats as encoder_formats
from headway.compute.int8_trial import FASTER, Choice, KeptTrials, Trial, faster
from headway.compute.text import formats
from headway.compute.text.executor import TextExecutor
from headway.compute.text.formats import LEAST_TOKENS, MOST_DIVERGENCE, MOST_TOKENS, TRIAL_BLOCKS
from headway.core.plan import Span
from headway.replica.trials import encoder_trial, text_trial
from headway.text.tokenizer import Tokenizer
from native_library import library
from serving import headway, serving
from tiny_encoders import CROSS_ENCODERS, files_of, oracle, text
from tiny_encoders import load as load_encoder

VOCAB = 50
PLAIN = formats.plain_format("auto")


def untouched(*_: object) -> Any:
    raise AssertionError("a trial began")


UNTOUCHED = Trial("t", untouched, untouched)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine counts as one where int8 is faster: what is tested is what follows from that."""
    for module in (formats, encoder_formats):
        monkeypatch.setattr(module, "faster", lambda native: None if native == "off" else ("avx2", "avxvnni"))


# -- by hand --------------------------------------------------------------------------------------------------


class Table:
    """A model whose logits after a token follow from that token alone: its rows, `noise` times as far off."""

    def __init__(self, scale: float, noise: float) -> None:
        chance = np.random.default_rng(5)
        self.rows = scale * chance.standard_normal((VOCAB, VOCAB)) + noise * chance.standard_normal((VOCAB, VOCAB))

    def logits(self, spans: tuple[Span, ...], rows: list[int]) -> torch.Tensor:
        (span,) = spans
        return torch.tensor(self.rows[list(span.tokens)][rows], dtype=torch.float32)

    def log_probabilities(self, tokens: list[int]) -> np.ndarray:
        rows = self.rows[tokens[:-1]]
        return rows - np.log(np.exp(rows).sum(-1, keepdims=True))

    def text(self, length: int) -> list[int]:
        """A text as the model expects it: always the likeliest token, but a chance one now and then, so that it
        does not go round."""
        tokens, chance = [0], np.random.default_rng(6)
        while len(tokens) < length:
            likely = int(self.rows[tokens[-1]].argmax())
            tokens.append(likely if chance.random() < 0.8 else int(chance.integers(VOCAB)))
        return tokens


def chosen(
    kept: Path, tokens: list[int], load: Callable[[str], Any], name: str = "t", weights: str = "auto",
    native: str = "auto", longest: int = 1 << 20,
) -> Choice:  # fmt: skip
    trial = Trial(name, lambda: [tokens])
    return formats.choose_weights(
        weights,
        native,
        trial,
        KeptTrials(kept),
        load,
        vocab=VOCAB,
        longest=longest,  # type: ignore[arg-type]
    )


def tables(scale: float, noise: float) -> dict[str, Table]:
    return {PLAIN: Table(scale, 0.0), "int8": Table(scale, noise)}


@pytest.mark.parametrize(("noise", "taken"), [(0.02, True), (0.6, False)])
def test_int8_is_taken_where_the_divergence_by_hand_is_within_the_bound(
    tmp_path: Path, noise: float, taken: bool
) -> None:
    models = tables(3.0, noise)
    tokens = models[PLAIN].text(200)
    found = chosen(tmp_path, tokens, models.__getitem__)
    p, q = (models[name].log_probabilities(tokens) for name in (PLAIN, "int8"))
    divergence = (np.exp(p) * (p - q)).sum(-1).mean()
    following = np.arange(199), tokens[1:]
    rise = math.exp((p[following] - q[following]).mean()) - 1
    assert bool(divergence <= MOST_DIVERGENCE) is taken
    assert found.weights == ("int8" if taken else PLAIN)
    costs = (
        f"a divergence of {divergence:.3f} nats from {PLAIN} (at most {MOST_DIVERGENCE}) and perplexity "
        f"{rise:+.1%} on 199 tokens"
    )
    assert found.why == (f"auto: AVX-VNNI; {costs}" if taken else f"auto: int8 would cost too much: {costs}")


@pytest.mark.parametrize(
    ("tokens", "scale", "says"),
    [
        ([VOCAB] * 200, 3.0, "its tokens are not those of a text"),
        ([1] * (LEAST_TOKENS - 1), 3.0, "its tokens are not those of a text"),
        (None, 0.0, "its perplexity on 199 tokens is 50, of a vocabulary of 50"),
    ],
    ids=["another vocabulary", "too short", "weights that were never trained"],
)
def test_where_the_cost_cannot_be_measured_the_choice_says_so_and_loads_no_int8(
    tmp_path: Path, tokens: list[int] | None, scale: float, says: str
) -> None:
    plain = Table(scale, 0.0)
    found = chosen(tmp_path, tokens or Table(3.0, 0.0).text(200), {PLAIN: plain}.__getitem__)
    assert found == Choice(PLAIN, f"auto: what int8 costs cannot be measured: {says}")


def test_numbers_that_are_not_finite_are_no_reason_for_int8(tmp_path: Path) -> None:
    models = tables(3.0, 0.0)
    models["int8"].rows[:] = np.nan
    found = chosen(tmp_path, models[PLAIN].text(200), models.__getitem__)
    assert found.weights == PLAIN and "cannot be measured" in found.why


def test_a_long_text_is_cut_to_what_the_model_and_its_blocks_hold(tmp_path: Path) -> None:
    models = tables(3.0, 0.01)
    tokens = models[PLAIN].text(2 * MOST_TOKENS)
    assert f"on {MOST_TOKENS - 1} tokens" in chosen(tmp_path, tokens, models.__getitem__).why
    assert "on 99 tokens" in chosen(tmp_path / "short", tokens, models.__getitem__, longest=100).why


def test_what_was_measured_is_known_at_the_next_start_and_for_nothing_else(tmp_path: Path) -> None:
    models = tables(3.0, 0.01)
    tokens = models[PLAIN].text(200)
    loads: list[str] = []

    def load(weights: str) -> Table:
        loads.append(weights)
        return models[weights]

    first = chosen(tmp_path, tokens, load)
    assert first.weights == "int8" and loads == [PLAIN, "int8"]
    assert chosen(tmp_path, tokens, load) == first and len(loads) == 2
    assert chosen(tmp_path, tokens, load, name="other text") == first and len(loads) == 4
    (tmp_path / "int8_trial.json").write_bytes(b'{"a": [1.')
    assert chosen(tmp_path, tokens, load) == first and len(loads) == 6


@pytest.mark.parametrize("change", ["version", "torch", "kernels", "interface"])
def test_another_version_or_other_kernels_are_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    kept, kernels = KeptTrials(tmp_path), ("avx2", "avxvnni")
    assert kept.measured(kernels, "bf16", Trial("t", list), lambda: (1.0,)) == (1.0,)
    assert KeptTrials(tmp_path).measured(kernels, "bf16", UNTOUCHED, lambda: (2.0,)) == (1.0,)
    if change == "version":
        monkeypatch.setattr(int8_trial.headway, "__version__", "0.0.0")
    elif change == "torch":
        monkeypatch.setattr(torch, "__version__", "0.0.1")
    elif change == "kernels":
        kernels = ("avx512", "avx512vnni")
    else:
        monkeypatch.setattr(int8_trial, "ABI", -1)
    assert KeptTrials(tmp_path).measured(kernels, "bf16", Trial("t", list), lambda: (2.0,)) == (2.0,)


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8", "int4"])
def test_a_format_that_is_asked_for_is_never_measured(tmp_path: Path, weights: str) -> None:
    asked = formats.choose_weights(
        weights,
        "auto",
        UNTOUCHED,
        KeptTrials(tmp_path),
        untouched,
        vocab=VOCAB,
        longest=512,  # type: ignore[arg-type]
    )
    assert asked == Choice(weights)


def test_without_fast_kernels_or_a_text_nothing_is_measured(tmp_path: Path) -> None:
    def auto(native: str, trial: Trial | None) -> Choice:
        return formats.choose_weights(
            "auto",
            native,
            trial,
            KeptTrials(tmp_path),
            untouched,
            vocab=VOCAB,
            longest=512,  # type: ignore[arg-type]
        )

    off = auto("off", UNTOUCHED)
    assert off.weights == PLAIN and off.why.endswith("only with native kernels for AVX-512 VNNI or AVX-VNNI")
    assert auto("auto", None) == Choice(PLAIN, "auto: there is no text to measure int8 on")


def test_the_kernels_that_make_int8_faster_are_those_of_the_level_that_runs() -> None:
    found = library()
    for level in found.levels:
        dots = found.dots_of(level)
        assert faster(level) == ((level, dots) if dots in FASTER else None)
    assert faster("off") is None


# -- real models ----------------------------------------------------------------------------------------------


def test_the_default_model_is_served_in_int8_by_what_is_measured_on_it(smollm2: ModelFiles, tmp_path: Path) -> None:
    library()
    trial = text_trial(lambda: Tokenizer(smollm2))
    (tokens,) = trial.read()
    assert 256 <= len(tokens) <= MOST_TOKENS

    def load(weights: str) -> TextExecutor:
        return TextExecutor.load(
            smollm2, cache=Cache.at(None).converted, blocks=TRIAL_BLOCKS, weights=weights, threads=2
        )

    found = formats.choose_weights(
        "auto", "auto", trial, KeptTrials(tmp_path), load, vocab=49152, longest=8192
    )  # fmt: skip
    ((count, loss, rounded, divergence),) = json.loads((tmp_path / "int8_trial.json").read_bytes()).values()
    assert found.weights == "int8" and count == len(tokens) - 1
    # prose and code that the model can read, and roundings that show a little
    assert 2 < loss < 3.5 and 0.001 < divergence < MOST_DIVERGENCE and abs(rounded - loss) < 0.05


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_model_that_was_never_trained_is_no_slower_and_stays_as_it_was(tmp_path: Path, architecture: str) -> None:
    library()
    files = resolve(str(tiny_models.write_gguf(tmp_path / "m.gguf", architecture)))
    trial = text_trial(lambda: Tokenizer(files))
    executor = TextExecutor.load(files, cache=tmp_path, blocks=4, trial=trial, threads=1)
    assert executor.facts.weights_format == PLAIN
    assert executor.facts.weights_why.startswith("auto: what int8 costs cannot be measured: its perplexity on ")
    again = TextExecutor.load(files, cache=tmp_path, blocks=4, trial=Trial(trial.name, untouched), threads=1)
    assert again.facts.weights_why == executor.facts.weights_why


@pytest.mark.parametrize(
    ("bound", "kind", "taken"), [(0.99, "bert", True), (1.1, "bert", False), (0, "cross", False)]
)
def test_an_encoders_int8_is_taken_where_its_vectors_keep_their_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: float, kind: str, taken: bool
) -> None:
    library()
    monkeypatch.setattr(encoder_formats, "BOUND", bound)
    files = files_of(oracle("bert", CROSS_ENCODERS) if kind == "cross" else oracle(kind))
    trial = Trial("t", lambda: [list(text(length, length)) for length in (3, 40, 9)])
    facts = load_encoder(files, weights="auto", trial=trial, cache=tmp_path).facts
    assert (facts.weights_format == "int8") is taken
    if kind == "bert":
        assert f"(at least {bound}) on 3 texts" in facts.weights_why
        again = load_encoder(files, weights="auto", trial=Trial("t", untouched), cache=tmp_path).facts
        assert (again.weights_format, again.weights_why) == (facts.weights_format, facts.weights_why)
    else:
        assert facts.weights_why == "auto: no cosine bounds what rounding does to a cross-encoder's scores"


def test_texts_for_encoders_are_sentences_with_their_special_tokens() -> None:
    texts = encoder_trial(lambda: Tokenizer(resolve("minilm-l6"))).read()
    assert 8 <= len(texts) <= 24 and all(tokens[0] == 101 and tokens[-1] == 102 for tokens in texts)
    assert min(map(len, texts)) < 30 < 60 < max(map(len, texts))


# -- a server -------------------------------------------------------------------------------------------------


def test_a_server_by_default_answers_sensibly_and_says_which_format_it_took_and_why(tmp_path: Path) -> None:
    with serving(tmp_path, "--weights", "auto", "--threads", "2") as server:
        prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        assert "Paris" in server.text(prompt, max_tokens=24)
        (model,) = server.get("/v1/models")["data"]
        weights, why = model["headway"]["weights"], model["headway"]["weights_why"]
        told = headway("doctor", "--url", server.url).stdout
        asked = json.loads(headway("doctor", "--url", server.url, "--json").stdout)
    assert weights == ("int8" if faster("auto") else PLAIN) and why.startswith("auto: ")
    if weights == "int8":
        assert f"at most {MOST_DIVERGENCE}) and perplexity " in why
    assert f"Weights of smollm2-135m: {weights} ({why})." in told
    assert asked["seen"]["weights"] == {"smollm2-135m": {"format": weights, "why": why}}
    panel = " ".join((tmp_path / "serve.log").read_text().replace("│", " ").split())
    assert f"in {weights}, held once for all requests ({why})" in panel


def test_a_server_with_state_in_int8_answers_sensibly_and_holds_66_bytes_a_head(tmp_path: Path) -> None:
    with serving(tmp_path, "--weights", "bf16", "--state", "int8", "--threads", "2") as server:
        prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        assert "Paris" in server.text(prompt, max_tokens=24)
        (model,) = server.get("/v1/models")["data"]
    loaded = model["headway"]
    assert (loaded["state"], loaded["block_bytes"]) == ("int8", loaded["block_tokens"] * 2 * 30 * 3 * (64 + 2))
