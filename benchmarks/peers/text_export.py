"""A GGUF file as a folder in Hugging Face's layout, in bf16, for peers that read that: as Headway reads it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from headway.artifacts import resolve


def export(gguf: Path, target: Path) -> None:
    """Write `target`. Its tokenizer is Headway's too."""
    files = resolve(str(gguf))
    assert files.tensors is not None and files.tokenizer is not None
    target.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(values).to(torch.bfloat16) for name, values in files.tensors.read()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    kind = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[files.config["model_type"]]
    config = {**files.config, "architectures": [kind], "torch_dtype": "bfloat16", "bos_token_id": files.bos_id,
              "eos_token_id": list(files.eos_ids)}  # fmt: skip
    (target / "tokenizer.json").write_bytes(Path(files.tokenizer).read_bytes())
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": files.chat_template, **files.special}
    (target / "tokenizer_config.json").write_text(json.dumps(words))
    (target / "config.json").write_text(json.dumps(config, indent=1))
