"""Tiny diffusion models with random weights, written by diffusers and transformers in their own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    PixArtTransformer2DModel,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = [
    "[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "red", "blue", "green", "fox", "cat", "house", "tree", "sun", "moon",
    "on", "under", "the", "big",
]  # fmt: skip
FEATURES, LONGEST, SIDE, FACTOR = 16, 12, 8, 2
#: Noise schedulers, each as small models are trained for it.
NOISE: dict[str, Any] = {
    "flow": FlowMatchEulerDiscreteScheduler(shift=2.0),
    "euler": EulerDiscreteScheduler(),
    "euler, v": EulerDiscreteScheduler(prediction_type="v_prediction", timestep_spacing="trailing"),
    "ddim": DDIMScheduler(clip_sample=False, steps_offset=1),
    "dpm": DPMSolverMultistepScheduler(),
}


def write_folder(folder: Path, denoiser: str = "transformer", noise: str = "flow", **index: Any) -> Path:
    """A folder in diffusers' format; `index` are more entries of its `model_index.json`."""
    torch.manual_seed(11)
    parts = {
        "vae": _autoencoder(),
        denoiser: _transformer() if denoiser == "transformer" else _unet(),
        "scheduler": NOISE[noise],
        "text_encoder": _encoder(),
    }
    listed: dict[str, Any] = {"_class_name": "DiffusionPipeline", "_defaults": {"steps": 4, "guidance": 2.0}}
    for role, part in parts.items():
        part.save_pretrained(folder / role)
        library = "transformers" if role == "text_encoder" else "diffusers"
        listed[role] = [library, type(part).__name__]
    _write_tokenizer(folder / "tokenizer")
    listed["tokenizer"] = ["transformers", "BertTokenizerFast"]
    (folder / "model_index.json").write_text(json.dumps(listed | index))
    return folder


#: CLIP's byte-pair files, as older folders have them: single letters, and a few merges.
MERGES = ["f o", "fo x</w>", "r e", "re d</w>", "c a", "ca t</w>"]
BEGIN, END = "<|startoftext|>", "<|endoftext|>"


def write_stable_diffusion(folder: Path, pad: str = END, act: str = "quick_gelu") -> Path:
    """A folder as Stable Diffusion's releases are: U-Net, CLIP's text encoder, `vocab.json` and `merges.txt`."""
    write_folder(folder, "unet", "ddim")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"_class_name": "StableDiffusionPipeline", "text_encoder": ["transformers", "CLIPTextModel"]}
    index |= {"tokenizer": ["transformers", "CLIPTokenizer"], "safety_checker": [None, None]}
    index |= {"feature_extractor": [None, None], "requires_safety_checker": False}
    del index["_defaults"]
    (folder / "model_index.json").write_text(json.dumps(index))
    for role in ("text_encoder", "tokenizer"):
        for file in (folder / role).iterdir():
            file.unlink()
    letters = [chr(code) for code in range(33, 127)]
    vocab = [*letters, *(f"{letter}</w>" for letter in letters), *(merge.replace(" ", "") for merge in MERGES)]
    ids = {word: place for place, word in enumerate([*vocab, BEGIN, END])}
    words = folder / "tokenizer"
    (words / "vocab.json").write_text(json.dumps(ids))
    (words / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]) + "\n")
    about = {"model_max_length": LONGEST, "pad_token": pad, "bos_token": BEGIN, "eos_token": END, "unk_token": END}
    (words / "tokenizer_config.json").write_text(json.dumps(about | {"tokenizer_class": "CLIPTokenizer"}))
    config = transformers.CLIPTextConfig(
        vocab_size=len(ids), hidden_size=FEATURES, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=LONGEST, hidden_act=act, bos_token_id=ids[BEGIN], eos_token_id=ids[END],
        pad_token_id=ids[pad],
    )  # fmt: skip
    _random(transformers.CLIPTextModel(config), 0.3).save_pretrained(folder / "text_encoder")
    return folder


def tokens_of(text: str) -> tuple[int, ...]:
    return (1, *map(WORDS.index, text.split()), 2)


def _random(model: torch.nn.Module, scale: float) -> Any:
    """Norms and biases at 1 and 0, where the libraries leave them, would hide mistakes."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn_like(weight) * scale if weight.ndim > 1 else weight + torch.randn_like(weight) * 0.1
            )
    return model.eval()


def _autoencoder() -> Any:
    return _random(
        AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, latent_channels=4, sample_size=16,
            scaling_factor=0.7, shift_factor=0.1, mid_block_add_attention=False,
        ),
        0.15,
    )  # fmt: skip


def _transformer() -> Any:
    return _random(
        PixArtTransformer2DModel(
            num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2,
            cross_attention_dim=16, sample_size=SIDE, patch_size=2, caption_channels=FEATURES,
            use_additional_conditions=False, norm_num_groups=4,
        ),
        0.2,
    )  # fmt: skip


def _unet() -> Any:
    return _random(
        UNet2DConditionModel(
            sample_size=SIDE, in_channels=4, out_channels=4, block_out_channels=(8, 16), layers_per_block=1,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=FEATURES,
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), norm_num_groups=4, attention_head_dim=4,
        ),
        0.1,
    )  # fmt: skip


def _encoder() -> Any:
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=FEATURES, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=LONGEST,
    )  # fmt: skip
    return _random(transformers.BertModel(config, add_pooling_layer=False), 0.3)


def _write_tokenizer(folder: Path) -> None:
    rules = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    rules.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
    folder.mkdir()
    rules.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": LONGEST}))
