"""The real models that some lessons run, of texts and of images: loaded once, when the first of them needs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy comes with them: too slow for --help
    from headway.artifacts.files import ModelFiles
    from headway.compute.image.executor import DiffusionExecutor
    from headway.compute.text.executor import TextExecutor

NAME = "smollm2-135m"
IMAGES = "emoji-64"
#: Blocks that the largest run of the lessons needs, and some to spare.
BLOCKS = 40
TEXT = (
    "The harbour of the old town lies in a bay that opens to the south. In summer the fishing boats leave before the "
    "sun is up and come back at noon, and whoever stands on the wall then can see which of them had luck, because "
    "the gulls follow only those. In winter nobody sails. The nets hang in the sheds and are mended, the hulls are "
    "tarred, and in the evening the men sit in the one warm room of the harbour office and argue about the weather. "
    "The keeper of the lighthouse does not come to these evenings. He climbs his two hundred steps at dusk, lights "
    "the lamp, and writes down what he sees: the wind, the ships, the first star. His books go back for ninety "
    "years, written by five hands, and not one night is missing. A visitor once asked him what they were good for. "
    "He thought for a while, and said that a light is only half of the work, and that the other half is being able "
    "to say, of every night, that it was lit."
)


@dataclass(frozen=True)
class LoadedModel:
    """`before` and `after` are the process's resident bytes around the load."""

    executor: TextExecutor
    before: int
    after: int


@dataclass(frozen=True)
class Model:
    """`cache` is the folder for downloads, None for the user's. Its weights are held in fp32: answers are exact, and
    every count is the same on every machine."""

    cache: Path | None = None

    @cached_property
    def files(self) -> ModelFiles:
        from headway.artifacts import resolve

        return resolve(NAME, cache=self.cache)

    @cached_property
    def loaded(self) -> LoadedModel:
        """Loads it at the first use. Raises ArtifactError when it cannot be obtained."""
        from headway.artifacts.cache import Cache
        from headway.compute.text.executor import TextExecutor

        converted = Cache.at(self.cache).converted
        files = self.files
        before = resident_bytes()
        executor = TextExecutor.load(files, cache=converted, blocks=BLOCKS, weights="fp32")
        return LoadedModel(executor, before, resident_bytes())

    @cached_property
    def images(self) -> DiffusionExecutor | None:
        """The image model; None where diffusers is not installed. Raises ArtifactError when it cannot be obtained."""
        try:
            from headway.compute.image.executor import DiffusionExecutor
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "diffusers":
                raise
            return None
        from headway.artifacts.cache import Cache

        return DiffusionExecutor.load(self.image_files, cache=Cache.at(self.cache).converted, weights="fp32")

    @cached_property
    def image_files(self) -> ModelFiles:
        from headway.artifacts import resolve

        return resolve(IMAGES, cache=self.cache)

    def drawing(self, text: str) -> tuple[int, ...]:
        """What is to be drawn, in tokens of the image model's encoder, those around a text included."""
        from headway.text.tokenizer import Tokenizer

        assert self.image_files.pipeline is not None
        return tuple(Tokenizer(self.image_files.pipeline.text).encode_with_special(text)[0])

    def prompt(self, positions: int, skip: int = 0) -> list[int]:
        """So many tokens of a plain text, after its first `skip`."""
        from headway.text.tokenizer import Tokenizer

        tokens = Tokenizer(self.files).encode(TEXT)[skip : skip + positions]
        if len(tokens) < positions:
            raise ValueError(f"the text has no {positions} tokens after its first {skip}")
        return tokens


def resident_bytes() -> int:
    """What this process holds in memory now."""
    import psutil

    return int(psutil.Process().memory_info().rss)
