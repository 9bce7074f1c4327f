"""The two networks and the noise scheduler, as diffusers has them, and the folder they are saved in."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import diffusers
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, PixArtTransformer2DModel

WIDTH, LAYERS, HEAD, PATCH = 256, 6, 64, 4
LATENT_CHANNELS, LATENT_SIZE = 4, 16
TEXT_FEATURES = {
    "model": "minilm-l6",
    "output": "last_hidden_state",
    "width": 384,
    "max_tokens": 16,
    "unconditional": "",
}


def autoencoder(*, beside: bool = False) -> AutoencoderKL:
    """[3, 64, 64] ↔ [4, 16, 16], without attention. `beside`: with 1 × 1 convolutions beside the latents."""
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(24, 48, 96),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=64,
        mid_block_add_attention=False,
        use_quant_conv=beside,
        use_post_quant_conv=beside,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def transformer() -> PixArtTransformer2DModel:
    """A diffusion transformer over 16 patches of 4 × 4 latents, with cross-attention to the prompt's features."""
    model = PixArtTransformer2DModel(
        num_attention_heads=WIDTH // HEAD,
        attention_head_dim=HEAD,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=LAYERS,
        cross_attention_dim=WIDTH,
        sample_size=LATENT_SIZE,
        patch_size=PATCH,
        caption_channels=TEXT_FEATURES["width"],
        use_additional_conditions=False,
    )
    torch.nn.init.zeros_(model.proj_out.weight)
    torch.nn.init.zeros_(model.proj_out.bias)
    return model


def save(folder: Path, vae: AutoencoderKL, dit: PixArtTransformer2DModel) -> None:
    """Write both in bf16, with what diffusers and Headway read beside them. The models stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in (("vae", vae), ("transformer", dit)):
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder / name, safe_serialization=True)
    FlowMatchEulerDiscreteScheduler(shift=1.0).save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "DiffusionPipeline",
        "_diffusers_version": diffusers.__version__,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "_text_features": TEXT_FEATURES,
        "_defaults": {"steps": 20, "guidance": 3.0},
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def load(folder: Path) -> tuple[AutoencoderKL, PixArtTransformer2DModel, FlowMatchEulerDiscreteScheduler]:
    """The three parts of a saved folder, in fp32."""
    vae = AutoencoderKL.from_pretrained(folder / "vae").float().eval()
    dit = PixArtTransformer2DModel.from_pretrained(folder / "transformer").float().eval()
    return vae, dit, FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler")
