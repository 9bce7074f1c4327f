"""Trains the transformer by flow matching (Lipman et al. 2022; Esser et al. 2024), and draws with it.

A latent x is mixed with noise e at level s: (1 − s) x + s e. The transformer learns the velocity e − x. Levels are
drawn from a logit-normal distribution. One prompt in ten is replaced by the empty one, so that guidance has its other
side (Ho and Salimans 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from emoji import models
from emoji.progress import Run
from emoji.prompts import STYLES, Sample, TextFeatures

BATCH, DROPPED, RATE, REST_RATE = 64, 0.1, 2e-3, 1e-3


class Two(torch.optim.Optimizer):
    """Muon (Jordan 2024) for the matrices of the blocks, AdamW for the rest, as one optimizer."""

    def __init__(self, dit: nn.Module) -> None:
        blocks = {
            id(value): value
            for block in dit.transformer_blocks
            for module in block.modules()
            if isinstance(module, nn.Linear)
            for value in [module.weight]
        }
        rest = [value for value in dit.parameters() if id(value) not in blocks]
        self._muon = torch.optim.Muon(
            list(blocks.values()), RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", ns_steps=4
        )
        self._adam = torch.optim.AdamW(rest, REST_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self.param_groups = self._muon.param_groups + self._adam.param_groups

    def step(self, closure=None) -> None:
        self._muon.step()
        self._adam.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._muon.zero_grad(set_to_none)
        self._adam.zero_grad(set_to_none)

    def state_dict(self) -> dict:
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])
        self.param_groups = self._muon.param_groups + self._adam.param_groups


class Draw:
    """Random batches: latents of the chosen samples, each with one of its prompts."""

    def __init__(self, chosen: Sequence[Sample], latents: dict, features: TextFeatures) -> None:
        self._samples, self._features = chosen, features
        features.learn(["", *(prompt for sample in chosen for prompt in sample.prompts)])
        places = torch.tensor([sample.at for sample in chosen])
        self._mean, self._deviation = latents["mean"][places], latents["deviation"][places]
        counts = {style: sum(sample.style == style for sample in chosen) for style in STYLES}
        weights = np.array([STYLES[sample.style] / counts[sample.style] for sample in chosen])
        self._weights, self._random = weights / weights.sum(), np.random.default_rng(0)

    def seed(self, seed: int) -> None:
        """Begin another sequence of batches."""
        self._random = np.random.default_rng(seed)

    def __call__(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(latents [size, 4, 16, 16], features [size, tokens, 384], mask [size, tokens])"""
        chosen = self._random.choice(len(self._samples), size, p=self._weights)
        texts = [
            "" if self._random.random() < DROPPED else self._random.choice(self._samples[one].prompts)
            for one in chosen
        ]
        mean, deviation = self._mean[chosen], self._deviation[chosen]
        return mean + deviation * torch.randn_like(mean), *self._features.batch(texts)


def loss_of(dit: nn.Module, latents: torch.Tensor, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean square error of the velocity at random levels."""
    noise = torch.randn_like(latents)
    level = torch.sigmoid(torch.randn(len(latents)))
    at = level.view(-1, 1, 1, 1)
    mixed = (1 - at) * latents + at * noise
    # The fused attention's backward pass is slow on so few tokens: half of a step on a CPU.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        velocity = dit(
            mixed, encoder_hidden_states=features, encoder_attention_mask=mask, timestep=level * 1000
        ).sample
    return (velocity.float() - (noise - latents)).square().mean()


def train(file: Path, draw: Draw, budget_s: float) -> None:
    """Train for `budget_s` seconds of processor time; `file` holds the state."""
    torch.manual_seed(0)
    dit = models.transformer()
    run = Run(file, dit, Two(dit), budget_s)
    torch.manual_seed(run.step)
    draw.seed(run.step)
    while not run.over:
        run.before()
        loss = loss_of(dit, *draw(BATCH))
        run.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(dit.parameters(), 1.0)
        run.optimizer.step()
        run.after(loss.item())


@torch.no_grad()
def sample(
    parts: tuple,
    features: TextFeatures,
    texts: Sequence[str],
    *,
    steps: int = 20,
    guidance: float = 3.0,
    seed: int = 0,
) -> torch.Tensor:
    """Pictures [texts, 3, 64, 64] in −1 … 1. `parts` is what `models.load` returns."""
    vae, dit, scheduler = parts
    scheduler.set_timesteps(steps)
    made = [torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(seed + i)) for i in range(len(texts))]
    latents = torch.stack(made)
    states, mask = features.batch([*texts, *[""] * len(texts)])
    for timestep in scheduler.timesteps:
        with torch.autocast("cpu", torch.bfloat16):
            both = dit(
                torch.cat([latents, latents]),
                encoder_hidden_states=states,
                encoder_attention_mask=mask,
                timestep=timestep.expand(2 * len(texts)),
            ).sample.float()
        asked, free = both.chunk(2)
        latents = scheduler.step(free + guidance * (asked - free), timestep, latents).prev_sample
    return vae.decode(latents / vae.config.scaling_factor + vae.config.shift_factor).sample
