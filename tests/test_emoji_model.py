"""The shipped model `models/emoji-64`: its parts fit together, and it stays small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from headway.artifacts.aliases import ALIASES

FOLDER = Path(__file__).parent.parent / "models" / "emoji-64"
MOST_BYTES = 20_000_000


def _config(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / part).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("part", ["transformer", "vae"])
def test_the_weights_of_each_part_are_bf16_and_finite(part: str) -> None:
    tensors = load_file(FOLDER / part / "diffusion_pytorch_model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.bfloat16"}
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_latents_and_features_have_the_same_shape_on_both_sides() -> None:
    index, transformer, vae = (
        _config(name) for name in ("model_index.json", "transformer/config.json", "vae/config.json")
    )
    halvings = len(vae["block_out_channels"]) - 1
    assert transformer["in_channels"] == transformer["out_channels"] == vae["latent_channels"]
    assert transformer["sample_size"] * 2**halvings == vae["sample_size"] == 64
    assert transformer["caption_channels"] == index["_text_features"]["width"]
    assert transformer["sample_size"] % transformer["patch_size"] == 0


def test_the_prompts_features_come_from_a_model_with_an_alias() -> None:
    features = _config("model_index.json")["_text_features"]
    assert ALIASES[features["model"]].pattern == "embed"


def test_the_folder_stays_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < MOST_BYTES
