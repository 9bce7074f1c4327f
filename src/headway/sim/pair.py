"""Two requests through one engine, in this process: the run behind `headway follow` and the lessons.

The executor may be the real one or the fake one; the engine, the policy and the story are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.compute.executor import Executor
from headway.core.clock import Clock, RealClock
from headway.core.events import AnyEvent, Stepped
from headway.core.request import Emission, Stage, TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory, blocks_for
from headway.patterns.text.pattern import text_model
from headway.patterns.text.sequence import Sequence
from headway.story.tell.explain import request_view
from headway.story.tell.narration import Narrator
from headway.story.tell.sentences import count

#: Share of their tokens that both emit in any case: an answer that ends at once would meet nobody.
AT_LEAST = 0.75


@dataclass(frozen=True)
class PairOptions:
    seats: int = 2
    step_tokens: int = 64
    prefix_cache: bool = False


def pair_options(seats: int, step_tokens: int, prefix_cache: bool) -> PairOptions:
    """Raises ConfigError for options that cannot work."""
    EngineOptions(seats=seats, step_tokens=step_tokens)
    return PairOptions(seats, step_tokens, prefix_cache)


@dataclass
class Pair:
    """Requests by name (`A`, `B`, in order of arrival) with their prompts and the most tokens that each emits,
    greedy. `cancel` ends one of them once it has emitted so many tokens."""

    prompts: dict[str, list[int]]
    tokens: dict[str, int]
    options: PairOptions = PairOptions()
    cancel: tuple[str, int] | None = None
    block_tokens: int = 16
    narrator: Narrator = field(default_factory=Narrator)
    events: list[AnyEvent] = field(default_factory=list)
    ended_at: dict[str, dict[str, Any]] = field(default_factory=dict)

    def need(self, name: str) -> tuple[int, int]:
        """Blocks to begin with (prompt and one more position), and at the end."""
        prompt = len(self.prompts[name])
        return (
            blocks_for(prompt + 1, self.block_tokens),
            blocks_for(prompt + self.tokens[name], self.block_tokens),
        )

    def tight_blocks(self) -> int:
        """A pool in which all can begin together and not all can end: who came last waits for space in between. Where
        they hardly grow, one in which the last cannot even begin beside the others."""
        needs = [self.need(name) for name in self.prompts]
        ends = [end for _, end in needs]
        together = max(sum(begin for begin, _ in needs), max(ends))
        return together if together < sum(ends) else max(sum(ends) - 1, max(ends))

    def run(
        self, executor: Executor, blocks: int, say: Callable[[str], None], clock: Clock | None = None
    ) -> dict[str, list[int]]:
        """Serve all to their end on a pool of `blocks` blocks, saying what happens. Returns what each emitted."""
        said: dict[str, list[int]] = {name: [] for name in self.prompts}
        clock = clock or RealClock()
        pool = BlockPool(blocks, self.block_tokens)

        def emit(event: AnyEvent) -> None:
            self.events.append(event)
            for line in self.narrator.tell(event):
                say(line)

        model = text_model(
            executor,
            StateMemory(pool, prefix_cache=self.options.prefix_cache),
            # two requests are to get in each other's way
            EngineOptions(seats=self.options.seats, step_tokens=self.options.step_tokens, admit="optimistic"),
        )
        engine = Engine([model], clock, emit=emit)
        for name, prompt in self.prompts.items():
            most = self.tokens[name]
            new = TextRequest(id=name, prompt=tuple(prompt), max_tokens=most, min_tokens=int(most * AT_LEAST))
            engine.add(new)
        while engine.busy:
            for emission in engine.step():
                if isinstance(emission, Emission):
                    said[emission.id] += emission.tokens
            self._cancel_in_time(engine, said)
            self._note_ends(engine)
        return said

    def _cancel_in_time(self, engine: Engine, said: dict[str, list[int]]) -> None:
        if self.cancel is None:
            return
        name, after = self.cancel
        if len(said[name]) >= after and name in engine.requests:
            engine.cancel(name, "request")
            self.cancel = None

    def _note_ends(self, engine: Engine) -> None:
        """What was there at the moment when one was over."""
        for name in self.prompts:
            if name in self.narrator.story.ended and name not in self.ended_at:
                others = [request for request in engine.requests.values() if not request.ended]
                self.ended_at[name] = {
                    "levels": engine.levels(),
                    "others": {r.id: (r.stage, *_extent(r.progress.sequences[0])) for r in others},
                }

    def remains(self, weights_bytes: int) -> list[str]:
        """What was left of whoever was over first, and what had to stay for the other."""
        if not self.ended_at:
            return ["Nobody was served."]
        name, then = next(iter(self.ended_at.items()))
        lines = [f"The weights stay, all {weights_bytes / 2**20:,.0f} MiB: they belong to no request."]
        reusable = then["levels"].reusable
        if reusable:
            lines.append(
                f"Of {name}: {count(reusable, 'block')} stay reusable: they can be evicted, or reused by a later "
                "prompt (a cache hit)."
            )
        else:
            lines.append(f"Of {name}: nothing. Its blocks are free (prefix caching is off).")
        for other, (stage, known, held) in then["others"].items():
            if stage is Stage.RUNNING:
                lines.append(f"For {other}: its own {count(held, 'block')}, the state of its positions, had to stay.")
            else:
                lines.append(
                    f"For {other}: it waited and held no block. Its {known} known tokens stay; their state must be "
                    "in memory before it continues."
                )
        return lines

    def steps_view(self) -> list[dict[str, Any]]:
        """Every step, ready for JSON."""
        return [msgspec.to_builtins(event) for event in self.events if isinstance(event, Stepped)]

    def records_view(self) -> dict[str, Any]:
        """Both records as they ended, ready for JSON."""
        story, now = self.narrator.story, self.events[-1].at if self.events else 0
        return {name: msgspec.to_builtins(request_view(story, story.record(name), now)) for name in self.prompts}


def _extent(sequence: Sequence) -> tuple[int, int]:
    """Its known positions, and the blocks that it holds."""
    return sequence.known, len(sequence.state.blocks) if sequence.state else 0
