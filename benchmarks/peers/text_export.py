"""A GGUF file as a folder of safetensors in bf16, with its tokenizer: `python text_export.py FILE.gguf FOLDER`, with
transformers and gguf."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(gguf: str, target: str) -> None:
    file = Path(gguf)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
    model.save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
