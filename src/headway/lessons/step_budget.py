"""Lesson 3: the step budget."""

from __future__ import annotations

from dataclasses import dataclass

from headway.compute.fake import FakeExecutor, linear_cost
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Stepped
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import prompt
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model

DECODING, PROMPT, LARGE, SMALL = 32, 1500, 512, 256
STEP_MS, POSITION_US = 5, 100
BLOCKS = 512


@dataclass(frozen=True)
class PromptRun:
    """`chunks` are the positions of the long prompt, step by step until its first token; `decoding` those of the
    others in each of these steps. The gap is the longest between two tokens of one of the others."""

    chunks: list[int]
    decoding: list[int]
    gap_ms: float
    first_token_ms: float


def run(step_tokens: int) -> PromptRun:
    """Let 32 sequences decode, then add the long prompt."""
    clock, events = ModelledClock(), list[AnyEvent]()
    cost = linear_cost(step_ns=STEP_MS * 1_000_000, position_ns=POSITION_US * 1_000)
    model = text_model(
        FakeExecutor(blocks=BLOCKS, block_tokens=16, clock=clock, cost_ns=cost),
        StateMemory(BlockPool(BLOCKS, 16), prefix_cache=False),
        EngineOptions(seats=64, step_tokens=step_tokens),
    )
    engine = Engine([model], clock, emit=events.append)
    for i in range(DECODING):
        engine.add(TextRequest(id=f"decoding-{i}", prompt=(i,), max_tokens=100))
    engine.step()
    events.clear()
    arrived_at, gap = clock.now_ns(), 0
    engine.add(TextRequest(id="long", prompt=tuple(prompt(PROMPT)), max_tokens=2))
    while True:
        before = clock.now_ns()
        emissions = engine.step()
        gap = max(gap, clock.now_ns() - before)
        if any(emission.id == "long" for emission in emissions):
            break
    spent = [{member.id: member.positions for member in e.members} for e in events if isinstance(e, Stepped)]
    return PromptRun(
        chunks=[step["long"] for step in spent],
        decoding=[sum(step.values()) - step["long"] for step in spent],
        gap_ms=gap / 1e6,
        first_token_ms=(clock.now_ns() - arrived_at) / 1e6,
    )


def measure(model: Model) -> Measured:
    """The same prompt in large steps, then in small ones."""
    ran = {size: run(size) for size in (LARGE, SMALL)}
    large, small = ran[LARGE], ran[SMALL]
    return Measured(
        answer=len(large.chunks),
        counts={
            f"steps_of_{size}": {
                "left_for_the_prompt": size - DECODING,
                "chunks": each.chunks,
                "steps": len(each.chunks),
                "decode_positions_in_each": min(each.decoding),
            }
            for size, each in ran.items()
        },
        observed={
            f"steps_of_{size}": {"longest_gap_between_tokens_ms": each.gap_ms, "first_token_ms": each.first_token_ms}
            for size, each in ran.items()
        },
        why=(
            f"Decode positions come first: {DECODING} sequences take {DECODING} of {LARGE}, and {max(large.chunks)} "
            f"are left. {PROMPT:,} positions are prefilled in chunks over {len(large.chunks)} steps "
            f"(chunked prefill), the last of them with {large.chunks[-1]}.",
            f"With a budget of {SMALL}, {max(small.chunks)} are left, and the same prompt takes {len(small.chunks)} "
            "steps.",
            "Smaller steps are shorter, so decoding sequences wait less between two tokens (inter-token latency). "
            "The long prompt pays for it with its time to first token: each step has a fixed cost and the same "
            "decode positions besides, and there are more of them before its first token.",
        ),
    )


LESSON = Lesson(
    number=3,
    slug="the-step-budget",
    title="The step budget",
    runs_on=f"The real engine over the fake executor. Time is modelled: a step costs {STEP_MS} ms and "
    f"{POSITION_US} µs for each position.",
    question=Question(
        f"A step evaluates at most {LARGE} positions. {DECODING} sequences are decoding when a prompt of {PROMPT:,} "
        "positions arrives. How many steps does its prefill take?",
        unit="steps",
    ),
    measure=measure,
    code=(
        Code("engine/planner.py", "Planner.running"),
        Code("policy/budget.py", "granted"),
    ),
)
