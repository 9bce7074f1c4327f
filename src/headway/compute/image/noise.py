"""Noise schedulers: a library's numerical updates of a latent. They keep state, so each image has its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

from headway.artifacts.files import Part
from headway.core.errors import ArtifactError, UnsupportedModel

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        DDIMScheduler,
        DPMSolverMultistepScheduler,
        EulerDiscreteScheduler,
        FlowMatchEulerDiscreteScheduler,
    )
}
#: What folders say of another noise scheduler than the one that they name now; diffusers passes over it.
_LEFT_OVER = ("skip_prk_steps",)
#: Settings that are not served, and at which value they ask for nothing.
_OFF: dict[str, Any] = {
    "use_dynamic_shifting": False,  # it needs a number that pipelines derive from the size
    "stochastic_sampling": False,  # it draws noise at every update
    "use_beta_sigmas": False,
    "invert_sigmas": False,
    "thresholding": False,  # of pixels, not of latents
}


class Noise:
    """One image's noise scheduler, set for `updates` updates. Each is to be made once, in order."""

    def __init__(self, scheduler: Any, updates: int) -> None:
        scheduler.set_timesteps(updates)
        if len(scheduler.timesteps) != updates:
            raise ArtifactError(f"{type(scheduler).__name__} makes {len(scheduler.timesteps)} updates of {updates}")
        self._scheduler = scheduler

    def start(self, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        """The latent that the first update gets: noise that depends on `seed` and `shape` only. As in diffusers'
        pipelines with a generator of that seed on the CPU."""
        noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(seed))[0]
        return noise * getattr(self._scheduler, "init_noise_sigma", 1.0)

    def timestep(self, index: int) -> torch.Tensor:
        """Of update `index`, a scalar, as the denoiser takes it."""
        found: torch.Tensor = self._scheduler.timesteps[index]
        return found

    def scaled(self, latent: torch.Tensor, index: int) -> torch.Tensor:
        """The latent as the denoiser takes it."""
        if not hasattr(self._scheduler, "scale_model_input"):
            return latent
        found: torch.Tensor = self._scheduler.scale_model_input(latent, self.timestep(index))
        return found

    def update(self, latent: torch.Tensor, predicted: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The latent after update `index`, and what that update expects the last one to leave. Changes the
        scheduler's state."""
        clean = self._clean(latent, predicted, index)
        stepped = self._scheduler.step(predicted, self.timestep(index), latent)
        if clean is None:
            clean = getattr(stepped, "pred_original_sample", None)
        if clean is None:  # a multistep solver converts what is predicted before it keeps it
            clean = self._scheduler.model_outputs[-1]
        return stepped.prev_sample, clean

    def _clean(self, latent: torch.Tensor, predicted: torch.Tensor, index: int) -> torch.Tensor | None:
        """Where the scheduler does not tell: flow matching predicts a velocity, noise less clean."""
        if not isinstance(self._scheduler, FlowMatchEulerDiscreteScheduler):
            return None
        sigma: torch.Tensor = self._scheduler.sigmas[index]
        return latent - sigma * predicted


class NoiseSchedulers:
    """Makes an image's noise scheduler from a model's config. Raises UnsupportedModel for a setting that is not
    served, by its name.

    most_updates   of one image
    kept           latents that one of them keeps for later updates, at most
    """

    def __init__(self, name: str, part: Part) -> None:
        self._class, self._config = _CLASSES[part.kind], part.config
        _check(name, part)
        template = self._make()
        self.words = part.kind
        self.most_updates = int(template.config.num_train_timesteps)
        self.kept = int(template.config.solver_order) if part.kind == "DPMSolverMultistepScheduler" else 0

    def __call__(self, updates: int) -> Noise:
        return Noise(self._make(), updates)

    def _make(self) -> Any:
        return self._class.from_config(self._config)


def _check(name: str, part: Part) -> None:
    known = {option for kind in _CLASSES.values() for option in options_of(kind)}
    for option, value in part.config.items():
        if option.startswith("_") or option in _LEFT_OVER:
            continue
        if option not in known:
            raise UnsupportedModel(name, f"{option} of its noise scheduler ({part.kind})")
        if option in _OFF and option in options_of(_CLASSES[part.kind]) and value != _OFF[option]:
            raise UnsupportedModel(name, f"{option}: {value} of its noise scheduler ({part.kind})")
    solves = part.config.get("algorithm_type", "dpmsolver++")
    if part.kind == "DPMSolverMultistepScheduler" and solves != "dpmsolver++":
        raise UnsupportedModel(name, f"algorithm_type: {solves} of its noise scheduler ({part.kind})")


def options_of(kind: Callable[..., Any]) -> frozenset[str]:
    """The options that a class of diffusers takes."""
    return frozenset(inspect.signature(kind).parameters)
