"""OpenVINO GenAI as a side of text.py: `python text_openvino.py SOCKET FOLDER THREADS POSITIONS`.

Its pipeline for continuous batching, with its defaults for the CPU (an 8-bit KV cache), stepped from here.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from text_side import Tally, serve

BLOCK_TOKENS = 32
STEP_TOKENS = int(os.environ.get("STEP_TOKENS", "512"))


def main(path: str, model: str, threads: str, positions: str) -> None:
    config = genai.SchedulerConfig()
    config.num_kv_blocks = int(positions) // BLOCK_TOKENS
    config.max_num_seqs = 256
    config.max_num_batched_tokens = STEP_TOKENS
    config.dynamic_split_fuse = True
    config.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(model, config, "CPU", {"INFERENCE_NUM_THREADS": int(threads)})
    ids = iter(range(1 << 30))

    def job(prompts: list[list[int]], emits: int) -> dict[str, Any]:
        wanted = genai.GenerationConfig()
        wanted.max_new_tokens = wanted.min_new_tokens = emits
        wanted.ignore_eos, wanted.do_sample = True, False
        tally = Tally(len(prompts))
        handles = [
            pipeline.add_request(next(ids), openvino.Tensor(np.array([prompt], np.int64)), wanted)
            for prompt in prompts
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for sequence, handle in enumerate(handles):
                if handle.can_read():
                    for output in handle.read().values():
                        tally.emitted(sequence, *output.generated_ids)
            tally.stepped()
        return tally.result(emits)

    about = {"openvino-genai": genai.__version__, "openvino": openvino.__version__, "step tokens": STEP_TOKENS}
    serve(path, about, job)


if __name__ == "__main__":
    main(*sys.argv[1:])
