"""llama.cpp as a side of text.py, by the C interface as llama-cpp-python has it: `python text_llama.py SOCKET
MODEL.gguf THREADS POSITIONS`, with LLAMA_CPP_LIB_PATH naming the folder of the libraries.

As in its own `batched-bench`: prompts in batches of 2,048, one cache a sequence. The next token is numpy's argmax,
which is quicker than a sampler chain.
"""

from __future__ import annotations

import sys
from typing import Any

import llama_cpp as c
import numpy as np
from text_side import Tally, serve

BATCH = 2048


class Model:
    def __init__(self, model: str, threads: int, positions: int) -> None:
        c.llama_backend_init()
        params = c.llama_model_default_params()
        self._model = c.llama_model_load_from_file(model.encode(), params)
        assert self._model is not None, model
        self._vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self._threads, self._positions = threads, positions
        self._batch = c.llama_batch_init(BATCH, 0, 1)
        shape = (BATCH,)
        self._token = np.ctypeslib.as_array(self._batch.token, shape)
        self._place = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1

    def job(self, prompts: list[list[int]], emits: int) -> dict[str, Any]:
        each = max(map(len, prompts)) + emits
        context = self._context(len(prompts), each)
        try:
            tally = Tally(len(prompts))
            rows = [(s, at, token, at == len(p) - 1) for s, p in enumerate(prompts) for at, token in enumerate(p)]
            for start in range(0, len(rows), BATCH):
                self._step(context, rows[start : start + BATCH], tally)
            for done in range(1, emits):
                rows = [(s, len(p) + done - 1, tally.tokens[s][-1], True) for s, p in enumerate(prompts)]
                self._step(context, rows, tally)
            return tally.result(emits)
        finally:
            c.llama_free(context)

    def _context(self, sequences: int, each: int) -> Any:
        params = c.llama_context_default_params()
        assert sequences * each <= self._positions
        params.n_ctx, params.n_seq_max, params.n_batch = sequences * (-(-each // 256) * 256), sequences, BATCH
        params.n_threads = params.n_threads_batch = self._threads
        context = c.llama_init_from_model(self._model, params)
        assert context is not None
        return context

    def _step(self, context: Any, rows: list[tuple[int, int, int, bool]], tally: Tally) -> None:
        sequences, places, tokens, wanted = zip(*rows, strict=True)
        count = len(rows)
        self._token[:count], self._place[:count], self._wanted[:count] = tokens, places, wanted
        for row, sequence in enumerate(sequences):
            self._batch.seq_id[row][0] = sequence
        self._batch.n_tokens = count
        status = c.llama_decode(context, self._batch)
        assert status == 0, status
        outputs = [sequence for sequence, last in zip(sequences, wanted, strict=True) if last]
        if outputs:
            logits = np.ctypeslib.as_array(c.llama_get_logits(context), (len(outputs), self._vocab))
            for sequence, token in zip(outputs, logits.argmax(1).tolist(), strict=True):
                tally.emitted(sequence, token)
        tally.stepped()


def main(path: str, model: str, threads: str, positions: str) -> None:
    system = c.llama_print_system_info().decode()
    about = {"llama-cpp-python": c.__version__, "system": system}
    serve(path, about, Model(model, int(threads), int(positions)).job)


if __name__ == "__main__":
    main(*sys.argv[1:])
