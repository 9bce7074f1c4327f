"""Tiny encoders with random weights, by transformers: the oracle of what an encoder computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from headway.artifacts.files import ModelFiles, Modules
from headway.compute.embed.executor import EncoderExecutor
from headway.core.plan import Evaluate, StepPlan
from tiny_decoders import StateDict

VOCAB, HIDDEN = 97, 64
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 160,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "initializer_range": 0.15,
}
#: What is told apart → (class of transformers, config beyond `SIZES`).
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {}),
    "bert, tanh gelu": ("BertModel", {"hidden_act": "gelu_new"}),
    "roberta": ("RobertaModel", {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaModel", {"type_vocab_size": 1}),
    "roberta, padding 4": ("RobertaModel", {"type_vocab_size": 1, "pad_token_id": 4}),
    "mpnet": ("MPNetModel", {}),
    "modernbert": ("ModernBertModel", {"local_attention": 16, "global_attn_every_n_layers": 2}),
    "modernbert, biases": (
        "ModernBertModel",
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "local_attention": 16},
    ),
    "nomic": ("NomicBertModel", {}),
}
CROSS_ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", {"num_labels": 1}),
    "roberta": ("RobertaForSequenceClassification", {"num_labels": 1, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", {"num_labels": 1, "type_vocab_size": 1}),
    "mpnet": ("MPNetForSequenceClassification", {"num_labels": 1}),
    "modernbert": ("ModernBertForSequenceClassification", {"num_labels": 1, "local_attention": 16}),
    "modernbert, mean": (
        "ModernBertForSequenceClassification",
        {"num_labels": 1, "classifier_pooling": "mean", "classifier_bias": True, "local_attention": 16},
    ),
}


def oracle(kind: str, table: dict[str, tuple[str, dict[str, Any]]] = ENCODERS) -> transformers.PreTrainedModel:
    name, extra = table[kind]
    cls = getattr(transformers, name)
    torch.manual_seed(7)
    model = cls(cls.config_class(**SIZES | extra)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # transformers starts biases at 0 and norms at 1, which hides mistakes
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def files_of(model: transformers.PreTrainedModel, modules: Modules | None = None, **changed: Any) -> ModelFiles:
    arrays = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    return ModelFiles(
        name="tiny",
        revision="0123456789ab",
        config=model.config.to_dict() | {"architectures": [type(model).__name__]} | changed,
        tensors=StateDict(arrays),
        weights_bytes=sum(array.nbytes for array in arrays.values()),
        tokenizer=Path("tokenizer.json"),
        chat_template=None,
        bos_id=None,
        add_bos=False,
        eos_ids=(),
        special={},
        source="random weights",
        modules=modules or Modules(),
    )


def load(files: ModelFiles, weights: str = "fp32", **options: Any) -> EncoderExecutor:
    options.setdefault("cache", Path("unused"))
    return EncoderExecutor.load(files, weights=weights, threads=1, max_step_positions=2048, **options)


def save(model: transformers.PreTrainedModel, folder: Path, parts: dict[str, Any] | None = None) -> Path:
    """A folder as Hugging Face has it, with a tokenizer of whole words w0, w1, …; `parts` are further JSON files."""
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in (parts or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def tokenizer() -> Tokenizer:
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3} | {f"w{i}": 4 + i for i in range(VOCAB - 4)}
    rules = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rules.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return rules


def text(length: int, seed: int = 0) -> tuple[int, ...]:
    """`length` tokens, none of them special."""
    return (2, *np.random.default_rng(seed + 1000 * length).integers(5, VOCAB, length - 2).tolist(), 3)


def run(executor: EncoderExecutor, *items: Evaluate) -> list[np.ndarray]:
    """What comes of each item: [rows, values]."""
    result = executor.run(StepPlan(0, items))
    assert not result.spoiled
    return [
        np.frombuffer(each.values, "<f4").reshape(item.rows, -1)
        for item, each in zip(items, result.results, strict=True)
    ]


def states(model: transformers.PreTrainedModel, item: Evaluate) -> np.ndarray:
    """The last hidden states, alone: [positions, hidden]."""
    with torch.inference_mode():
        return model(torch.tensor([item.tokens]), **_types(model, item)).last_hidden_state[0].numpy()


def logit(model: transformers.PreTrainedModel, item: Evaluate) -> float:
    with torch.inference_mode():
        return float(model(torch.tensor([item.tokens]), **_types(model, item)).logits)


def _types(model: transformers.PreTrainedModel, item: Evaluate) -> dict[str, torch.Tensor]:
    if not item.second or getattr(model.config, "type_vocab_size", 0) < 2 or model.config.model_type == "mpnet":
        return {}
    return {"token_type_ids": (torch.arange(len(item.tokens)) >= item.second).long().unsqueeze(0)}


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The least cosine of any row of `one` with the same row of `other`."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((one * other).sum(-1) / lengths).min())
