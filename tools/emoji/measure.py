"""How often a picture shows what its prompt names: the right name among 50, told by a small classifier.

The classifier learns the names from the real pictures of the trained styles, shifted, scaled, recoloured and blurred.
The style `gradient`, which it never sees, says how far it can be trusted; the real pictures after a round trip
through the autoencoder say how far its decoder limits what can be reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from emoji.autoencoder import as_tensor
from emoji.prompts import STYLES, Sample, unseen
from emoji.sets import Picture

CHOICES, BATCH = 50, 96


def classifier(names: int) -> nn.Module:
    """[n, 3, 64, 64] → [n, names]"""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, names))


def _vary(images: torch.Tensor) -> torch.Tensor:
    """Move, turn, scale and recolour each picture a little; blur some."""
    count = len(images)
    angle, scale = torch.randn(count) * 0.12, 1 + torch.randn(count) * 0.1
    cosine, sine = torch.cos(angle) / scale, torch.sin(angle) / scale
    shift = torch.randn(count, 2) * 0.08
    turn = torch.stack([cosine, -sine, shift[:, 0], sine, cosine, shift[:, 1]], 1).view(count, 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    moved = F.grid_sample(images - 1, grid, align_corners=False) + 1
    coloured = 1 + (moved - 1) * (1 + torch.randn(count, 3, 1, 1) * 0.15)
    if torch.rand(()) < 0.5:
        coloured = F.avg_pool2d(coloured, 3, 1, 1, count_include_pad=False)
    return coloured + torch.randn_like(coloured) * 0.05


def train(folder: Path, pictures: Sequence[Picture], pixels: np.ndarray, names: list[str], budget_s: float) -> None:
    """Train for `budget_s` seconds of processor time; writes `classifier.pt`."""
    torch.manual_seed(0)
    places = [at for at, one in enumerate(pictures) if one.style in STYLES and one.name in set(names)]
    images, labels = as_tensor(pixels[places]), torch.tensor([names.index(pictures[at].name) for at in places])
    model = classifier(len(names))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    start = time.process_time()
    while (share := (time.process_time() - start) / budget_s) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - share)
        chosen = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(model(_vary(images[chosen])), labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"classifier: loss {loss.item():.3f}")
    torch.save(model.state_dict(), folder / "classifier.pt")


class Judge:
    """Tells which of 50 names a picture shows."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._model = classifier(len(names))
        self._model.load_state_dict(torch.load(folder / "classifier.pt", weights_only=True))
        self._model.eval()
        self._places = {name: place for place, name in enumerate(names)}

    @torch.no_grad()
    def hits(self, images: torch.Tensor, asked: Sequence[str], among: Sequence[str]) -> int:
        """How many of `images` are told right; the choices are `among`, with the asked name in them."""
        scores, right = self._model(images), 0
        for row, name in zip(scores, asked, strict=True):
            choices = [name, *[one for one in among if one != name][: CHOICES - 1]]
            right += int(row[[self._places[one] for one in choices]].argmax().item() == 0)
        return right


def fifty(trained: Sequence[Sample], seed: int = 1) -> list[str]:
    """The names that are measured."""
    names = sorted({sample.name for sample in trained if sample.style == "noto"})
    return [str(name) for name in np.random.default_rng(seed).choice(names, CHOICES, replace=False)]


def measure(
    judge: Judge,
    draw: Callable[[Sequence[str], int], torch.Tensor],
    trained: Sequence[Sample],
    held: Sequence[Sample],
    seeds: int,
) -> dict[str, float]:
    """The share of right names by kind of prompt. `draw(prompts, seed)` makes pictures."""
    names = fifty(trained)
    flat = [one for one in names if any(s.name == one and s.style == "flat" for s in trained)]
    kinds = {
        "name": ([(name, name) for name in names], seeds),
        "unseen wording": ([(unseen(name), name) for name in names], seeds),
        "flat style": ([(f"flat {name}", name) for name in flat], 1),
        "unseen pair of name and style": ([(sample.prompts[0], sample.name) for sample in held], 1),
    }
    found = {}
    for kind, (asked, times) in kinds.items():
        right = sum(
            judge.hits(draw([prompt for prompt, _ in asked], 1000 * seed), [name for _, name in asked], names)
            for seed in range(1, times + 1)
        )
        found[kind] = right / (times * len(asked))
        print(f"{kind}: {right} of {times * len(asked)}", flush=True)
    return found
