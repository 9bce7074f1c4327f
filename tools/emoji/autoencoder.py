"""Trains the autoencoder, and encodes the pictures once it is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from emoji import models
from emoji.progress import Run, averaged

BATCH, RATE, KL_WEIGHT, EDGE_WEIGHT = 8, 1e-3, 1e-3, 0.5


def as_tensor(pixels: np.ndarray) -> torch.Tensor:
    """uint8 [n, 64, 64, 3] → float [n, 3, 64, 64] in −1 … 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(127.5).sub_(1).contiguous()


def as_pixels(images: torch.Tensor) -> np.ndarray:
    """float [n, 3, 64, 64] in −1 … 1 → uint8 [n, 64, 64, 3]."""
    return images.float().add(1).mul(127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def _edges(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images[..., 1:] - images[..., :-1], images[..., 1:, :] - images[..., :-1, :]


def loss_of(vae: AutoencoderKL, images: torch.Tensor) -> torch.Tensor:
    """Absolute error of pixels and of their differences (which keeps edges sharp), and a little KL divergence."""
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(images).latent_dist
        decoded = vae.decode(posterior.sample()).sample
    decoded = decoded.float()
    error = F.l1_loss(decoded, images)
    edges = sum(F.l1_loss(ours, theirs) for ours, theirs in zip(_edges(decoded), _edges(images), strict=True))
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    return error + EDGE_WEIGHT * edges + KL_WEIGHT * divergence


def train(folder: Path, pixels: np.ndarray, drawn: np.ndarray, budget_s: float) -> None:
    """Train for `budget_s` seconds of processor time; `vae.pt` holds the state.

    Half of the pictures come from those that the transformer will draw (`drawn`, their places), half from all.
    """
    torch.manual_seed(0)
    vae = models.autoencoder()
    run = Run(folder / "vae.pt", vae, torch.optim.AdamW(vae.parameters(), RATE, weight_decay=0.0), budget_s)
    draw = np.random.default_rng(run.step)
    while not run.over:
        run.before()
        places = np.concatenate([draw.choice(drawn, BATCH // 2), draw.integers(len(pixels), size=BATCH // 2)])
        images = as_tensor(pixels[places])
        if draw.random() < 0.5:
            images = images.flip(3)
        loss = loss_of(vae, images)
        run.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        run.optimizer.step()
        run.after(loss.item())


@torch.no_grad()
def encode(folder: Path, pixels: np.ndarray) -> None:
    """Write `latents.pt`: mean and deviation of each picture's posterior, [n, 4, 16, 16] each, by channel brought to
    mean 0 and deviation 1 over all, and what they were."""
    vae = averaged(folder / "vae.pt", models.autoencoder())
    means, deviations = [], []
    for first in range(0, len(pixels), 64):
        posterior = vae.encode(as_tensor(pixels[first : first + 64])).latent_dist
        means.append(posterior.mean)
        deviations.append(posterior.std)
    mean, deviation = torch.cat(means), torch.cat(deviations)
    centre, spread = mean.mean((0, 2, 3)), mean.std((0, 2, 3))
    by_channel = [value.view(1, -1, 1, 1) for value in (centre, spread)]
    torch.save(
        {
            "mean": (mean - by_channel[0]) / by_channel[1],
            "deviation": deviation / by_channel[1],
            "centre": centre,
            "spread": spread,
        },
        folder / "latents.pt",
    )
    print(f"latents: mean {centre.tolist()}, deviation {spread.tolist()}")


@torch.no_grad()
def trained(folder: Path) -> AutoencoderKL:
    """The trained autoencoder. Its 1 × 1 convolutions beside the latents bring each channel to mean 0 and deviation
    1, so `scaling_factor` is 1 and `shift_factor` 0."""
    plain, vae = averaged(folder / "vae.pt", models.autoencoder()), models.autoencoder(beside=True)
    vae.load_state_dict(plain.state_dict(), strict=False)
    latents = torch.load(folder / "latents.pt", weights_only=True)
    centre, spread = latents["centre"], latents["spread"]
    for convolution, factor, bias in (
        (vae.quant_conv, torch.cat([1 / spread, torch.ones_like(spread)]), [-centre / spread, -2 * spread.log()]),
        (vae.post_quant_conv, spread, [centre]),
    ):
        convolution.weight.copy_(factor.diag()[:, :, None, None])
        convolution.bias.copy_(torch.cat(bias))
    return vae.eval()
