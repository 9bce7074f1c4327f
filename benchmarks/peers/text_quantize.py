"""A GGUF file in another of GGUF's types, by llama.cpp: `python text_quantize.py FILE.gguf TARGET.gguf TYPE`."""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp as c


def main(source: str, target: str, kind: str) -> None:
    params = c.llama_model_quantize_default_params()
    params.allow_requantize = True
    params.nthread = 2
    params.ftype = getattr(c, f"LLAMA_FTYPE_MOSTLY_{kind}")
    partial = Path(target).with_suffix(".partial")
    assert c.llama_model_quantize(source.encode(), str(partial).encode(), params) == 0
    partial.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
