"""Image requests in lessons: served by the real image model, or by a fake one where diffusers is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.compute.executor import LatentExecutor
from headway.compute.fake_patterns import FakeDiffusion
from headway.core.request import ImageRequest
from headway.lessons.model import IMAGES, Model
from headway.lessons.runs import prompt

#: What is drawn, one after another.
NAMES = ("red apple", "tiger face", "hot dog", "frog", "strawberry", "sunflower", "pizza", "snail")
GUIDANCE = 3.0
STAND_IN = (
    f"A fake diffusion model stands in for {IMAGES}, because diffusers is not installed (the extra images): it takes "
    "the same steps, and makes no picture."
)


@dataclass(frozen=True)
class Drawing:
    """`executor` makes what `news` ask for; `note` says where it is a stand-in."""

    executor: LatentExecutor
    news: tuple[ImageRequest, ...]
    note: tuple[str, ...] = ()


def drawing(model: Model, updates: int, ids: Sequence[str], deadline_ms: float | None = None) -> Drawing:
    """One image for each of `ids`."""
    executor = model.images
    asked = {"updates": updates, "guidance": GUIDANCE, "deadline_ms": deadline_ms}
    if executor is None:
        fakes = (
            ImageRequest(id=id, prompt=tuple(prompt(4, first=i)), negative=(1, 2), seed=i, **asked)  # type: ignore[arg-type]
            for i, id in enumerate(ids, 1)
        )
        return Drawing(FakeDiffusion(latent_bytes=16), tuple(fakes), (STAND_IN,))
    empty = model.drawing("")
    news = (
        ImageRequest(id=id, prompt=model.drawing(NAMES[i % len(NAMES)]), negative=empty, seed=i, **asked)  # type: ignore[arg-type]
        for i, id in enumerate(ids)
    )
    return Drawing(executor, tuple(news))
