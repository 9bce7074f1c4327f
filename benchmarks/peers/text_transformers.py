"""transformers as a side of text.py: `python text_transformers.py SOCKET FOLDER THREADS POSITIONS`; prompts of one
length, so no padding."""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from text_side import Tally, serve


class Watch(transformers.StoppingCriteria):
    """Sees each step of `generate`, and stops nothing."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:
        for sequence, token in enumerate(input_ids[:, -1].tolist()):
            self._tally.emitted(sequence, token)
        self._tally.stepped()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main(path: str, model: str, threads: str, positions: str) -> None:
    torch.set_num_threads(int(threads))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    loaded.generation_config.eos_token_id = None

    def job(prompts: list[list[int]], emits: int) -> dict[str, Any]:
        tally = Tally(len(prompts))
        given = torch.tensor(prompts)
        with torch.inference_mode():
            loaded.generate(
                given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=emits,
                stopping_criteria=[Watch(tally)],
            )  # fmt: skip
        return tally.result(emits)

    serve(path, {"transformers": transformers.__version__, "torch": torch.__version__}, job)


if __name__ == "__main__":
    main(*sys.argv[1:])
