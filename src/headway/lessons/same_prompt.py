"""Lesson 4: the same prompt twice, with and without reuse."""

from __future__ import annotations

from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import BLOCKS, Model
from headway.lessons.runs import counts, evicted_for, first_token_ms, real
from headway.sim.pair import Pair

PROMPT, TOKENS, BLOCK = 200, 4, 16
#: Too few for one request beside all that is left of another: blocks have to be evicted.
TIGHT = 20
OTHER_FROM = 30


def measure(model: Model) -> Measured:
    """Three runs, one request after the other in each: without reuse, with it, with evictions in between."""
    executor = model.loaded.executor
    same, other = model.prompt(PROMPT), model.prompt(PROMPT - OTHER_FROM, skip=OTHER_FROM)
    twice = {"first": same, "second": same}

    def serve(prompts: dict[str, list[int]], blocks: int, prefix_cache: bool) -> Pair:
        return real(prompts, TOKENS, executor, blocks=blocks, prefix_cache=prefix_cache, seats=1)

    runs = {
        "without_reuse": serve(twice, BLOCKS, prefix_cache=False),
        "with_reuse": serve(twice, BLOCKS, prefix_cache=True),
        "with_evictions": serve({"first": same, "other": other, "second": same}, TIGHT, prefix_cache=True),
    }
    rows = {f"{id}_{name}": _row(pair, id) for name, pair in runs.items() for id in pair.prompts}
    again, evicted = rows["second_with_reuse"], rows["second_with_evictions"]
    between = rows["other_with_evictions"]
    return Measured(
        answer=again["prefilled"],
        counts=rows,
        observed={
            f"second_{name}": {"first_token_ms": round(first_token_ms(pair, "second"), 1)}
            for name, pair in runs.items()
        },
        why=(
            f"Without reuse both are processed whole: {rows['second_without_reuse']['prefilled']} positions for the "
            "second as for the first, though the prompt is the same.",
            f"With reuse the second finds {again['reused']} of {PROMPT} positions: it shares "
            f"{again['reused'] // BLOCK} whole blocks of {BLOCK} with whoever reads them, and begins its next block "
            f"as a copy, since it will write to that itself. It computes {again['prefilled']}: the last position "
            "always is, because the next token is chosen from it.",
            f"In the third run another prompt came in between and evicted {between['blocks_evicted']} reusable "
            f"blocks. That added no prefill: it prefilled {between['prefilled']}, its own prompt. The second "
            f"request paid when it missed them: {evicted['prefilled']} positions prefilled instead of "
            f"{again['prefilled']}.",
        ),
    )


def _row(pair: Pair, id: str) -> dict[str, int]:
    found = counts(pair, id)
    return {"reused": found.reused, "prefilled": found.prefilled, "blocks_evicted": evicted_for(pair, id)}


LESSON = Lesson(
    number=4,
    slug="the-same-prompt-twice",
    title="The same prompt twice",
    runs_on="The real engine and the real model (SmolLM2, 135M parameters, fp32), one request after the other.",
    question=Question(
        f"A prompt of {PROMPT} positions was served, and its state is kept in blocks of {BLOCK} positions (prefix "
        "caching). The same prompt comes again. How many of its positions must still be prefilled?",
        unit="positions",
    ),
    measure=measure,
    code=(
        Code("memory/prefix.py", "PrefixIndex.match"),
        Code("memory/prefix.py", "PrefixIndex.nearest"),
        Code("memory/keys.py", "block_key"),
        Code("patterns/text/sequence.py", "Sequence.inheritable"),
        Code("memory/reserve.py", "StateMemory.quote"),
    ),
    modelled=False,
)
