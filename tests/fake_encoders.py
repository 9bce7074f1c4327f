"""Encoders for `fake_server.py`: a tokenizer of a few letters, files that say what surrounds the model, and executors
that step while their gate is open."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing

from headway.artifacts.files import ModelFiles, Modules
from headway.compute.fake_patterns import FakeEncoder
from headway.core.plan import StepPlan, StepResult

PAD, UNKNOWN, CLS, SEP = range(4)
_WORDS = ("paris", "is", "the", "capital", "of", "france", "a", "city", "query", ":", "passage")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCABULARY = {
    token: id
    for id, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_LETTERS, *(f"##{c}" for c in _LETTERS)])
}
VOCABULARY |= {word: len(VOCABULARY) + i for i, word in enumerate(w for w in _WORDS if w not in VOCABULARY)}


def letters() -> Tokenizer:
    """BERT's rules over a vocabulary of letters and a few words: `zq` are two tokens, `paris` is one."""
    rules = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]", max_input_chars_per_word=100))
    rules.normalizer = normalizers.BertNormalizer(lowercase=True)
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return rules


class NoTensors:
    """A fake executor reads none."""

    def names(self) -> list[str]:
        return []

    def read(self) -> Any:
        return iter(())

    def digest(self) -> str:
        return "0"


def encoder_files(folder: Path, name: str, modules: Modules | None = None, *, scores: bool = False) -> ModelFiles:
    """What the front knows of an encoder before the replica has it."""
    file = folder / f"{name}-tokenizer.json"
    letters().save(str(file))
    architecture = "BertForSequenceClassification" if scores else "BertModel"
    return ModelFiles(
        name=name, revision="0" * 12, config={"architectures": [architecture]}, tensors=NoTensors(), weights_bytes=0,
        tokenizer=file, chat_template=None, bos_id=None, add_bos=False, eos_ids=(), special={}, source="a test",
        modules=modules or Modules(),
    )  # fmt: skip


class GatedEncoder(FakeEncoder):
    """Steps only while `gate` is open; `waits` says that a step stands before it. `seen` are the plans that ran.
    With `once` the gate closes behind each step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(vocab=len(VOCABULARY), **options)
        self.gate = threading.Event()
        self.gate.set()
        self.waits = self.once = False
        self.seen: list[StepPlan] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.waits = not self.gate.is_set()
        assert self.gate.wait(30)
        self.waits = False
        if self.once:
            self.gate.clear()
        self.seen.append(plan)
        return super().run(plan)


@dataclass(frozen=True)
class Hosted:
    """An encoder that a fake server serves beside its text model."""

    name: str
    files: ModelFiles
    executor: GatedEncoder


def bi_encoder(folder: Path, name: str = "fake-embed", modules: Modules | None = None, **options: Any) -> Hosted:
    """Vectors of 8 values of inputs of up to 32 positions, unless told otherwise."""
    modules = modules or Modules()
    executor = GatedEncoder(**{"values": 8, "max_context": 32, "normalized": modules.normalize} | options)
    return Hosted(name, encoder_files(folder, name, modules), executor)


def cross_encoder(folder: Path, name: str = "fake-rerank", **options: Any) -> Hosted:
    executor = GatedEncoder(**{"values": 1, "max_context": 32, "output": "score"} | options)
    return Hosted(name, encoder_files(folder, name, scores=True), executor)


def normalizing(modules: Modules | None = None) -> Modules:
    return replace(modules or Modules(), normalize=True)
