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


#: Another model's quality may fall by more or less, and its heads may be of another size.
MEASURED_WITH = "smollm2-135m"
_WITH = f"both as measured with {MEASURED_WITH}"

#: By the format in use, the closest to it first. Perplexity is that of this model with bf16 weights, against fp32
#: (benchmarks/results/quality.json). Its heads have 64 values: 128 bytes in bf16, 66 in int8 with a scale.
SMALLER: dict[str, tuple[SmallerState, ...]] = {
    "fp32": (
        SmallerState("bf16", 2, f"its values are rounded, perplexity +0.04% over fp32, {_WITH}"),
        SmallerState("int8", 3.8, f"its values are rounded more, perplexity +0.10% over fp32, {_WITH}"),
    ),
    "bf16": (SmallerState("int8", 1.9, f"its values are rounded more, perplexity +0.10% over fp32, {_WITH}"),),
}


def smaller_states(observed: Observations) -> tuple[SmallerState, ...]:
    """What could be served instead of what is."""
    return SMALLER.get(observed.loaded.state, ()) if observed.loaded else ()
