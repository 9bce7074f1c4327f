"""Lesson 9: three prices of space."""

from __future__ import annotations

from headway.compute.fake import linear_cost
from headway.core.events import Preempted
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import counts, evicted_for, modelled, prompt
from headway.sim.pair import PairOptions

A_PROMPT, B_PROMPT, C_PROMPT, TOKENS, BLOCK = 20, 60, 60, 24, 8
TIGHT, BLOCKS = 11, 12
STEP_NS, POSITION_NS = 1_000_000, 10_000
COST_NS = linear_cost(step_ns=STEP_NS, position_ns=POSITION_NS)
#: Of a model as small as SmolLM2 with its state in bf16: keys and values, layers, heads, values each, bytes each.
POSITION_BYTES = 2 * 30 * 3 * 64 * 2


def measure(model: Model) -> Measured:
    """The same shortage, met by evicting, by preempting, and (by its bytes) by offloading."""
    later = {
        "A": prompt(C_PROMPT, first=300),
        "B": prompt(B_PROMPT, first=500),
        "A again": prompt(C_PROMPT, first=300),
    }
    evict, _ = modelled(
        later, 4, PairOptions(seats=1, step_tokens=64, prefix_cache=True), blocks=BLOCKS, cost_ns=COST_NS,
        block_tokens=BLOCK,
    )  # fmt: skip
    both = {"A": prompt(A_PROMPT), "B": prompt(B_PROMPT, first=500)}
    preempt, story = modelled(
        both, TOKENS, PairOptions(seats=2, step_tokens=32), blocks=TIGHT, cost_ns=COST_NS, block_tokens=BLOCK
    )
    evicted, missed = evicted_for(evict, "B"), counts(evict, "A again")
    lost = counts(preempt, "B")
    (event,) = [event for event in preempt.events if isinstance(event, Preempted)]
    moved = 2 * lost.lost * POSITION_BYTES
    per_s = round(1e9 / POSITION_NS)
    break_even = POSITION_BYTES * per_s
    return Measured(
        answer=lost.recomputed,
        counts={
            "evict": _row(evicted, 0, missed.prefilled - 1, 0),
            "preempt": _row(event.blocks, lost.recomputed, 0, 0),
            "offload": _row(event.blocks, 0, 0, moved),
        },
        story=tuple(story),
        why=(
            f"Evicting costs nothing now: B took {evicted} reusable blocks, and prefilled its own "
            f"{counts(evict, 'B').prefilled} positions, no more. Whoever misses what they held pays later: A's "
            f"prompt came again, and {missed.prefilled} of its {C_PROMPT} positions were prefilled instead of 1. If "
            "it never comes, nobody pays.",
            f"Preempting costs at once: B lost {lost.lost} positions and computed {lost.recomputed} again before it "
            "went on. That is why blocks are evicted first, and active sequences preempted last.",
            f"Offloading moves state instead of computing it again: {lost.lost} positions × {POSITION_BYTES:,} "
            f"bytes, there and back, are {moved:,} bytes. The way there is copied while B still runs; what B waits "
            "for when it resumes is the way back. That is quicker than computing above a bandwidth of "
            f"{POSITION_BYTES:,} bytes a position × {per_s:,} positions prefilled a second = {break_even / 1e9:.1f} "
            "GB/s, at the price that a position has here. The slower a machine computes, the sooner moving pays.",
        ),
    )


def _row(blocks: int, now: int, later: int, moved: int) -> dict[str, int]:
    return {
        "blocks_taken": blocks, "positions_computed_again": now, "positions_if_missed_later": later,
        "bytes_moved": moved,
    }  # fmt: skip


LESSON = Lesson(
    number=9,
    slug="three-prices",
    title="Three prices of space",
    runs_on="The real engine over the fake executor; of what would be offloaded the bytes are counted. Time "
    "is modelled: a step costs 1 ms and 10 µs for each position.",
    question=Question(
        f"Space is short. A reusable prefix could be evicted, a running sequence with {B_PROMPT + 2} positions "
        "of state preempted (nothing of it is found again), or its state offloaded to another memory and brought "
        "back. If it is preempted, how many positions must be computed again before it goes on?",
        unit="positions",
    ),
    measure=measure,
    code=(
        Code("memory/pool.py", "BlockPool.take"),
        Code("engine/planner.py", "Planner._make_space"),
        Code("policy/preempt.py", "price"),
    ),
)
