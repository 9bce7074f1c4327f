"""Diffusion models: folders in diffusers' format, a `model_index.json` with a folder for each part that it names.

Beside diffusers' own keys two of ours are read. `_text_features` names an encoder that is no part of the folder (an
alias, or whatever `headway serve` takes), so that a small model need not bring a large one. `_defaults` says how many
steps and how much guidance an image gets that does not say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.artifacts import clip, revision
from headway.artifacts import folder as folders
from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles, Part, Pipeline
from headway.artifacts.jsonfile import required
from headway.artifacts.location import Location
from headway.artifacts.modules import ENCODERS
from headway.core.errors import ArtifactError, UnsupportedModel

INDEX = "model_index.json"
_WEIGHTS = "diffusion_pytorch_model"
#: diffusers' classes that are served: pipelines, with the steps and the guidance of an image that does not say, and
#: their parts by role.
PIPELINES = {
    "DiffusionPipeline": (Pipeline.steps, Pipeline.guidance),
    "StableDiffusionPipeline": (50, 7.5),
    "PixArtAlphaPipeline": (20, 4.5),
    "PixArtSigmaPipeline": (20, 4.5),
}
DENOISERS = {"transformer": ("PixArtTransformer2DModel",), "unet": ("UNet2DConditionModel",)}
AUTOENCODERS = ("AutoencoderKL",)
NOISE_SCHEDULERS = (
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "DDIMScheduler",
    "DPMSolverMultistepScheduler",
)
#: Says only whether another part, which is refused where it is there, may be left out.
_SAYS_NOTHING = ("requires_safety_checker",)
#: They judge finished images. None is served, and leaving one out is its user's decision.
_CHECKERS = ("safety_checker", "feature_extractor")
TEXT_ENCODERS = (clip.KIND, *(f"{family}Model" for family in ENCODERS))
_FEATURES = ("model", "output", "width", "max_tokens", "unconditional")


def load(name: str, location: Location, cache: Cache, fetch: Callable[[str], ModelFiles]) -> ModelFiles:
    """Read everything but the weights; `fetch` finds an encoder that is no part of the folder. Raises
    UnsupportedModel for a part that is not served, by its name, ModelNotFound for a missing file, ArtifactError for a
    damaged one."""
    index = required(location.path / INDEX)
    kind = index.get("_class_name")
    if kind not in PIPELINES:
        raise UnsupportedModel(name, f"the pipeline {kind}; {', '.join(PIPELINES)} can be served, and it")
    parts = _parts(name, location.path, index)
    role = next((role for role in DENOISERS if role in parts), None)
    if role is None:
        raise UnsupportedModel(name, "no transformer and no unet (model_index.json)")
    for needed in ("scheduler", "vae"):
        if needed not in parts:
            raise UnsupportedModel(name, f"no {needed} (model_index.json)")
    denoiser, autoencoder = (_weighted(name, parts[each]) for each in (role, "vae"))
    found = _text(name, location, index, parts, cache, fetch)
    shards = dict.fromkeys(folders.shards_of(name, denoiser.folder, _WEIGHTS), f"{role}.")
    shards |= dict.fromkeys(folders.shards_of(name, autoencoder.folder, _WEIGHTS), "vae.")
    steps, guidance = _defaults(name, index, *PIPELINES[kind])
    pipeline = Pipeline(
        denoiser,
        autoencoder,
        parts["scheduler"],
        found.files,
        found.max_tokens,
        found.unconditional,
        steps,
        guidance,
        found.fill,
    )
    return ModelFiles(
        name=name,
        revision=revision.of_identity(location.identity) if location.identity else revision.of_files(list(shards)),
        config=index | {"architectures": [part.kind for part in (denoiser, autoencoder, parts["scheduler"])]},
        tensors=folders.FolderTensors(name, shards),
        weights_bytes=sum(shard.stat().st_size for shard in shards),
        tokenizer=found.files.tokenizer,
        chat_template=None,
        bos_id=None,
        add_bos=False,
        eos_ids=(),
        special=found.files.special,
        source=location.source or str(location.path),
        pipeline=pipeline,
    )


def _parts(name: str, folder: Path, index: dict[str, Any]) -> dict[str, Part]:
    """By role. A part that is not served is refused by its name; one that is null is not there."""
    served = {
        "scheduler": NOISE_SCHEDULERS,
        "vae": AUTOENCODERS,
        **DENOISERS,
        "text_encoder": None,
        "tokenizer": None,
    }
    found: dict[str, Part] = {}
    for role, said in index.items():
        if role.startswith("_") or said is None or said == [None, None] or role in _SAYS_NOTHING:
            continue
        if not isinstance(said, list) or len(said) != 2 or role not in served:
            without = ": set it to null to do without it. It" if role in _CHECKERS else ""
            raise UnsupportedModel(name, f"{role} ({_shown(said)} in model_index.json){without}")
        kind, classes = str(said[1]), served[role]
        if classes is not None and kind not in classes:
            what = "noise scheduler" if role == "scheduler" else role
            raise UnsupportedModel(name, f"the {what} {kind}; {', '.join(classes)} can be served, and it")
        config = {"scheduler": "scheduler_config.json", "tokenizer": None}.get(role, "config.json")
        found[role] = Part(folder / role, kind, {} if config is None else required(folder / role / config))
    return found


def _shown(said: Any) -> str:
    return str(said[1]) if isinstance(said, list) and len(said) == 2 else repr(said)


def _weighted(name: str, part: Part) -> Part:
    if "quantization_config" in part.config:
        raise UnsupportedModel(name, f"quantised weights ({part.folder.name}/config.json)")
    return part


@dataclass(frozen=True)
class _Text:
    """The encoder, and what `Pipeline` says of prompts."""

    files: ModelFiles
    max_tokens: int
    unconditional: str = ""
    fill: int | None = None


def _text(
    name: str,
    location: Location,
    index: dict[str, Any],
    parts: dict[str, Part],
    cache: Cache,
    fetch: Callable[[str], ModelFiles],
) -> _Text:
    said = index.get("_text_features")
    if said is None:
        if "text_encoder" not in parts:
            raise UnsupportedModel(name, "no text_encoder (model_index.json)")
        kind = parts["text_encoder"].kind
        folder, words = replace(location, path=location.path / "text_encoder"), location.path / "tokenizer"
        if kind == clip.KIND:
            text, longest, fill = clip.load(name, folder, words, cache)
            return _Text(text, longest, fill=fill)
        if not kind.startswith(ENCODERS):
            raise UnsupportedModel(name, f"the text encoder {kind}; {', '.join(TEXT_ENCODERS)} can be served, and it")
        text = folders.load(name, folder, words=words)
        if text.pattern != "embed":
            raise UnsupportedModel(name, f"the text encoder {kind}")
        return _Text(text, _longest(name, text, text.max_context))
    unknown = [key for key in said if key not in _FEATURES]
    if unknown or said.get("output", "last_hidden_state") != "last_hidden_state":
        what = unknown[0] if unknown else f"the output {said['output']!r}"
        raise UnsupportedModel(name, f"{what} of _text_features (model_index.json)")
    text = fetch(str(said["model"]))
    if text.pattern != "embed":
        raise UnsupportedModel(name, f"{text.name} as its text encoder, which makes no features of texts,")
    if said.get("width", text.config.get("hidden_size")) != text.config.get("hidden_size"):
        raise ArtifactError(
            f"{name} attends to features of {said['width']} values; {text.name} has {text.config['hidden_size']}"
        )
    return _Text(text, _longest(name, text, said.get("max_tokens")), str(said.get("unconditional", "")))


def _longest(name: str, text: ModelFiles, tokens: Any) -> int:
    most = text.max_context
    if not isinstance(tokens, int) or tokens < 1 or (most is not None and tokens > most):
        raise ArtifactError(f"{name}: prompts of {tokens!r} tokens; its text encoder takes from 1 to {most}")
    return tokens


def _defaults(name: str, index: dict[str, Any], steps: int, guidance: float) -> tuple[int, float]:
    said = index.get("_defaults", {})
    unknown = [key for key in said if key not in ("steps", "guidance")]
    if unknown:
        raise UnsupportedModel(name, f"{unknown[0]} of _defaults (model_index.json)")
    steps, guidance = said.get("steps", steps), said.get("guidance", guidance)
    if not isinstance(steps, int) or steps < 1 or not isinstance(guidance, int | float) or guidance < 0:
        raise ArtifactError(f"{name}: _defaults are {steps!r} steps and guidance {guidance!r}")
    return steps, float(guidance)
