"""What drafts by lookup gain and cost: the same prompts with and without, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headway.compute.executor import Executor
from headway.core.clock import RealClock
from headway.core.plan import Sampling
from headway.core.request import Emission, TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory, blocks_for
from headway.patterns.text.pattern import text_model
from headway.policy.drafts import lookup_drafts
from headway.story.reduce.reducer import Story

#: Text whose continuation repeats what is there, and text that has nothing to repeat (sampled: a small model's greedy
#: prose goes round in circles).
TEXTS = {
    "repetitive": (
        "def area_of_rectangle(width, height):\n    return width * height\n\n"
        "def area_of_square(side):\n    return side * side\n\ndef area_of_circle(radius):\n    return"
    ),
    "prose": "The lighthouse keeper had not spoken to anyone for eleven weeks when, one grey day, a letter came",
}


SAMPLINGS = {"repetitive": Sampling(), "prose": Sampling(temperature=1.0, seed=7)}


@dataclass(frozen=True)
class Case:
    """`sequences` requests with the same kind of text, each emitting `emits` tokens; EOS ignored."""

    kind: str
    sequences: int
    emits: int


def measure(
    executor: Executor,
    encode: Callable[[str], list[int]],
    cases: list[Case],
    draft: int,
    rounds: int,
    block_tokens: int,
    tick: Callable[[], None],
) -> Iterator[dict[str, Any]]:
    """For each case tokens per second without and with `draft` guesses at a time, medians of `rounds` runs that
    alternate, and what became of the guesses. Raises AssertionError if the answers differ."""
    for case in cases:
        rates: dict[int, list[float]] = {0: [], draft: []}
        answers: dict[int, list[list[int]]] = {}
        accepted = rejected = 0
        for _ in range(rounds):
            for guesses in rates:
                rate, answers[guesses], (accepted, rejected) = _run(executor, encode, case, guesses, block_tokens)
                rates[guesses].append(rate)
                tick()
        assert answers[0] == answers[draft], f"drafts changed an answer of {case}"
        without, with_drafts = (statistics.median(found) for found in rates.values())
        yield {
            "kind": case.kind,
            "sequences": case.sequences,
            "without_tok_s": without,
            "with_tok_s": with_drafts,
            "ratio": with_drafts / without,
            "accepted": accepted,
            "rejected": rejected,
        }


def blocks_needed(encode: Callable[[str], list[int]], cases: list[Case], block_tokens: int) -> int:
    """Blocks that hold the largest case at once, drafts included."""
    return max(
        case.sequences * (blocks_for(len(encode(TEXTS[case.kind])) + case.emits, block_tokens) + 2) for case in cases
    )


def _run(
    executor: Executor, encode: Callable[[str], list[int]], case: Case, draft: int, block_tokens: int
) -> tuple[float, list[list[int]], tuple[int, int]]:
    story = Story()
    memory = StateMemory(BlockPool(blocks_needed(encode, [case], block_tokens), block_tokens), prefix_cache=False)
    options = EngineOptions(seats=max(64, case.sequences))
    model = text_model(executor, memory, options, drafters=lookup_drafts(draft))
    engine = Engine([model], RealClock(), emit=story.fold)
    said: dict[str, list[int]] = {}
    for i in range(case.sequences):
        said[str(i)] = []
        prompt = tuple(encode(f"{i}\n" + TEXTS[case.kind]))
        sampling = SAMPLINGS[case.kind]
        engine.add(TextRequest(id=str(i), prompt=prompt, max_tokens=case.emits, ignore_eos=True, sampling=sampling))
    engine.step()  # the prompts: not what is measured
    began, emitted = time.perf_counter(), 0
    while engine.busy:
        for emission in engine.step():
            if isinstance(emission, Emission):
                said[emission.id] += emission.tokens
                emitted += len(emission.tokens)
    rate = emitted / (time.perf_counter() - began)
    counts = [sequence.counts for record in story.ended.values() for sequence in record.sequences]
    return rate, list(said.values()), (sum(c.accepted for c in counts), sum(c.rejected for c in counts))
