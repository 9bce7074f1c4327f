"""Lesson 1: two requests, one set of weights."""

from __future__ import annotations

from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import BLOCKS, Model, resident_bytes
from headway.lessons.runs import blocks_taken, counts, real

A_POSITIONS, B_POSITIONS, TOKENS = 40, 90, 16
MIB = 1 << 20


def measure(model: Model) -> Measured:
    """Loads the model, serves A alone, then A and B together."""
    a, b = model.prompt(A_POSITIONS), model.prompt(B_POSITIONS, skip=A_POSITIONS)
    loaded = model.loaded
    real({"A": a}, TOKENS, loaded.executor, blocks=BLOCKS, prefix_cache=False, seats=2)
    after_a = resident_bytes()
    pair = real({"A": a, "B": b}, TOKENS, loaded.executor, blocks=BLOCKS, prefix_cache=False, seats=2)
    after_both = resident_bytes()
    facts = loaded.executor.facts
    held = {id: blocks_taken(pair, id) for id in "AB"}
    size = {id: blocks * facts.block_bytes for id, blocks in held.items()}
    rows = {
        f"state_of_{id}": {"blocks": held[id], "bytes": size[id], "prefilled_positions": counts(pair, id).prefilled}
        for id in "AB"
    }
    weights = {"blocks": 0, "bytes": facts.weights_bytes, "prefilled_positions": 0}
    resident = {"before_the_load": loaded.before, "after_the_load": loaded.after, "after_A": after_a,
                "after_A_and_B": after_both}  # fmt: skip
    return Measured(
        answer="b" if 0 < size["B"] < facts.weights_bytes / 10 else "a",
        counts={"weights": weights, **rows},
        observed={name: {"resident_mib": round(bytes / MIB, 1)} for name, bytes in resident.items()},
        why=(
            f"The weights, {facts.weights_bytes / MIB:.0f} MiB in {facts.weights_format}, belong to the replica: "
            "they are loaded once, and every request is evaluated with them. They are the same after A and after B.",
            "What a request adds is the state of its own positions, its KV cache: keys and values of every layer, in "
            f"blocks of 16 positions, {facts.block_bytes:,} bytes each. A took {held['A']} blocks, B {held['B']}: "
            f"{size['B'] / MIB:.1f} MiB, {size['B'] / facts.weights_bytes:.1%} of the weights.",
            "These blocks come out of the pool, which was reserved with the load, so resident memory need not grow "
            "with them: reserved bytes are not used bytes. Loading takes more than the weights: it also maps their "
            "file, whose pages the system may drop again, and steps have scratch memory, shared by all requests.",
            f"Sharing weights saves memory, not work: A prefilled {A_POSITIONS} positions and B {B_POSITIONS}, each "
            "its own.",
        ),
    )


LESSON = Lesson(
    number=1,
    slug="one-set-of-weights",
    title="Two requests, one set of weights",
    runs_on="The real engine and the real model (SmolLM2, 135M parameters, fp32). Resident memory is this process's.",
    question=Question(
        f"One request, A, is served by a loaded model: {A_POSITIONS} prompt positions and up to {TOKENS} tokens of "
        f"answer. Now B is served beside it, with {B_POSITIONS} prompt positions. What does B add to the memory?",
        options={
            "a": "a second copy of the weights",
            "b": "state for its own positions (KV cache), a small fraction of what the weights take",
            "c": "nothing: the model is loaded already",
        },
    ),
    measure=measure,
    code=(
        Code("compute/text/weights.py", "load_tensors"),
        Code("compute/text/executor.py", "block_bytes"),
        Code("memory/reserve.py", "StateMemory.quote"),
        Code("memory/reserve.py", "StateMemory.reserve"),
    ),
    modelled=False,
)
