"""A model's files, wherever they came from, under one set of names: those of Hugging Face's `config.json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from headway.core.errors import ArtifactError
from headway.core.request import Pattern

if TYPE_CHECKING:
    import numpy as np


class Tensors(Protocol):
    """A model's weights under Hugging Face's names."""

    def names(self) -> list[str]: ...

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor once, in the files' order, as float32 in Hugging Face's shape and row order."""
        ...

    def digest(self) -> str:
        """Hexadecimal digits that say what `read` would yield: equal only where every value is. Reads all bytes."""
        ...


#: How hidden states become one vector: sentence-transformers' ways, several of them one after another.
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt", "weighted_mean", "last"]


@dataclass(frozen=True)
class DenseStage:
    """A product on the pooled vector. Its tensors are `{folder}.linear.weight` and `.bias`; `activation` is the name
    of a class of torch: Identity, Tanh, ReLU, GELU or Sigmoid."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True)
class Modules:
    """What comes before and after an encoder's hidden states, as sentence-transformers' files say it. The defaults
    are what that library does with a folder that says nothing.

    max_tokens      longest input, special tokens included; None: what the positions allow
    lowercase       texts are lowercased before they become tokens
    prompts         by name, what is put before a text; `default_prompt` names the one used where none is asked for
    activation      what a cross-encoder's one logit becomes: with "sigmoid" a score from 0 to 1
    """

    pooling: tuple[PoolingMode, ...] = ("mean",)
    dense: tuple[DenseStage, ...] = ()
    normalize: bool = False
    max_tokens: int | None = None
    lowercase: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    activation: Literal["sigmoid", "identity"] = "sigmoid"


@dataclass(frozen=True)
class Part:
    """One part of a diffusion model: its folder, the name of diffusers' class for it, and its config."""

    folder: Path
    kind: str
    config: dict[str, Any]


@dataclass(frozen=True)
class Pipeline:
    """What a diffusion model is made of, as its `model_index.json` says it.

    denoiser        predicts what is noise in a latent; its role is `transformer` or `unet`
    autoencoder     latents to pixels
    noise           the noise scheduler, which has no weights
    text            the encoder whose last hidden states the denoiser attends to
    max_tokens      longest prompt, special tokens included
    unconditional   the prompt of the other side of guidance, where none is given
    steps, guidance what an image gets that does not say
    fill            the token with which a prompt is filled up to the longest, where the denoiser attends to that too
    """

    denoiser: Part
    autoencoder: Part
    noise: Part
    text: ModelFiles
    max_tokens: int
    unconditional: str = ""
    steps: int = 20
    guidance: float = 1.0
    fill: int | None = None


@dataclass(frozen=True)
class ModelFiles:
    """What the rest of Headway knows about a model before it is loaded.

    name           what the user typed
    revision       12 hexadecimal digits that change whenever the weights do; part of every prefix key
    config         as in `config.json` (a GGUF's metadata is translated to it)
    tensors        the weights
    weights_bytes  size of the weights as they lie on disk
    tokenizer      path of a `tokenizer.json` (built once and cached for a GGUF)
    chat_template  the Jinja source, or None for a model that has none
    bos_id         the token that starts a text, or None; add_bos says whether a plain prompt gets it
    eos_ids        every token that ends an answer (config, generation config and tokenizer together)
    special        strings that templates refer to, such as {"eos_token": "<|im_end|>"}
    source         one line for people: where the files came from
    modules        what surrounds an encoder; None for a model of another kind
    pipeline       the parts of a diffusion model
    """

    name: str
    revision: str
    config: dict[str, Any]
    tensors: Tensors
    weights_bytes: int
    tokenizer: Path
    chat_template: str | None
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]
    special: dict[str, str]
    source: str
    modules: Modules | None = None
    pipeline: Pipeline | None = None

    @property
    def pattern(self) -> Pattern:
        """What repeats: a latent's updates; nothing, for an encoder's inputs are evaluated once; or tokens."""
        if self.pipeline is not None:
            return "image"
        return "text" if self.modules is None else "embed"

    @property
    def output(self) -> Literal["tokens", "vector", "score", "pixels"]:
        """What a caller can use of it."""
        if self.pipeline is not None:
            return "pixels"
        if self.modules is None:
            return "tokens"
        return "score" if any(name.endswith(SCORES) for name in self.config.get("architectures") or ()) else "vector"

    @property
    def max_context(self) -> int | None:
        """Positions of the longest input, if the files say it; an encoder's learned positions may allow fewer."""
        if self.pipeline is not None:
            return self.pipeline.max_tokens
        longest = self.config.get("max_position_embeddings")
        most = None if self.modules is None else self.modules.max_tokens
        return longest if most is None else min(most, longest or most)

    @property
    def graph(self) -> tuple[str, ...]:
        """The model's work on one input, stage by stage."""
        if self.pipeline is not None:
            return ("encode ×1", "update ×N", "decode_pixels ×1")
        if self.modules is None:
            return ("prefill ×1", "decode ×(tokens − 1)")
        if self.output == "score":
            return ("encode ×1", "score ×1")
        dense = (f"dense ×{len(self.modules.dense)}",) if self.modules.dense else ()
        return ("encode ×1", "pool ×1", *dense, *(("normalize ×1",) if self.modules.normalize else ()))


#: How the names of cross-encoders' architectures end.
SCORES = "ForSequenceClassification"


def check_id(model: str, key: str, id: Any, vocab: int | None) -> None:
    """Raises ArtifactError unless `id`, the value of `key`, is a token of a vocabulary of `vocab` tokens."""
    if not isinstance(id, int) or isinstance(id, bool):
        raise ArtifactError(f"{model}: {key} is {id!r}, which is not a token id")
    if id < 0 or (vocab is not None and id >= vocab):
        raise ArtifactError(f"{model}: {key} is {id}, which is outside the vocabulary (0 to {(vocab or 1) - 1})")
