"""Diffusion models for `fake_server.py`: the tokenizer of the fake encoders, files that name parts which nobody
reads, and an executor that steps while its gate is open."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fake_encoders import VOCABULARY, encoder_files
from headway.artifacts.files import ModelFiles, Part, Pipeline
from headway.compute.executor import ImageFacts
from headway.compute.fake_patterns import FakeDiffusion
from headway.core.plan import StepPlan, StepResult
from serving import until

IMAGES = ImageFacts(width=16, height=16, least=8, most=32, multiple=4, most_updates=1000, noise="fake")
LATENT, LONGEST, STEPS, GUIDANCE = 100, 16, 5, 3.0


class GatedDiffusion(FakeDiffusion):
    """Steps only while `gate` is open; `waits` says that a step stands before it. `seen` are the plans that ran."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"vocab": len(VOCABULARY), "images": IMAGES, "latent_bytes": LATENT} | options)
        self.facts = replace(self.facts, max_context=LONGEST)
        self.gate = threading.Event()
        self.gate.set()
        self.waits = False
        self.seen: list[StepPlan] = []

    def let_one_run(self) -> None:
        """Of the steps that stand before the closed gate, let the next through, and wait until it has run."""
        until(lambda: self.waits)
        seen = len(self.seen)
        self.gate.set()
        self.gate.clear()
        until(lambda: len(self.seen) > seen)

    def run(self, plan: StepPlan) -> StepResult:
        self.waits = not self.gate.is_set()
        assert self.gate.wait(30)
        self.waits = False
        self.seen.append(plan)
        return super().run(plan)


@dataclass(frozen=True)
class HostedDiffusion:
    """A diffusion model that a fake server serves beside its text model; its pool has room for `latents` images."""

    name: str
    files: ModelFiles
    executor: GatedDiffusion
    latents: int


def diffusion(folder: Path, name: str = "fake-image", latents: int = 64, **options: Any) -> HostedDiffusion:
    text = encoder_files(folder, f"{name}-text")
    part = Part(folder, "None", {})
    pipeline = Pipeline(part, part, part, text, LONGEST, steps=STEPS, guidance=GUIDANCE)
    files = replace(text, name=name, modules=None, pipeline=pipeline)
    return HostedDiffusion(name, files, GatedDiffusion(**options), latents)
