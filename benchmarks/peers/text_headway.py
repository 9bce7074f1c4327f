"""Headway as a side of text.py: `python text_headway.py SOCKET MODEL WEIGHTS THREADS CONTEXT SEQUENCES`."""

from __future__ import annotations

import sys
from typing import Any

from text_side import Tally, serve

from headway.core.config import Environment, yielding_threads

yielding_threads()  # before torch is imported

from headway.artifacts import resolve  # noqa: E402
from headway.artifacts.cache import Cache  # noqa: E402
from headway.bench.machine import machine  # noqa: E402
from headway.compute.text.executor import TextExecutor  # noqa: E402
from headway.core.clock import RealClock  # noqa: E402
from headway.core.request import TextRequest  # noqa: E402
from headway.engine.loop import Engine  # noqa: E402
from headway.engine.served import EngineOptions  # noqa: E402
from headway.memory.pool import BlockPool  # noqa: E402
from headway.memory.reserve import StateMemory  # noqa: E402
from headway.patterns.text.pattern import text_model  # noqa: E402

BLOCK_TOKENS = 16


def main(path: str, model: str, weights: str, threads: int, positions: int) -> None:
    """`weights` may name the state's format too: `int8+int8`."""
    cache = Environment.read().cache
    weights, _, state = weights.partition("+")
    blocks = positions // BLOCK_TOKENS
    executor = TextExecutor.load(
        resolve(model, cache=cache), cache=Cache.at(cache).converted, blocks=blocks, block_tokens=BLOCK_TOKENS,
        weights=weights, state=state or "auto", threads=threads,
    )  # fmt: skip

    def job(prompts: list[list[int]], emits: int) -> dict[str, Any]:
        count = len(prompts)
        options = EngineOptions(seats=count, step_tokens=max(512, count))
        memory = StateMemory(BlockPool(blocks, BLOCK_TOKENS), prefix_cache=False)
        engine = Engine([text_model(executor, memory, options)], RealClock(), emit=lambda _: None)
        tally = Tally(count)
        for place, prompt in enumerate(prompts):
            engine.add(TextRequest(id=str(place), prompt=tuple(prompt), max_tokens=emits, ignore_eos=True))
        while engine.busy:
            for emission in engine.step():
                tally.emitted(int(emission.id), *emission.tokens)
            tally.stepped()
        return tally.result(emits)

    facts, packed = executor.facts, getattr(executor._decoder, "_packed", {})
    about = {"weights": facts.weights_format, "state": facts.state_format, "kernels": facts.kernels}
    serve(path, {**machine(), **about, "read_bytes": sum(each.bytes for each in packed.values())}, job)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
