"""The engine on the real model: an answer does not depend on what else is served, nor on what befell its request.

Both formats keep their bits per row (see `compute/kernels`), so token ids must be equal, not only likely to be.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.artifacts.cache import Cache
from headway.artifacts.files import ModelFiles
from headway.compute.text.executor import TextExecutor
from headway.core.clock import RealClock
from headway.core.plan import Sampling
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model
from headway.policy.drafts import lookup_drafts
from headway.story.reduce.reducer import Story

BLOCKS = 40
GREEDY = Sampling()
EMITS = 24
GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2-135m-greedy-fp32.json").read_text())
PROMPTS = [entry["prompt_ids"] for entry in GOLDEN][:4]


@pytest.fixture(scope="module", params=["bf16", "fp32", "bf16 int8"])
def executor(request: pytest.FixtureRequest, smollm2: ModelFiles) -> TextExecutor:
    weights, state = (*request.param.split(), "auto")[:2]
    return TextExecutor.load(
        smollm2, cache=Cache.at(None).converted, weights=weights, state=state, blocks=BLOCKS
    )  # fmt: skip


class Serving:
    """One engine over `executor`, from an empty pool of the first `blocks` blocks."""

    def __init__(
        self,
        executor: TextExecutor,
        *,
        blocks: int = BLOCKS,
        step_tokens: int = 512,
        cache: bool = True,
        draft: int = 0,
    ):
        self.story = Story()
        model = text_model(
            executor, StateMemory(BlockPool(blocks, 16), prefix_cache=cache),
            EngineOptions(seats=min(16, step_tokens), step_tokens=step_tokens), drafters=lookup_drafts(draft),
        )  # fmt: skip
        self.engine = Engine([model], RealClock(), emit=self.story.fold)

    def answers(
        self, *prompts: list[int], sampling: Sampling = GREEDY, n: int = 1, emits: int = EMITS
    ) -> list[list[int]]:
        """The tokens of every sequence of every prompt, served together."""
        said: dict[tuple[str, int], list[int]] = {}
        for i, prompt in enumerate(prompts):
            id = f"p{len(self.story.ended) + i}"
            self.engine.add(
                TextRequest(id=id, prompt=tuple(prompt), max_tokens=emits, ignore_eos=True, sampling=sampling, n=n)
            )
            said |= {(id, index): [] for index in range(n)}
        while self.engine.requests:
            for emission in self.engine.step():
                said[emission.id, emission.index].extend(emission.tokens)
            self.engine.check()
        assert all(record.stage == "finished" for record in self.story.ended.values())
        return list(said.values())

    def total(self, kind: str) -> int:
        return sum(getattr(s.counts, kind) for record in self.story.ended.values() for s in record.sequences)


@pytest.fixture(scope="module")
def alone(executor: TextExecutor) -> list[list[int]]:
    return [Serving(executor).answers(prompt)[0] for prompt in PROMPTS]


def test_batched_is_alone(executor, alone):
    assert Serving(executor).answers(*PROMPTS) == alone


def test_chunked_is_unchunked(executor, alone):
    serving = Serving(executor, step_tokens=17)
    assert serving.answers(*PROMPTS) == alone


def test_preempted_and_resumed_is_undisturbed(executor, alone):
    serving = Serving(executor, blocks=11, cache=False)
    assert serving.answers(*PROMPTS) == alone
    assert sum(record.preemptions for record in serving.story.ended.values()) > 0
    assert serving.total("recomputed") > 0


def test_regained_is_undisturbed(executor, alone):
    serving = Serving(executor, blocks=11, cache=True)
    assert serving.answers(*PROMPTS) == alone
    assert serving.total("regained") > 0


def test_reused_is_computed(executor, alone):
    serving = Serving(executor)
    assert serving.answers(*PROMPTS) == alone
    assert serving.answers(*PROMPTS) == alone
    assert serving.total("reused") >= sum((len(prompt) - 1) // 16 * 16 for prompt in PROMPTS)


def test_siblings_that_share_a_prompt_say_what_each_says_elsewhere(executor):
    sampling = Sampling(temperature=1.0, seed=5)
    together = Serving(executor).answers(PROMPTS[0], sampling=sampling, n=3)
    assert len({tuple(tokens) for tokens in together}) == 3
    assert Serving(executor, step_tokens=16).answers(PROMPTS[0], sampling=sampling, n=3) == together
    squeezed = Serving(executor, blocks=14, cache=False)
    assert squeezed.answers(PROMPTS[0], PROMPTS[0], sampling=sampling, n=3) == together * 2
    assert sum(record.preemptions for record in squeezed.story.ended.values()) > 0


def forty_prompts() -> list[list[int]]:
    """The golden prompts, and pieces of them said twice, so that there is something to look up."""
    pieces = [prompt[start : start + 12] for prompt in PROMPTS for start in range(1, 19, 2)]
    return [*PROMPTS, *(piece + piece for piece in pieces)]


def test_forty_prompts_are_answered_alike_with_and_without_drafts(executor):
    prompts = forty_prompts()
    assert len(prompts) == 40
    plain, drafted = Serving(executor), Serving(executor, draft=4)
    assert drafted.answers(*prompts, emits=14) == plain.answers(*prompts, emits=14)
    assert drafted.total("accepted") > 40 and drafted.total("rejected") > 40
    assert drafted.story.step < plain.story.step


def test_a_block_that_was_begun_is_copied_and_the_answer_goes_on_with_the_golden_tokens(executor, alone):
    """The prompts come again with the first tokens of their answers: reuse ends inside a block, of prompt and answer
    alike, which the second copies and fills. In fp32 the right tokens are those that transformers chose."""
    serving, filled = Serving(executor), []
    run = executor.run
    executor.run = lambda plan: filled.extend(plan.fills) or run(plan)
    try:
        assert serving.answers(*PROMPTS) == alone
        assert not filled
        before = serving.total("reused")
        again = [[*prompt, *said[: 3 + i]] for i, (prompt, said) in enumerate(zip(PROMPTS, alone, strict=True))]
        rest = [serving.answers(prompt, emits=EMITS - 3 - i)[0] for i, prompt in enumerate(again)]
    finally:
        executor.run = run
    assert rest == [said[3 + i :] for i, said in enumerate(alone)]
    assert serving.total("reused") - before == sum(len(prompt) - 1 for prompt in again)
    assert len(filled) == sum((len(prompt) - 1) % 16 > 0 for prompt in again) > 0
    if executor.facts.weights_format == "fp32":
        for entry, said in zip(GOLDEN, alone, strict=False):
            assert said == entry["greedy_ids"][:EMITS]
