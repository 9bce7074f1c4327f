"""What `--model` says: one model of a server, and where its options differ from the server's.

    --model NAME --model NAME:key=value:key=value

A key is an option of `headway serve` that a model may have for itself (`OWN`), `share` or `weight`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core import options
from headway.core.config import Memory, ServeOptions
from headway.core.errors import ConfigError
from headway.core.options import option, whole

#: Options of the server that a model may have for itself.
OWN = (
    "served_name", "memory", "block_tokens", "seats", "step_tokens", "gap_ms", "max_context", "policy", "admit",
    "recovery", "weights", "state", "max_bypass", "draft", "prefix_cache",
)  # fmt: skip
#: `pypi:NAME==VERSION` is no setting: its `=` is doubled.
_SETTING = re.compile(r":(?=[A-Za-z][A-Za-z0-9_-]*=(?!=))")


@dataclass(frozen=True)
class Shares:
    """What only a model has. They say something where several models are served."""

    share: int = option(1, "parts of the memory for state, beside the parts of the other models", whole, low=1)
    weight: int = option(1, "parts of the device's time, beside the parts of the other models", whole, low=1)


@dataclass(frozen=True)
class ModelChoice:
    """One model that is to be served.

    source    an alias, a folder, a .gguf file, a Hugging Face id, or pypi:NAME==VERSION/path
    name      its name in the API
    options   the server's options, with what it has for itself in their place
    own       the names of the options that it has for itself
    shares    its parts of memory and time
    """

    source: str
    name: str
    options: ServeOptions
    own: frozenset[str] = frozenset()
    shares: Shares = Shares()

    @property
    def memory(self) -> Memory | None:
        """Memory that is its own; None where it has a share of the server's."""
        return self.options.memory if "memory" in self.own else None


def choose_models(served: ServeOptions) -> tuple[ModelChoice, ...]:
    """The models that `served.model` names, in order. Raises ConfigError for a key that no model can have, a value
    that it cannot have, or two models of one name."""
    choices = tuple(_choice(text, served) for text in served.model)
    if served.served_name is not None and len(choices) > 1:
        text = f"{len(choices)} models are served; name each: --model {choices[0].source}:served-name=NAME"
        raise ConfigError("--served-name", text)
    _refuse_twins(choices)
    return choices


def _choice(text: str, served: ServeOptions) -> ModelChoice:
    source, *settings = _SETTING.split(text)
    if not source:
        raise ConfigError("--model", f"{text!r} has no model name before its settings")
    own: dict[str, Any] = {}
    shares: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        field = key.replace("-", "_")
        if field in (*own, *shares):
            raise ConfigError("--model", f"{text!r} sets {key} twice")
        if field in OWN:
            own[field] = options.parse_one(ServeOptions, field, value, f"--model {text}")
        elif field in options.specs(Shares):
            shares[field] = options.parse_one(Shares, field, value, f"--model {text}")
        else:
            known = sorted(options.flag(name).removeprefix("--") for name in (*OWN, *options.specs(Shares)))
            close = options.close_match(key, known)
            raise ConfigError("--model", f"{key} in {text!r} cannot be set per model{close}; {', '.join(known)} can")
    if own.get("step_tokens") is not None:  # the server's gap is for its other models
        own.setdefault("gap_ms", options.defaults(ServeOptions)["gap_ms"])
    chosen = replace(served, **own)
    chosen.validate()
    name = chosen.served_name or source
    return ModelChoice(source, name, chosen, frozenset(own), Shares(**shares))


def _refuse_twins(choices: Sequence[ModelChoice]) -> None:
    seen: set[str] = set()
    for choice in choices:
        if choice.name in seen:
            raise ConfigError(
                "--model",
                f"two models would have the name {choice.name!r}; rename one: {choice.source}:served-name=NAME",
            )
        seen.add(choice.name)
