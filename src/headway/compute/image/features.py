"""Features of texts, which a denoiser attends to: what an encoder makes of each position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import torch

from headway.artifacts.files import Pipeline
from headway.compute.embed.executor import EncoderExecutor
from headway.compute.models.clip_text import ClipText
from headway.core.errors import ArtifactError
from headway.core.plan import Evaluate, StepPlan, Vector

#: A step's texts are bounded by its images, not by positions.
_ANY_POSITIONS = 1 << 30
Text: TypeAlias = tuple[int, ...]


class TextFeatures(Protocol):
    """`width` is the values of one position, `vocab` the tokens that there are."""

    width: int
    vocab: int
    weights_bytes: int

    def positions(self, text: Text) -> int:
        """How many a text has features of."""
        ...

    def __call__(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        """[positions, values] of each text."""
        ...


class EncoderFeatures:
    """Of a bidirectional encoder: as many positions as a text has tokens."""

    def __init__(self, pipeline: Pipeline, cache: Path, threads: int | None) -> None:
        self._encoder = EncoderExecutor.load(
            pipeline.text, cache=cache, weights="fp32", threads=threads, max_step_positions=_ANY_POSITIONS
        )
        facts = self._encoder.facts
        self.width, self.vocab, self.weights_bytes = _hidden(pipeline), facts.vocab, facts.weights_bytes

    def positions(self, text: Text) -> int:
        return len(text)

    def __call__(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        encoded = self._encoder.run(StepPlan(0, tuple(Evaluate(text, raw=True) for text in texts)))
        found = []
        for text, result in zip(texts, encoded.results, strict=True):
            assert isinstance(result, Vector), "an encoder makes vectors"
            found.append(torch.frombuffer(bytearray(result.values), dtype=torch.float32).view(len(text), -1))
        return found


class ClipFeatures:
    """Of CLIP's text encoder. As U-Nets are trained on them: every text is filled up to the longest, and what fills
    it is attended to as the text is."""

    def __init__(self, pipeline: Pipeline) -> None:
        assert pipeline.fill is not None
        self._model, self._longest, self._fill = ClipText(pipeline.text), pipeline.max_tokens, pipeline.fill
        spec = self._model.spec
        if pipeline.max_tokens > spec.positions:
            raise ArtifactError(f"prompts of {pipeline.max_tokens} tokens; its text encoder takes {spec.positions}")
        self.width, self.vocab, self.weights_bytes = spec.hidden, spec.vocab, self._model.weights_bytes

    def positions(self, text: Text) -> int:
        return self._longest

    def __call__(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        filled = [text + (self._fill,) * (self._longest - len(text)) for text in texts]
        return [states.clone() for states in self._model(filled)]


def text_features(pipeline: Pipeline, *, cache: Path, threads: int | None) -> TextFeatures:
    """`threads` are torch's, for the whole process. Raises UnsupportedModel or ArtifactError."""
    if threads is not None:
        torch.set_num_threads(threads)
    return EncoderFeatures(pipeline, cache, threads) if pipeline.fill is None else ClipFeatures(pipeline)


def _hidden(pipeline: Pipeline) -> int:
    return int(pipeline.text.config["hidden_size"])
