"""The diffusion executor: prompts to features, latents updated, latents to pixels.

Updates of a step are evaluated together where their latents have one shape, whatever update each is at, of how many,
and with how much guidance: a guided image has two rows in the batch. What an image gets depends on its own seed,
prompt and settings alone, up to the order in which a matrix product adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TypeAlias, TypeVar

import torch

from headway.artifacts.files import ModelFiles
from headway.compute.executor import ModelFacts, Sketch
from headway.compute.finite import rows_not_finite
from headway.compute.image.features import Text, TextFeatures, text_features
from headway.compute.image.formats import FORMATS, choose_weights
from headway.compute.image.noise import Noise, NoiseSchedulers
from headway.compute.image.parts import Denoiser, PixelDecoder, image_facts
from headway.compute.image.sketch import Sketcher
from headway.core.errors import ArtifactError, InvariantError
from headway.core.plan import (
    DecodePixels,
    Encode,
    ItemResult,
    Latent,
    Pixels,
    Spent,
    StepPlan,
    StepResult,
    Update,
)

_FLOAT_BYTES = 4
_PRODUCTS = {
    "fp32": "torch, fp32",
    "bf16": "torch, bf16",
    "int8": "linear layers int8, native; a row's bits depend on it alone; the rest torch, fp32",
}
_T = TypeVar("_T")
#: An item of a plan, and its place there.
_Placed: TypeAlias = tuple[int, _T]


@dataclass(slots=True)
class Image:
    """The state of one image. `features` are [positions, values] each, first those of the prompt, then, if it is
    guided, those that guidance leads away from; `clean` is what the last update
    expects of the latent, kept for previews."""

    asked: Encode
    noise: Noise
    latent: torch.Tensor
    features: tuple[torch.Tensor, ...]
    clean: torch.Tensor | None = None
    done: int = 0


class DiffusionExecutor:
    """Implements `LatentExecutor`. Make one with `load`. Not safe for concurrent calls."""

    def __init__(
        self,
        facts: ModelFacts,
        features: TextFeatures,
        denoiser: Denoiser,
        decoder: PixelDecoder,
        noise: NoiseSchedulers,
    ) -> None:
        self._facts, self._features, self._denoiser, self._decoder = facts, features, denoiser, decoder
        self._noise = noise
        self._sketcher = Sketcher(decoder)
        self._images: dict[int, Image] = {}

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        *,
        cache: Path,
        weights: str = "auto",
        native: str = "auto",
        threads: int | None = None,
    ) -> DiffusionExecutor:
        """Bring a model to where it can run. `cache` and `native` are as of the text executor; see `formats.py` for
        `weights`; `threads` are torch's, for the whole process. Raises UnsupportedModel, ArtifactError, or
        ConfigError for options that cannot work."""
        pipeline = files.pipeline
        assert pipeline is not None, "the files are a diffusion model's"
        form = choose_weights(weights)
        dtype = FORMATS[form]
        with torch.inference_mode():
            features = text_features(pipeline, cache=cache, threads=threads)
            denoiser = Denoiser(files.name, pipeline.denoiser, dtype, rounded=form == "int8", native=native)
            decoder = PixelDecoder(files.name, pipeline.autoencoder, dtype)
            noise = NoiseSchedulers(files.name, pipeline.noise)
        for what, takes, comes in (
            ("features of", denoiser.features, features.width),
            ("latents of", decoder.channels, denoiser.channels),
        ):
            if takes != comes:
                raise ArtifactError(f"{files.name}: {what} {comes} values come to a part that takes {takes}")
        facts = ModelFacts(
            name=files.name,
            revision=files.revision,
            pattern="image",
            vocab=features.vocab,
            max_context=pipeline.max_tokens,
            weights_format=form,
            weights_bytes=denoiser.weights_bytes + decoder.weights_bytes + features.weights_bytes,
            state_format="fp32",
            block_bytes=0,
            kernels={"products": _PRODUCTS[form], "updates": f"{pipeline.denoiser.kind}, equal shapes together"},
            output="pixels",
            graph=files.graph,
            images=image_facts(denoiser, decoder, noise.most_updates, noise.words),
        )
        with torch.inference_mode():
            return cls(facts, features, denoiser, decoder, noise)

    # -- state -----------------------------------------------------------------------------------------------

    def state_bytes(self, asked: Encode) -> int:
        """Its latent, what its noise scheduler and its previews keep beside it, and the features of its texts."""
        channels, height, width = self._latent_shape(asked)
        latents = 1 + asked.previews + self._noise.kept
        positions = sum(map(self._features.positions, _texts(asked)))
        return _FLOAT_BYTES * (latents * channels * height * width + positions * self._denoiser.features)

    @property
    def most_state_bytes(self) -> int:
        """A large image, guided and with previews, of two prompts of the longest."""
        images, longest = self._facts.images, (0,) * self._facts.max_context
        assert images is not None
        side = max(images.most, images.width)
        asked = Encode(0, longest, 0, 1, longest, 2.0, width=side, height=side, previews=True)
        return self.state_bytes(asked)

    def forget(self, slot: int) -> None:
        self._images.pop(slot, None)

    @torch.inference_mode()
    def sketch(self, slot: int) -> Sketch | None:
        """Of what the last update expects the latent to become, where previews keep that, else of the latent."""
        image = self._images.get(slot)
        if image is None:
            return None
        pixels = self._sketcher(image.latent if image.clean is None else image.clean)
        return Sketch(pixels.shape[1], pixels.shape[0], _bytes(pixels))

    def image(self, slot: int) -> Image:
        """What a slot holds. Raises InvariantError when that is nothing."""
        if slot not in self._images:
            raise InvariantError(f"slot {slot} holds no latent")
        return self._images[slot]

    def values(self, slot: int) -> tuple[float, ...]:
        """The latent in a slot, value by value; empty where there is none."""
        found = self._images.get(slot)
        return () if found is None else tuple(found.latent.flatten().tolist())

    def _latent_shape(self, asked: Encode) -> tuple[int, int, int]:
        own = self._denoiser.side
        factor = self._decoder.factor
        height, width = (asked.height // factor or own), (asked.width // factor or own)
        return self._denoiser.channels, height, width

    def _pixels(self, latent: torch.Tensor) -> tuple[int, int]:
        """Width and height of the image that it becomes."""
        _, height, width = latent.shape
        return width * self._decoder.factor, height * self._decoder.factor

    # -- the step --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """See `Executor.run`. Raises InvariantError for an item of another pattern, an update out of its turn, or a
        slot that holds no latent."""
        step = _Step(len(plan.items))
        encodes = [(i, item) for i, item in enumerate(plan.items) if isinstance(item, Encode)]
        updates = [(i, item) for i, item in enumerate(plan.items) if isinstance(item, Update)]
        decodes = [(i, item) for i, item in enumerate(plan.items) if isinstance(item, DecodePixels)]
        if len(encodes) + len(updates) + len(decodes) != len(plan.items):
            raise InvariantError("a diffusion model's step has items of another pattern")
        if encodes:
            self._encode(encodes, step)
        for together in _by_shape(updates, lambda item: self.image(item.slot).latent):
            self._update(together, step)
        for alike in _by_shape(decodes, lambda item: self.image(item.slot).latent):
            self._decode(alike, step)
        return StepResult(tuple(step.results), tuple(sorted(step.spoiled)), tuple(step.spent))

    def _encode(self, items: Sequence[_Placed[Encode]], step: _Step) -> None:
        known = self._encoded([text for _, item in items for text in _texts(item)], step)
        for place, item in items:
            features = tuple(known[text] for text in _texts(item))
            noise = self._noise(item.updates)
            latent = noise.start(self._latent_shape(item), item.seed)
            self._images[item.slot] = Image(item, noise, latent, features)
            step.enter(place, Latent(), *features)

    def _encoded(self, texts: Sequence[Text], step: _Step) -> dict[Text, torch.Tensor]:
        """Each text once, and none whose features an image still holds: several images of a prompt share them, and so
        do all that guidance leads away from nothing in particular. Each image is counted its own all the same, so the
        pool holds whatever order they leave in."""
        held = (
            (text, features)
            for image in self._images.values()
            for text, features in zip(_texts(image.asked), image.features, strict=True)
        )
        known = dict(held)
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            with step.timed("encode", (), len(new)):
                known |= dict(zip(new, self._features(new), strict=True))
        return known

    def _update(self, items: Sequence[_Placed[Update]], step: _Step) -> None:
        """One update of each, all with latents of one shape."""
        images = [self._in_turn(item) for _, item in items]
        latents: list[torch.Tensor] = []
        timesteps: list[torch.Tensor] = []
        features: list[torch.Tensor] = []
        for image in images:
            latents += [image.noise.scaled(image.latent, image.done)] * len(image.features)
            timesteps += [image.noise.timestep(image.done)] * len(image.features)
            features += image.features
        with step.timed("update", self._pixels(images[0].latent), len(features)):
            predicted = self._denoiser(torch.stack(latents), torch.stack(timesteps), *_padded(features))
            row = 0
            for (place, _), image in zip(items, images, strict=True):
                rows, row = predicted[row : row + len(image.features)], row + len(image.features)
                self._advance(image, rows)
                step.enter(place, Latent(), image.latent)

    def _advance(self, image: Image, predicted: torch.Tensor) -> None:
        towards = predicted[0]
        if len(predicted) > 1:
            towards = predicted[1] + image.asked.guidance * (predicted[0] - predicted[1])
        image.latent, clean = image.noise.update(image.latent, towards, image.done)
        image.clean = clean if image.asked.previews else None
        image.done += 1

    def _in_turn(self, item: Update) -> Image:
        image = self.image(item.slot)
        if (item.index, item.of) != (image.done, image.asked.updates):
            raise InvariantError(f"update {item.index} of {item.of} of slot {item.slot}, which has had {image.done}")
        return image

    def _decode(self, items: Sequence[_Placed[DecodePixels]], step: _Step) -> None:
        latents = [self._shown(item) for _, item in items]
        with step.timed("decode_pixels", self._pixels(latents[0]), len(latents)):
            pixels = self._decoder(torch.stack(latents))
        for (place, _), one in zip(items, pixels, strict=True):
            step.enter(place, Pixels(_bytes(one)), one)

    def _shown(self, item: DecodePixels) -> torch.Tensor:
        image = self.image(item.slot)
        if not item.preview:
            return image.latent
        if image.clean is None:
            raise InvariantError(f"a preview of slot {item.slot}, which keeps nothing for it")
        return image.clean


class _Step:
    """What comes of a step, by the place of its items."""

    def __init__(self, items: int) -> None:
        self.results: list[ItemResult] = [Latent()] * items
        self.spoiled: list[int] = []
        self.spent: list[Spent] = []

    @contextmanager
    def timed(self, kind: str, size: tuple[int, ...], rows: int) -> Iterator[None]:
        began = perf_counter_ns()
        yield
        self.spent.append(Spent(kind, size, rows, perf_counter_ns() - began))

    def enter(self, place: int, result: ItemResult, *values: torch.Tensor) -> None:
        """`values` are what was computed for it."""
        self.results[place] = result
        if any(rows_not_finite(each.reshape(1, -1)) for each in values):
            self.spoiled.append(place)


def _bytes(pixels: torch.Tensor) -> bytes:
    """One for each value, of values from 0 to 1."""
    return (pixels * 255).round().to(torch.uint8).contiguous().numpy().tobytes()


def _texts(item: Encode) -> tuple[tuple[int, ...], ...]:
    return (item.tokens, item.negative) if item.guided else (item.tokens,)


def _by_shape(items: Sequence[_Placed[_T]], latent: Callable[[_T], torch.Tensor]) -> Iterator[Sequence[_Placed[_T]]]:
    groups: dict[tuple[int, ...], list[_Placed[_T]]] = {}
    for place, item in items:
        groups.setdefault(tuple(latent(item).shape), []).append((place, item))
    yield from groups.values()


def _padded(features: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[rows, positions, values] of the longest, and which positions there are, unless all are. A position that is not
    there has no weight in attention, so it changes nothing."""
    longest = max(len(each) for each in features)
    if all(len(each) == longest for each in features):
        return torch.stack(list(features)), None
    padded = torch.zeros(len(features), longest, features[0].shape[1])
    mask = torch.zeros(len(features), longest)
    for row, each in enumerate(features):
        padded[row, : len(each)] = each
        mask[row, : len(each)] = 1
    return padded, mask
