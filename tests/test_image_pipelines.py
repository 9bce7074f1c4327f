"""Folders as they are released, against diffusers' own pipelines with the same noise; what is refused, by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("diffusers")

import diffusers

from headway.artifacts import resolve
from headway.compute.image.executor import DiffusionExecutor
from headway.core.errors import ArtifactError, UnsupportedModel
from headway.core.plan import DecodePixels, Encode, Pixels, StepPlan, Update
from headway.text.tokenizer import Tokenizer
from tiny_images import BEGIN, END, LONGEST, write_folder, write_stable_diffusion

#: Of a pixel, of 255: one level, where rounding goes the other way.
TOLERANCE = 1
PROMPTS = ["a red fox", "", "Cats!  fox's 42", "é   zebra"]


def load(folder: Path) -> DiffusionExecutor:
    files = resolve(str(folder), cache=folder / "cache")
    return DiffusionExecutor.load(files, cache=folder, threads=1, weights="fp32")


@pytest.mark.parametrize(("pad", "act"), [(END, "quick_gelu"), ("!", "gelu")], ids=["as 1.5", "as 2.1"])
def test_stable_diffusion_is_what_diffusers_own_pipeline_makes_of_it(tmp_path: Path, pad: str, act: str) -> None:
    folder = write_stable_diffusion(tmp_path / "m", pad, act)
    executor = load(folder)
    files = resolve(str(folder), cache=folder / "cache")
    assert files.pipeline is not None and (files.pipeline.steps, files.pipeline.guidance) == (50, 7.5)
    tokenizer = Tokenizer(files.pipeline.text)
    tokens = [tuple(tokenizer.encode_with_special(text)[0]) for text in ("a red fox", "cat")]
    executor.run(StepPlan(0, (Encode(1, tokens[0], 7, 6, tokens[1], 4.0), Encode(2, tokens[1], 8, 6))))
    for index in range(6):
        executor.run(StepPlan(1, (Update(1, index, 6), Update(2, index, 6))))
    made = executor.run(StepPlan(2, (DecodePixels(1), DecodePixels(2)))).results

    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    for pixels, prompt, away, seed, guidance in zip(
        made, ("a red fox", "cat"), ("cat", None), (7, 8), (4.0, 1.0), strict=True
    ):
        image = pipeline(
            prompt, negative_prompt=away, num_inference_steps=6, guidance_scale=guidance,
            generator=torch.Generator().manual_seed(seed),
        ).images[0]  # fmt: skip
        assert isinstance(pixels, Pixels)
        expected = np.frombuffer(image.tobytes(), np.uint8).astype(int)
        assert np.abs(expected - np.frombuffer(pixels.data, np.uint8)).max() <= TOLERANCE
        assert len(np.unique(expected)) > 20


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_tokenizer_of_two_files_gives_the_tokens_that_transformers_gives(tmp_path: Path, prompt: str) -> None:
    folder = write_stable_diffusion(tmp_path / "m")
    files = resolve(str(folder), cache=tmp_path / "cache")
    assert files.pipeline is not None and files.max_context == LONGEST
    theirs = transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer")
    mine = Tokenizer(files.pipeline.text).encode_with_special(prompt)[0]
    assert mine == theirs(prompt)["input_ids"]
    assert [mine[0], mine[-1]] == theirs.convert_tokens_to_ids([BEGIN, END])


def test_of_pixarts_pipelines_only_the_text_encoder_is_not_served_and_it_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", _class_name="PixArtSigmaPipeline")
    assert load(folder).facts.pattern == "image"
    change(folder / "model_index.json", text_encoder=["transformers", "T5EncoderModel"])
    with pytest.raises(UnsupportedModel, match="the text encoder T5EncoderModel; CLIPTextModel, BertModel"):
        load(folder)


@pytest.mark.parametrize(
    "pipeline", ["StableDiffusion3Pipeline", "StableDiffusionXLPipeline", "FluxPipeline", "PixArtPipeline"]
)
def test_a_pipeline_that_is_not_served_is_named_beside_those_that_are(tmp_path: Path, pipeline: str) -> None:
    folder = write_folder(tmp_path / "m", _class_name=pipeline)
    with pytest.raises(UnsupportedModel, match=f"the pipeline {pipeline}; DiffusionPipeline, StableDiff"):
        load(folder)


def test_a_safety_checker_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write_stable_diffusion(tmp_path / "m")
    change(folder / "model_index.json", safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])
    with pytest.raises(UnsupportedModel, match=r"safety_checker \(StableDiffusionSafetyChecker.*set it to null"):
        load(folder)


def test_what_does_not_fit_together_is_told(tmp_path: Path) -> None:
    folder = write_stable_diffusion(tmp_path / "m")
    config = folder / "text_encoder" / "config.json"
    change(config, hidden_act="tanh")
    with pytest.raises(UnsupportedModel, match="hidden_act 'tanh' of its text encoder"):
        load(folder)
    change(config, hidden_act="gelu", num_hidden_layers=4)
    with pytest.raises(ArtifactError, match=r"lacks the tensor text_model.encoder.layers.3"):
        load(folder)
    change(config, num_hidden_layers=2)
    with pytest.raises(UnsupportedModel, match=r"the tensor .*encoder.layers.2.* of its text encoder"):
        load(folder)
    change(folder / "tokenizer" / "tokenizer_config.json", pad_token=None)
    with pytest.raises(UnsupportedModel, match="without a pad_token"):
        load(folder)


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
