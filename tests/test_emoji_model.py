"""The shipped model `models/emoji-64`: its parts fit together, it stays small, and its name finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import headway
from headway.artifacts import resolve
from headway.artifacts.aliases import ALIASES, wheels
from headway.artifacts.shipped import Shipped, locate
from headway.cli import main
from headway.core.errors import ModelNotFound

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


def _files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def test_its_name_finds_it_in_a_checkout_and_within_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = ALIASES["emoji-64"].source
    assert isinstance(shipped, Shipped)
    place = locate(shipped).path  # the checkout's, or the copy in an installed package
    found = {each.relative_to(place): each.stat().st_size for each in _files(place)}
    assert found == {each.relative_to(FOLDER): each.stat().st_size for each in _files(FOLDER)}
    package = tmp_path / "site-packages" / "headway"
    monkeypatch.setattr(headway, "__file__", str(package / "__init__.py"))
    with pytest.raises(ModelNotFound, match="this build lacks it"):
        locate(shipped)
    (package / "models" / "emoji-64").mkdir(parents=True)
    assert locate(shipped).path == package / "models" / "emoji-64"


def test_its_alias_fetches_the_encoder_that_its_folder_names_and_nothing_else() -> None:
    shipped = ALIASES["emoji-64"].source
    assert isinstance(shipped, Shipped)
    assert shipped.needs == (_config("model_index.json")["_text_features"]["model"],)
    assert wheels(ALIASES["emoji-64"]) == (ALIASES["minilm-l6"].source,)


def test_models_says_what_it_does_and_what_is_usable(capsys: pytest.CaptureFixture[str]) -> None:
    resolve("emoji-64")  # whose encoder may have to be fetched
    assert main(["models", "emoji-64", "--offline"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "graph encode ×1 → update ×N → decode_pixels ×1; usable: image" in told
    assert "text encoder minilm-l6" in told and "None" not in told


def test_the_folder_stays_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < MOST_BYTES
