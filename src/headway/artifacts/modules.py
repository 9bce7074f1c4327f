"""What sentence-transformers' files say about a folder: `modules.json` and what it names.

The format is that library's (sbert.net, "Creating Custom Models"): a list of modules, each with a type and a folder.
A module that is not known is refused by name, since leaving one out would give other vectors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from headway.artifacts.files import SCORES, DenseStage, Modules, PoolingMode
from headway.artifacts.jsonfile import optional, required
from headway.core.errors import ArtifactError, UnsupportedModel

#: Architectures whose positions all see each other begin so; they are encoders, with modules.json or without.
ENCODERS = ("Bert", "Roberta", "XLMRoberta", "MPNet", "ModernBert", "NomicBert")
_DECODES = ("ForCausalLM", "LMHeadModel")

#: In the order in which several are put one after another.
_POOLING: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
_NAMED_POOLING: dict[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_VECTOR = "sentence_embedding"
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid")
_TRANSFORMERS = ("sentence_bert", "sentence_roberta", "sentence_xlm-roberta", "sentence_mpnet")


def read(name: str, folder: Path, config: dict[str, Any], tokenizer_config: dict[str, Any]) -> Modules | None:
    """None for a folder that holds no encoder. Raises UnsupportedModel for a module that is not known, ArtifactError
    for a file that says nothing usable."""
    path = folder / "modules.json"
    architectures = config.get("architectures") or ()
    if not path.exists() and not any(_is_encoder(each) for each in architectures):
        return None
    found = Modules(pooling=("mean",))
    if path.exists():
        found = _stages(name, folder, required(path))
    said = next((optional(folder / f"{stem}_config.json") for stem in _TRANSFORMERS if _exists(folder, stem)), {})
    options = optional(folder / "config_sentence_transformers.json")
    longest = [_tokens(name, "max_seq_length", said.get("max_seq_length"))]
    longest.append(_tokens(name, "model_max_length", tokenizer_config.get("model_max_length")))
    return replace(
        found,
        max_tokens=next((length for length in longest if length is not None), None),
        lowercase=bool(said.get("do_lower_case", False)),
        prompts={str(key): str(text) for key, text in (options.get("prompts") or {}).items()},
        default_prompt=options.get("default_prompt_name"),
        activation=_activation(name, config) if any(each.endswith(SCORES) for each in architectures) else "sigmoid",
    )


def _exists(folder: Path, stem: str) -> bool:
    return (folder / f"{stem}_config.json").exists()


def _is_encoder(architecture: str) -> bool:
    return architecture.startswith(ENCODERS) and not architecture.endswith(_DECODES)


def _stages(name: str, folder: Path, listed: Any) -> Modules:
    """The modules in their order, which is the only one that is known: encode, pool, dense, normalize."""
    found = Modules(pooling=())
    if not isinstance(listed, list):
        raise ArtifactError(f"{folder / 'modules.json'} is not a list of modules")
    done: list[str] = []
    for module in listed:
        kind, path = str(module.get("type", "")), str(module.get("path", ""))
        last = kind.rpartition(".")[2]
        if not kind.startswith("sentence_transformers.") or last not in _ORDER:
            raise UnsupportedModel(name, f"the module {kind} (modules.json)")
        before = _ORDER.index(done[-1]) if done else -1
        if _ORDER.index(last) < before + (last != "Dense"):
            raise UnsupportedModel(name, f"the module {kind} after {done[-1]} (modules.json)")
        done.append(last)
        where = _below(name, folder, path)
        if last == "Transformer" and where != folder:
            raise UnsupportedModel(name, f"an encoder in a folder of its own ({path})")
        if last == "Pooling":
            found = replace(found, pooling=_pooling(name, required(where / "config.json")))
        if last == "Dense":
            found = replace(found, dense=(*found.dense, _dense(name, path, required(where / "config.json"))))
        found = replace(found, normalize=found.normalize or last == "Normalize")
    if not found.pooling:
        raise UnsupportedModel(name, "no pooling (modules.json)")
    return found


_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")


def _below(name: str, folder: Path, path: str) -> Path:
    where = folder / path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ArtifactError(f"{name}: modules.json refers to {path!r}, which is outside the folder")
    return where


def _pooling(name: str, config: dict[str, Any]) -> tuple[PoolingMode, ...]:
    if config.get("include_prompt", True) is False:
        raise UnsupportedModel(name, "pooling that leaves out the prompt (include_prompt)")
    named = config.get("pooling_mode")
    if named is not None:
        names = [named] if isinstance(named, str) else list(named)
        unknown = [each for each in names if each not in _NAMED_POOLING]
        modes = tuple(_NAMED_POOLING[each] for each in names if each in _NAMED_POOLING)
    else:
        asked = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        unknown = [key for key in asked if key not in _POOLING]
        modes = tuple(mode for key, mode in _POOLING.items() if key in asked)
    if unknown or not modes:
        raise UnsupportedModel(name, f"pooling of type {unknown[0] if unknown else None!r}")
    return modes


def _dense(name: str, path: str, config: dict[str, Any]) -> DenseStage:
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(name, f"the activation {activation!r} of {path}")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, _VECTOR) != _VECTOR:
            raise UnsupportedModel(name, f"a dense layer on {config[key]!r} ({key} of {path})")
    sizes = [config.get("in_features"), config.get("out_features")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ArtifactError(f"{name}: {path} has in_features {sizes[0]!r} and out_features {sizes[1]!r}")
    return DenseStage(path, int(sizes[0] or 0), int(sizes[1] or 0), bool(config.get("bias", True)), activation)


def _activation(name: str, config: dict[str, Any]) -> Literal["sigmoid", "identity"]:
    """As sentence-transformers' CrossEncoder: what the config says, else a sigmoid of the one logit."""
    said = (config.get("sentence_transformers") or {}).get("activation_fn")
    said = said or config.get("sbert_ce_default_activation_function") or "torch.nn.modules.activation.Sigmoid"
    match str(said).rpartition(".")[2]:
        case "Sigmoid":
            return "sigmoid"
        case "Identity":
            return "identity"
        case other:
            raise UnsupportedModel(name, f"the activation {other!r} of a score")


def _tokens(name: str, key: str, value: Any) -> int | None:
    """None where it says nothing (transformers writes 1e30 for that)."""
    if value is None or (isinstance(value, int | float) and value > 10**9):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArtifactError(f"{name}: {key} is {value!r}; it must be a number of tokens")
    return value
