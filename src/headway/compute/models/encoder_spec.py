"""What a bidirectional encoder is made of, read from its `config.json`; what is not implemented is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headway.compute.models.numbers import count, positive
from headway.compute.models.rope import Rope
from headway.core.errors import ArtifactError, UnsupportedModel

Config = Mapping[str, Any]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
#: What stands between the hidden states and a cross-encoder's score.
Head = Literal["none", "pooler", "dense", "dense_norm"]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
}

#: Config keys that change an encoder's mathematics in a way that is not implemented, unless unset (or at the value).
REFUSED_KEYS: dict[str, tuple[str, Any]] = {
    "quantization_config": ("weights quantised in its own format", None),
    "is_decoder": ("attention to earlier positions only (is_decoder)", False),
    "add_cross_attention": ("attention to another model's states", False),
    "pruned_heads": ("pruned attention heads", {}),
    "position_embedding_type": ("positions of another kind (position_embedding_type)", "absolute"),
    "num_experts": ("a mixture of experts", 0),
    "moe_every_n_layers": ("a mixture of experts", 0),
    "rotary_emb_fraction": ("partial rotary embedding", 1.0),
    "rotary_emb_interleaved": ("interleaved rotary embedding", False),
    "rotary_emb_scale_base": ("scaled rotary embedding (xPos)", None),
    "rotary_scaling_factor": ("rotary embedding that depends on the length (rotary_scaling_factor)", None),
    "use_rms_norm": ("RMSNorm", False),
    "prenorm": ("norms before each block, unknown to its architecture", False),
    "parallel_block": ("attention and MLP side by side", False),
    "embedding_size": ("embeddings of another size than the hidden states", None),
}


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """The shape of an encoder: BERT (Devlin et al. 2019) and what came of it. Sizes count values.

    max_context       positions of the longest input
    positions         rows of the table of learned positions; 0: there is none
    first_position    the row of an input's first position (RoBERTa's tables start with rows of padding)
    types             rows of the table of token types; 0: there is none
    buckets           MPNet's relative positions (Song et al. 2020), as a bias on the scores; 0: none
    ropes             rotary embedding of each layer, or None
    windows           of each layer, how far a position sees to each side; 0: to the ends
    pre_norm          norms before each block and one at the end (ModernBERT), not after each (BERT)
    gated             the MLP is act(gate) · up (Shazeer 2020)
    bias              of attention and MLP: biases of the products
    head              of a cross-encoder; `head_pooling` says which hidden states it sees
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocab: int
    max_context: int
    norm_eps: float
    activation: Activation
    positions: int = 0
    first_position: int = 0
    types: int = 0
    buckets: int = 0
    ropes: tuple[Rope | None, ...] = ()
    windows: tuple[int, ...] = ()
    pre_norm: bool = False
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    head: Head = "none"
    head_bias: bool = True
    head_activation: Literal["tanh"] | Activation = "tanh"
    head_pooling: Literal["cls", "mean"] = "cls"

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def kind(self) -> str:
        """The family: the architecture without its head."""
        return _KINDS[self.architecture][0]

    @classmethod
    def from_config(cls, config: Config, name: str) -> EncoderSpec:
        """Raises UnsupportedModel that names the feature, or ArtifactError that names the missing key."""
        architecture = _architecture(config, name)
        _refuse(config, name)
        kind, head = _KINDS[architecture]
        spec = _FAMILIES[kind](config, name, architecture, head)
        if spec.hidden % spec.heads:
            raise UnsupportedModel(name, f"{spec.heads} heads with a hidden size of {spec.hidden} (not a multiple)")
        if any(spec.ropes) and spec.head_dim % 2:
            raise UnsupportedModel(name, f"rotary embedding (RoPE) with an odd head dimension ({spec.head_dim})")
        return spec


def _architecture(config: Config, name: str) -> str:
    architectures: list[str] = config.get("architectures") or ["(none named)"]
    for architecture in architectures:
        if architecture in _KINDS:
            return architecture
    raise UnsupportedModel(name, f"the architecture {architectures[0]}")


def _refuse(config: Config, name: str) -> None:
    for key, (feature, harmless) in REFUSED_KEYS.items():
        if config.get(key) not in (None, harmless):
            raise UnsupportedModel(name, f"{feature} ({key} {config[key]!r})")


def _labels(config: Config, name: str, head: Head) -> None:
    """A score is one number: a head of several labels says something else."""
    labels = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    if head != "none" and labels != 1:
        raise UnsupportedModel(name, f"a classification head of {labels} labels (one, a score, is supported)")


def _activation(config: Config, name: str, key: str, default: str) -> Activation:
    found = config.get(key) or default
    if found not in ACTIVATIONS:
        raise UnsupportedModel(name, f"the activation {found!r}")
    return ACTIVATIONS[found]


def _bert(config: Config, name: str, architecture: str, head: Head) -> EncoderSpec:
    """BERT, RoBERTa, XLM-RoBERTa and MPNet: they differ in where positions start, and in what else is added."""
    _labels(config, name, head)
    kind = _KINDS[architecture][0]
    first = 0
    if kind != "bert":
        padding = 1 if kind == "mpnet" else config.get("pad_token_id", 1)
        if not isinstance(padding, int) or isinstance(padding, bool) or padding < 0:
            raise ArtifactError(f"{name}: pad_token_id in config.json is {padding!r}; positions start after it")
        first = padding + 1
    positions = count(config, name, "max_position_embeddings", 512)
    if positions <= first:
        raise ArtifactError(f"{name}: {positions} positions, of which {first} are for padding, leave none")
    return EncoderSpec(
        name=name,
        architecture=architecture,
        layers=count(config, name, "num_hidden_layers"),
        hidden=count(config, name, "hidden_size"),
        heads=count(config, name, "num_attention_heads"),
        intermediate=count(config, name, "intermediate_size"),
        vocab=count(config, name, "vocab_size"),
        max_context=positions - first,
        norm_eps=positive(config, name, "layer_norm_eps", 1e-12),
        activation=_activation(config, name, "hidden_act", "gelu"),
        positions=positions,
        first_position=first,
        types=0 if kind == "mpnet" else count(config, name, "type_vocab_size", 2),
        buckets=count(config, name, "relative_attention_num_buckets", 32) if kind == "mpnet" else 0,
        ropes=(None,) * config["num_hidden_layers"],
        windows=(0,) * config["num_hidden_layers"],
        head=head,
    )


def _modernbert(config: Config, name: str, architecture: str, head: Head) -> EncoderSpec:
    """Warner et al. 2024: norms before the blocks, GeGLU, and rotary positions with local and global layers."""
    _labels(config, name, head)
    layers = count(config, name, "num_hidden_layers")
    every = count(config, name, "global_attn_every_n_layers", 3)
    plain = ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    kinds = config.get("layer_types") or plain
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(name, f"layers of type {kind!r}")
    if len(kinds) != layers:
        raise ArtifactError(f"{name}: layer_types in config.json lists {len(kinds)} of {layers} layers")
    ropes = {
        "full_attention": _layer_rope(config, name, "full_attention", "global_rope_theta", 160_000.0),
        "sliding_attention": _layer_rope(config, name, "sliding_attention", "local_rope_theta", 10_000.0),
    }
    window = count(config, name, "local_attention", 128) // 2
    return EncoderSpec(
        name=name,
        architecture=architecture,
        layers=layers,
        hidden=count(config, name, "hidden_size"),
        heads=count(config, name, "num_attention_heads"),
        intermediate=count(config, name, "intermediate_size"),
        vocab=count(config, name, "vocab_size"),
        max_context=count(config, name, "max_position_embeddings"),
        norm_eps=positive(config, name, "norm_eps", 1e-5),
        activation=_activation(config, name, "hidden_activation", "gelu"),
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(window if kind == "sliding_attention" else 0 for kind in kinds),
        pre_norm=True,
        gated=True,
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        norm_bias=bool(config.get("norm_bias", False)),
        head=head,
        head_bias=bool(config.get("classifier_bias", False)),
        head_activation=_activation(config, name, "classifier_activation", "gelu"),
        head_pooling="mean" if config.get("classifier_pooling") == "mean" else "cls",
    )


def _layer_rope(config: Config, name: str, kind: str, key: str, theta: float) -> Rope:
    """transformers 5 writes `rope_parameters` for each kind of layer, older files one theta for each."""
    given = dict((config.get("rope_parameters") or {}).get(kind) or {})
    given.setdefault("rope_theta", config.get(key) or theta)
    return Rope.from_config({"rope_parameters": {**given, **(config.get("rope_scaling") or {})}}, name)


def _nomic(config: Config, name: str, architecture: str, head: Head) -> EncoderSpec:
    """Nussbaum et al. 2024: BERT with rotary positions, SwiGLU and no biases. Two spellings: transformers' own, and
    that of the published code (GPT-2's names)."""
    for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
        if config.get(key):
            raise UnsupportedModel(name, f"biases on its linear layers ({key})")
    act = config.get("activation_function") or config.get("hidden_act") or "silu"
    if ACTIVATIONS.get(act) != "silu":
        raise UnsupportedModel(name, f"the activation {act!r}")
    layers = _either(config, name, "num_hidden_layers", "n_layer")
    theta = config.get("rotary_emb_base") or 1000.0
    rope = Rope.from_config({"rope_theta": theta, **config}, name)
    return EncoderSpec(
        name=name,
        architecture=architecture,
        layers=layers,
        hidden=_either(config, name, "hidden_size", "n_embd"),
        heads=_either(config, name, "num_attention_heads", "n_head"),
        intermediate=_either(config, name, "intermediate_size", "n_inner"),
        vocab=count(config, name, "vocab_size"),
        max_context=_either(config, name, "max_position_embeddings", "n_positions"),
        norm_eps=positive(
            config, name, "layer_norm_eps" if "layer_norm_eps" in config else "layer_norm_epsilon", 1e-12
        ),
        activation="silu",
        types=count(config, name, "type_vocab_size", 2),
        ropes=(rope,) * layers,
        windows=(0,) * layers,
        gated=True,
        attention_bias=False,
        mlp_bias=False,
        head=head,
    )


def _either(config: Config, name: str, key: str, other: str) -> int:
    return count(config, name, key if key in config else other)


_FAMILIES: dict[str, Callable[[Config, str, str, Head], EncoderSpec]] = {
    "bert": _bert,
    "roberta": _bert,
    "mpnet": _bert,
    "modernbert": _modernbert,
    "nomic": _nomic,
}

#: Architectures by name: family, and the head of a cross-encoder. A masked language model's own head is not used.
_KINDS: dict[str, tuple[str, Head]] = {
    "BertModel": ("bert", "none"),
    "BertForMaskedLM": ("bert", "none"),
    "BertForPreTraining": ("bert", "none"),
    "BertForSequenceClassification": ("bert", "pooler"),
    "RobertaModel": ("roberta", "none"),
    "RobertaForMaskedLM": ("roberta", "none"),
    "RobertaForSequenceClassification": ("roberta", "dense"),
    "XLMRobertaModel": ("roberta", "none"),
    "XLMRobertaForMaskedLM": ("roberta", "none"),
    "XLMRobertaForSequenceClassification": ("roberta", "dense"),
    "MPNetModel": ("mpnet", "none"),
    "MPNetForMaskedLM": ("mpnet", "none"),
    "MPNetForSequenceClassification": ("mpnet", "dense"),
    "ModernBertModel": ("modernbert", "none"),
    "ModernBertForMaskedLM": ("modernbert", "none"),
    "ModernBertForSequenceClassification": ("modernbert", "dense_norm"),
    "NomicBertModel": ("nomic", "none"),
}
