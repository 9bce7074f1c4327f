"""What a latent will look like, told without decoding it: a small picture, one pixel for each place of the latent.

An autoencoder's channels are close to linear in colour, so a product with a small matrix shows shapes and colours. It
takes microseconds where a decoding takes as long as several updates. The matrix is fitted at load: a few random
latents are decoded, and their pixels, averaged over what each place covers, regressed on them (least squares).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from headway.compute.image.parts import PixelDecoder

#: Latents that the matrix is fitted on, their side, and over how many places their noise is smoothed.
_TRIALS, _SIDE, _SMOOTH = 6, 16, 5


class Sketcher:
    """Shows latents of `decoder`."""

    def __init__(self, decoder: PixelDecoder) -> None:
        latents = _trials(decoder.channels)
        pixels = F.avg_pool2d(decoder(latents).permute(0, 3, 1, 2), decoder.factor)
        self._matrix = torch.linalg.lstsq(_places(latents), pixels.permute(0, 2, 3, 1).reshape(-1, 3)).solution

    def __call__(self, latent: torch.Tensor) -> torch.Tensor:
        """[height, width, 3], from 0 to 1, of [channels, height, width]."""
        _, height, width = latent.shape
        pixels: torch.Tensor = _places(latent[None]) @ self._matrix
        return pixels.clamp(0, 1).view(height, width, 3)


def _trials(channels: int) -> torch.Tensor:
    """Noise, smoothed: pictures have areas of one colour, and from rough noise colours would be learnt too pale."""
    rough = torch.randn(_TRIALS, channels, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
    return _SMOOTH * F.avg_pool2d(rough, _SMOOTH, stride=1, padding=_SMOOTH // 2, count_include_pad=False)


def _places(latents: torch.Tensor) -> torch.Tensor:
    """[places, channels + 1]: the values of each place, and 1."""
    rows = latents.permute(0, 2, 3, 1).reshape(-1, latents.shape[1])
    return torch.cat((rows, torch.ones(len(rows), 1)), dim=1)
