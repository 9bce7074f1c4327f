"""The texts on which int8 is tried: `sample.txt`, the beginning of Darwin's On the Origin of Species (1859, in the
public domain), then a little code and a table."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from headway.compute.int8_trial import Trial
from headway.text.tokenizer import Tokenizer

_SAMPLE = Path(__file__).parent / "sample.txt"
#: Where a text for an encoder ends: with a sentence, or before an empty line.
_ENDS = re.compile(r"(?<=[.:]) +|\n\n+")


def text_trial(tokenizer: Callable[[], Tokenizer], begins: Callable[[], None] = lambda: None) -> Trial:
    """All of it as one text. `tokenizer` may wait until there is one."""
    return Trial(_name(), lambda: [tokenizer().encode(_sample())], begins)


def encoder_trial(tokenizer: Callable[[], Tokenizer], begins: Callable[[], None] = lambda: None) -> Trial:
    """Each sentence, and each block of code, as an input with the special tokens that the model wants around it."""

    def read() -> list[list[int]]:
        model = tokenizer()
        return [model.encode_with_special(text)[0] for text in _ENDS.split(_sample()) if text.strip()]

    return Trial(_name(), read, begins)


def _sample() -> str:
    return _SAMPLE.read_text("utf-8")


def _name() -> str:
    return hashlib.sha256(_sample().encode()).hexdigest()[:12]
