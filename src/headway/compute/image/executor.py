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
from headway.compute.embed.executor import EncoderExecutor
from headway.compute.executor import ModelFacts
from headway.compute.finite import rows_not_finite
from headway.compute.image.noise import Noise, NoiseSchedulers
from headway.compute.image.parts import Denoiser, PixelDecoder, image_facts
from headway.core.errors import ArtifactError, ConfigError, InvariantError
from headway.core.plan import (
    DecodePixels,
    Encode,
    Evaluate,
    ItemResult,
    Latent,
    Pixels,
    Spent,
    StepPlan,
    StepResult,
    Update,
    Vector,
)

_FLOAT_BYTES = 4
#: A step's texts are bounded by its images, not by positions.
_ANY_POSITIONS = 1 << 30
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
        encoder: EncoderExecutor,
        denoiser: Denoiser,
        decoder: PixelDecoder,
        noise: NoiseSchedulers,
    ) -> None:
        self._facts, self._encoder, self._denoiser, self._decoder = facts, encoder, denoiser, decoder
        self._noise = noise
        self._images: dict[int, Image] = {}

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    @classmethod
    def load(
        cls, files: ModelFiles, *, cache: Path, weights: str = "auto", threads: int | None = None
    ) -> DiffusionExecutor:
        """Bring a model to where it can run. `cache` is as of the text executor; `threads` are torch's, for the whole
        process. Raises UnsupportedModel, ArtifactError, or ConfigError for options that cannot work."""
        if weights not in ("auto", "fp32"):
            raise ConfigError("--weights", f"{weights} is not implemented for diffusion models; use auto or fp32")
        pipeline = files.pipeline
        assert pipeline is not None, "the files are a diffusion model's"
        with torch.inference_mode():
            encoder = EncoderExecutor.load(
                pipeline.text, cache=cache, weights="fp32", threads=threads, max_step_positions=_ANY_POSITIONS
            )
            denoiser = Denoiser(files.name, pipeline.denoiser)
            decoder = PixelDecoder(files.name, pipeline.autoencoder)
            noise = NoiseSchedulers(files.name, pipeline.noise)
        hidden = pipeline.text.config.get("hidden_size")
        for what, takes, comes in (
            ("features of", denoiser.features, hidden),
            ("latents of", decoder.channels, denoiser.channels),
        ):
            if takes != comes:
                raise ArtifactError(f"{files.name}: {what} {comes} values come to a part that takes {takes}")
        facts = ModelFacts(
            name=files.name,
            revision=files.revision,
            pattern="image",
            vocab=encoder.facts.vocab,
            max_context=pipeline.max_tokens,
            weights_format="fp32",
            weights_bytes=_FLOAT_BYTES * (denoiser.parameters + decoder.parameters) + encoder.facts.weights_bytes,
            state_format="fp32",
            block_bytes=0,
            kernels={"products": "torch, fp32", "updates": f"{pipeline.denoiser.kind}, equal shapes together"},
            output="pixels",
            graph=files.graph,
            images=image_facts(denoiser, decoder, noise.most_updates, noise.words),
        )
        return cls(facts, encoder, denoiser, decoder, noise)

    # -- state -----------------------------------------------------------------------------------------------

    def state_bytes(self, asked: Encode) -> int:
        """Its latent, what its noise scheduler and its previews keep beside it, and the features of its texts."""
        channels, height, width = self._latent_shape(asked)
        latents = 1 + asked.previews + self._noise.kept
        positions = len(asked.tokens) + (len(asked.negative) if asked.guided else 0)
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

    def image(self, slot: int) -> Image:
        """What a slot holds. Raises InvariantError when that is nothing."""
        if slot not in self._images:
            raise InvariantError(f"slot {slot} holds no latent")
        return self._images[slot]

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
        texts = [text for _, item in items for text in _texts(item)]
        with step.timed("encode", (), len(texts)):
            encoded = self._encoder.run(StepPlan(0, tuple(Evaluate(text, raw=True) for text in texts)))
        rows = iter(zip(texts, encoded.results, strict=True))
        for place, item in items:
            features = tuple(self._features(*next(rows)) for _ in _texts(item))
            noise = self._noise(item.updates)
            latent = noise.start(self._latent_shape(item), item.seed)
            self._images[item.slot] = Image(item, noise, latent, features)
            step.enter(place, Latent(), *features)

    def _features(self, text: tuple[int, ...], result: ItemResult) -> torch.Tensor:
        assert isinstance(result, Vector), "an encoder makes vectors"
        return torch.frombuffer(bytearray(result.values), dtype=torch.float32).view(len(text), -1)

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
            data = (one * 255).round().to(torch.uint8).contiguous().numpy().tobytes()
            step.enter(place, Pixels(data), one)

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


def _texts(item: Encode) -> tuple[tuple[int, ...], ...]:
    return (item.tokens, item.negative) if item.guided else (item.tokens,)


def _by_shape(items: Sequence[_Placed[_T]], latent: Callable[[_T], torch.Tensor]) -> Iterator[Sequence[_Placed[_T]]]:
    groups: dict[tuple[int, ...], list[_Placed[_T]]] = {}
    for place, item in items:
        groups.setdefault(tuple(latent(item).shape), []).append((place, item))
    yield from groups.values()


def _padded(features: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, positions, values] of the longest, and which positions there are. A position that is not there has no
    weight in attention, so it changes nothing."""
    longest = max(len(each) for each in features)
    padded = torch.zeros(len(features), longest, features[0].shape[1])
    mask = torch.zeros(len(features), longest)
    for row, each in enumerate(features):
        padded[row, : len(each)] = each
        mask[row, : len(each)] = 1
    return padded, mask
