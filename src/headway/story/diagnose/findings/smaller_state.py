"""Formats of state that hold more positions in the same memory, and what that costs in quality."""

from __future__ import annotations

from dataclasses import dataclass

from headway.story.diagnose.observations import Observations


@dataclass(frozen=True)
class SmallerState:
    """`name` as `--state` has it; `times` the blocks of the format in use; `quality` what its rounding costs."""

    name: str
    times: float
    quality: str

    @property
    def costs(self) -> str:
        return f"{self.times:g} times the blocks; {self.quality}"


#: By the format in use, the closest to it first. Perplexity is that of the default model with bf16 weights,
#: against fp32 (benchmarks/results/quality.json). A head of 64 values has 128 bytes in bf16, 66 in int8 with a scale.
SMALLER: dict[str, tuple[SmallerState, ...]] = {
    "fp32": (
        SmallerState("bf16", 2, "its values are rounded, perplexity +0.04% over fp32, as measured"),
        SmallerState("int8", 3.8, "its values are rounded more, perplexity +0.10% over fp32, as measured"),
    ),
    "bf16": (SmallerState("int8", 1.9, "its values are rounded more, perplexity +0.10% over fp32, as measured"),),
}


def smaller_states(observed: Observations) -> tuple[SmallerState, ...]:
    """What could be served instead of what is."""
    return SMALLER.get(observed.loaded.state, ()) if observed.loaded else ()
