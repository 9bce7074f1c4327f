"""The parts of a diffusion model that have weights, as diffusers reads them, and how each is called.

Whatever a part's config asks for that is not served here is refused at load, by name: diffusers itself would pass
over an option that it does not know, and leave out a tensor that it has no place for.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from headway.artifacts.files import Part
from headway.compute.executor import ImageFacts
from headway.compute.finite import rows_not_finite
from headway.compute.image.noise import options_of
from headway.compute.image.products import RoundedLinear, round_linear_layers
from headway.core.errors import ArtifactError, UnsupportedModel

_CLASSES: dict[str, Any] = {
    kind.__name__: kind for kind in (AutoencoderKL, PixArtTransformer2DModel, UNet2DConditionModel)
}
#: Options of a U-Net that ask for inputs beyond a latent, a timestep and features of a text.
_MORE_INPUTS = (
    "addition_embed_type",
    "class_embed_type",
    "encoder_hid_dim_type",
    "num_class_embeds",
    "time_cond_proj_dim",
)


class Denoiser:
    """Predicts what is noise: a transformer or a U-Net.

    channels, side   of a latent of the model's own size
    features         values of one text feature
    """

    def __init__(
        self,
        name: str,
        part: Part,
        dtype: torch.dtype = torch.float32,
        *,
        rounded: bool = False,
        native: str = "auto",
    ) -> None:
        """With `rounded`, its linear layers are in int8, as far as `native` allows. Raises ConfigError where it does
        not, and what `_load` raises."""
        self._is_unet = part.kind == "UNet2DConditionModel"
        self.features = _features(name, part)
        self._model, self._dtype = _load(name, part, dtype), dtype
        if rounded:
            round_linear_layers(self._model, native)
        config = self._model.config
        self.channels = int(config.in_channels)
        self.side = _side(name, config.sample_size)
        self.weights_bytes = _bytes(self._model)
        out = self._model.config.out_channels
        if out not in (self.channels, 2 * self.channels):
            raise UnsupportedModel(name, f"a latent of {self.channels} channels and {out} that come out")

    @property
    def halvings(self) -> int:
        """How often a latent's sides are halved within."""
        return len(self._model.config.down_block_types) - 1 if self._is_unet else 0

    @property
    def takes_any_size(self) -> bool:
        """A transformer's positions are those of its own size."""
        return self._is_unet

    def __call__(
        self, latents: torch.Tensor, timesteps: torch.Tensor, features: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """[rows, channels, height, width] of the same shape; `timesteps` [rows], `features` [rows, positions,
        values], `mask` [rows, positions], 1 where there is one, or None where all are."""
        latents, features = latents.to(self._dtype), features.to(self._dtype)
        mask = None if mask is None else mask.to(self._dtype)
        if self._is_unet:
            (predicted,) = self._model(latents, timesteps, features, encoder_attention_mask=mask, return_dict=False)
        else:
            (predicted,) = self._model(
                latents,
                encoder_hidden_states=features,
                timestep=timesteps,
                added_cond_kwargs={"resolution": None, "aspect_ratio": None},
                encoder_attention_mask=mask,
                return_dict=False,
            )
        found: torch.Tensor = predicted[:, : self.channels]  # beside it there may be a variance, which is not used
        return found.float()


class PixelDecoder:
    """The decoding half of an autoencoder. `factor` is how many pixels one value of a latent covers, each way."""

    def __init__(self, name: str, part: Part, dtype: torch.dtype = torch.float32) -> None:
        self._model, self._dtype = _load(name, part, dtype), dtype
        config = self._model.config
        for option in ("latents_mean", "latents_std"):
            if getattr(config, option, None) is not None:
                raise UnsupportedModel(name, f"{option} of its autoencoder")
        self.channels = int(config.latent_channels)
        self.factor = 2 ** (len(config.block_out_channels) - 1)
        self.weights_bytes = _bytes(self._model)
        self._scale, self._shift = float(config.scaling_factor), float(config.shift_factor or 0.0)
        if config.out_channels != 3:
            raise UnsupportedModel(name, f"pixels of {config.out_channels} values")

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        """[images, height, width, 3], from 0 to 1, of [images, channels, height, width]."""
        (pixels,) = self._model.decode((latents / self._scale + self._shift).to(self._dtype), return_dict=False)
        found: torch.Tensor = (pixels.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
        return found


def image_facts(denoiser: Denoiser, decoder: PixelDecoder, most_updates: int, noise: str) -> ImageFacts:
    """Which images the parts make together: a U-Net from half to twice its own size, a transformer that one only."""
    own, multiple = denoiser.side * decoder.factor, decoder.factor << denoiser.halvings
    least, most = (-(-own // 2 // multiple) * multiple, 2 * own) if denoiser.takes_any_size else (1, 0)
    return ImageFacts(own, own, least, most, multiple, most_updates, noise)


def _bytes(model: Any) -> int:
    rounded: int = sum(layer.bytes for layer in model.modules() if isinstance(layer, RoundedLinear))
    plain: int = sum(weight.nbytes for weight in model.parameters())
    return rounded + plain


def _load(name: str, part: Part, dtype: torch.dtype) -> Any:
    """Raises UnsupportedModel for an option that the class does not know, ArtifactError for weights that are not the
    model's own."""
    kind = _CLASSES[part.kind]
    unknown = [key for key in part.config if not key.startswith("_") and key not in options_of(kind)]
    if unknown:
        raise UnsupportedModel(name, f"{unknown[0]} ({part.folder.name}/config.json)")
    try:
        model, about = kind.from_pretrained(
            part.folder,
            torch_dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            low_cpu_mem_usage=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, NotImplementedError) as error:
        raise ArtifactError(f"{name}: {part.folder.name} cannot be read: {error}") from error
    for problem, words in (
        ("missing_keys", "lacks the tensor"),
        ("unexpected_keys", "has no place for the tensor"),
        ("mismatched_keys", "has the wrong shape of"),
    ):
        if about[problem]:
            raise ArtifactError(f"{name}: {part.folder.name} {words} {about[problem][0]}")
    for weight, values in model.named_parameters():
        if rows_not_finite(values.detach().reshape(1, -1)):
            raise ArtifactError(f"{name}: {part.folder.name} has values in {weight} that are not finite")
    return model.eval().requires_grad_(False)


def _side(name: str, said: Any) -> int:
    sides = {said} if isinstance(said, int) else set(said or ())
    if len(sides) != 1:
        raise UnsupportedModel(name, f"sample_size {said!r} (one side is needed)")
    return int(sides.pop())


def _features(name: str, part: Part) -> int:
    """Values of one text feature. Raises UnsupportedModel for a denoiser that takes other inputs."""
    config = part.config
    if part.kind == "UNet2DConditionModel":
        for option in _MORE_INPUTS:
            if config.get(option) is not None:
                raise UnsupportedModel(name, f"{option} of its unet")
        width = config.get("cross_attention_dim")
    else:
        if config.get("use_additional_conditions", config.get("sample_size") == 128):
            raise UnsupportedModel(name, "use_additional_conditions of its transformer")
        width = config.get("caption_channels")
    if not isinstance(width, int):
        raise UnsupportedModel(name, f"features of {width!r} values ({part.folder.name}/config.json)")
    return width
