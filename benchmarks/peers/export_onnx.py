"""The ONNX files that two of the peers read: `model.onnx`, and `model-int8.onnx` by dynamic quantisation.

python export_onnx.py MODEL TARGET        with sentence-transformers, onnx and onnxruntime installed
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import AutoModel


class Hidden(torch.nn.Module):
    """The last hidden state alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        return self.model(input_ids, attention_mask, token_type_ids)[0]


def main(model: str, target: str) -> None:
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(model) / "tokenizer.json", folder)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    axes = {name: {0: "texts", 1: "positions"} for name in [*names, "hidden"]}
    encoder = Hidden(AutoModel.from_pretrained(model, attn_implementation="eager").eval())
    torch.onnx.export(
        encoder, example, str(folder / "model.onnx"), input_names=names, output_names=["hidden"], dynamic_axes=axes,
        dynamo=False,
    )  # fmt: skip
    quantize_dynamic(folder / "model.onnx", folder / "model-int8.onnx", weight_type=QuantType.QInt8)


if __name__ == "__main__":
    main(*sys.argv[1:])
