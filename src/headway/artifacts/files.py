"""A model's files, wherever they came from, under one set of names: those of Hugging Face's `config.json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headway.core.errors import ArtifactError
from headway.core.request import Pattern


class Tensors(Protocol):
    """A model's weights under Hugging Face's names."""

    def names(self) -> list[str]: ...

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor once, in the files' order, as float32 in Hugging Face's shape and row order."""
        ...

    def digest(self) -> str:
        """Hexadecimal digits that say what `read` would yield: equal only where every value is. Reads all bytes."""
        ...


@dataclass(frozen=True)
class ModelFiles:
    """What the rest of Headway knows about a model before it is loaded.

    name           what the user typed
    revision       12 hexadecimal digits that change whenever the weights do; part of every prefix key
    config         as in `config.json` (a GGUF's metadata is translated to it)
    tensors        the weights
    weights_bytes  size of the weights as they lie on disk
    tokenizer      path of a `tokenizer.json` (built once and cached for a GGUF)
    chat_template  the Jinja source, or None for a model that has none
    bos_id         the token that starts a text, or None; add_bos says whether a plain prompt gets it
    eos_ids        every token that ends an answer (config, generation config and tokenizer together)
    special        strings that templates refer to, such as {"eos_token": "<|im_end|>"}
    source         one line for people: where the files came from
    """

    name: str
    revision: str
    config: dict[str, Any]
    tensors: Tensors
    weights_bytes: int
    tokenizer: Path
    chat_template: str | None
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]
    special: dict[str, str]
    source: str

    @property
    def pattern(self) -> Pattern:
        """What its requests repeat, by the architecture that its config names."""
        return "text"


def check_id(model: str, key: str, id: Any, vocab: int | None) -> None:
    """Raises ArtifactError unless `id`, the value of `key`, is a token of a vocabulary of `vocab` tokens."""
    if not isinstance(id, int) or isinstance(id, bool):
        raise ArtifactError(f"{model}: {key} is {id!r}, which is not a token id")
    if id < 0 or (vocab is not None and id >= vocab):
        raise ArtifactError(f"{model}: {key} is {id}, which is outside the vocabulary (0 to {(vocab or 1) - 1})")
