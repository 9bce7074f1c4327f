"""What the transformer is taught to draw: names, styles, the wordings of a prompt, and their text features."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from emoji.models import TEXT_FEATURES
from emoji.sets import Picture

#: Which subcategories of Unicode's table are drawn.
GROUPS = (
    "animal-",
    "plant-",
    "food-",
    "drink",
    "dishware",
    "face-smiling",
    "face-affection",
    "face-costume",
    "face-glasses",
    "face-hat",
    "face-tongue",
    "face-negative",
    "heart",
)
#: How often a style is drawn in training. The first one is what a prompt without a style means.
STYLES = {"noto": 0.6, "flat": 0.4}
PLAIN = ("{name}", "{name}", "a {name}", "{name} emoji", "an emoji of a {name}", "noto {name}", "{name}, noto style")
STYLED = ("{style} {name}", "a {style} {name}", "{name}, {style} style", "{style} {name} emoji")
#: Never trained on; only measured.
UNSEEN_WORDING = "draw me a little {name}"
MAX_NAME = 40
TOGETHER = 32


@dataclass(frozen=True)
class Sample:
    """A picture's place in the arrays of `sets`, and the prompts that ask for it."""

    at: int
    style: str
    name: str
    prompts: tuple[str, ...]


def prompts(name: str, style: str) -> tuple[str, ...]:
    wordings = PLAIN if style == "noto" else STYLED
    return tuple(wording.format(name=name, style=style) for wording in wordings)


def unseen(name: str) -> str:
    """A wording that no training prompt has."""
    return UNSEEN_WORDING.format(name=name)


def _held_out(name: str, style: str) -> bool:
    """One in ten of the names is never shown in one style other than the first."""
    if style == "noto":
        return False
    return hashlib.sha256(f"{style} {name}".encode()).digest()[0] < 26


def samples(pictures: Sequence[Picture]) -> tuple[list[Sample], list[Sample]]:
    """(for training, held out): pairs of a name and a style, of the groups and styles above."""
    trained, held = [], []
    known = {picture.name for picture in pictures if picture.style == "noto"}
    for at, picture in enumerate(pictures):
        wanted = picture.style in STYLES and picture.group.startswith(GROUPS) and picture.name in known
        if wanted and len(picture.name) <= MAX_NAME:
            one = Sample(at, picture.style, picture.name, prompts(picture.name, picture.style))
            (held if _held_out(picture.name, picture.style) else trained).append(one)
    return trained, held


class TextFeatures:
    """Headway's own encoder: texts in, one vector for each token out. Keeps what it has encoded."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        from headway.artifacts import resolve
        from headway.compute.embed.executor import EncoderExecutor

        files = resolve(TEXT_FEATURES["model"])
        self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TEXT_FEATURES["max_tokens"])
        self._executor = EncoderExecutor.load(files, cache=Path("unused"), threads=torch.get_num_threads())
        self._known: dict[str, torch.Tensor] = {}

    def learn(self, texts: Sequence[str]) -> None:
        """Encode those of `texts` that are not kept yet, many at a time."""
        from headway.core.plan import Evaluate, StepPlan

        new = sorted({text for text in texts if text not in self._known})
        for first in range(0, len(new), TOGETHER):
            some = new[first : first + TOGETHER]
            items = tuple(Evaluate(tuple(self._tokenizer.encode(text).ids), raw=True) for text in some)
            for text, vector in zip(some, self._executor.run(StepPlan(0, items)).results, strict=True):
                values = torch.frombuffer(bytearray(vector.values), dtype=torch.float32)
                self._known[text] = values.view(-1, TEXT_FEATURES["width"]).clone()

    def of(self, text: str) -> torch.Tensor:
        """[tokens, 384], [CLS] and [SEP] included."""
        self.learn([text])
        return self._known[text]

    def batch(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """([texts, tokens, 384] padded with zeros, mask [texts, tokens] with 1 for a token)."""
        self.learn(texts)
        found = [self._known[text] for text in texts]
        mask = pad_sequence([torch.ones(len(one)) for one in found], batch_first=True)
        return pad_sequence(found, batch_first=True), mask
