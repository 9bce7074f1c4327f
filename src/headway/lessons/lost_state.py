"""Lesson 6: lost state."""

from __future__ import annotations

from headway.compute.fake import linear_cost
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import counts, interval_ms, modelled, prompt, steps
from headway.sim.pair import Pair, PairOptions

A_PROMPT, B_PROMPT, TOKENS, BLOCK, BLOCKS = 20, 60, 24, 8, 11
#: Tokens that B has emitted when it is preempted.
EMITTED = 3
COST_NS = linear_cost(step_ns=1_000_000, position_ns=10_000)


def measure(model: Model) -> Measured:
    """The same preemption without and with prefix caching."""
    prompts = {"A": prompt(A_PROMPT), "B": prompt(B_PROMPT, first=500)}

    def serve(prefix_cache: bool) -> tuple[Pair, list[str]]:
        options = PairOptions(seats=2, step_tokens=32, prefix_cache=prefix_cache)
        return modelled(prompts, TOKENS, options, blocks=BLOCKS, cost_ns=COST_NS, block_tokens=BLOCK)

    (off, story), (on, _) = serve(False), serve(True)
    lost, regained = counts(off, "B"), counts(on, "B")
    return Measured(
        answer=lost.recomputed,
        counts={"reuse_off": _row(off), "reuse_on": _row(on)},
        observed={
            name: {
                "recompute_ms": interval_ms(pair, "B", "recompute"),
                "preempted_ms": interval_ms(pair, "B", "preempted"),
            }
            for name, pair in {"reuse_off": off, "reuse_on": on}.items()
        },
        story=("Without prefix caching:", *story),
        why=(
            f"B had {B_PROMPT} prompt positions and {EMITTED} emitted tokens, so {B_PROMPT} + {EMITTED} − 1 = "
            f"{lost.lost} positions had state: the newest token has none until it is evaluated. All {lost.lost} were "
            f"lost, and {lost.recomputed} were recomputed before B went on, prompt and answer alike (the last of "
            "these steps evaluates the newest position too). The tokens themselves were never lost, so B's answer "
            "is the same.",
            f"With prefix caching B lost {regained.lost} positions too, but its blocks stayed reusable until "
            f"somebody needed them. A grew and evicted {_evicted(on)} in the meantime. When B resumed it found "
            f"{regained.regained} positions still there and recomputed {regained.recomputed}.",
            "Lost and recomputed are different counts: what must be computed again shows only when the request "
            "resumes.",
        ),
    )


def _row(pair: Pair) -> dict[str, int]:
    found = counts(pair, "B")
    return {
        "preemptions": pair.narrator.story.record("B").preemptions, "lost": found.lost, "regained": found.regained,
        "recomputed": found.recomputed, "blocks_evicted_meanwhile": _evicted(pair),
    }  # fmt: skip


def _evicted(pair: Pair) -> int:
    """Blocks evicted while B had none."""
    return max(step.levels.evictions for step in steps(pair) if all(member.id == "A" for member in step.members))


LESSON = Lesson(
    number=6,
    slug="lost-state",
    title="Lost state",
    runs_on="The real engine over the fake executor. Time is modelled: a step costs 1 ms and 10 µs for each "
    "position.",
    question=Question(
        f"B has a prompt of {B_PROMPT} positions and has emitted {EMITTED} tokens when it is preempted: its blocks "
        "are taken so that A can go on. Prefix caching is off. How many positions of B must be evaluated again "
        "before it can go on?",
        unit="positions",
    ),
    measure=measure,
    code=(
        Code("policy/preempt.py", "victim"),
        Code("engine/planner.py", "Planner.running"),
        Code("engine/queues.py", "Queues.preempt"),
        Code("patterns/text/sequence.py", "Sequence.lose"),
        Code("patterns/text/sequence.py", "Sequence.split"),
    ),
)
