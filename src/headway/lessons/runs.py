"""Runs of a few requests for the lessons, and what their events say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.compute.executor import Executor
from headway.compute.fake import FakeExecutor
from headway.core.clock import ModelledClock
from headway.core.events import Admitted, AnyEvent, Committed, Stepped
from headway.core.plan import StepPlan
from headway.core.request import Counts, NewRequest
from headway.core.verdict import Wait
from headway.engine.loop import Engine
from headway.engine.served import ServedModel
from headway.sim.pair import Pair, PairOptions
from headway.story.reduce.reducer import Story


def prompt(positions: int, first: int = 3) -> list[int]:
    """Token ids for the fake executor; prompts with different `first` differ everywhere."""
    return [(first + 7 * i) % 997 for i in range(positions)]


def serve(model: ServedModel, news: Sequence[NewRequest], clock: ModelledClock | None = None) -> Served:
    """Serve the requests, which arrive together, to their end."""
    served = Served(Story(), [])

    def emit(event: AnyEvent) -> None:
        served.story.fold(event)
        served.events.append(event)

    engine = Engine([model], clock or ModelledClock(), emit=emit)
    for new in news:
        engine.add(new)
    while engine.busy:
        engine.step()
    return served


@dataclass(frozen=True)
class Served:
    """What became of some requests."""

    story: Story
    events: list[AnyEvent]

    @property
    def steps(self) -> list[Stepped]:
        return [event for event in self.events if isinstance(event, Stepped)]


def modelled(
    prompts: dict[str, list[int]],
    tokens: int,
    options: PairOptions,
    *,
    blocks: int,
    cost_ns: Callable[[StepPlan], int],
    block_tokens: int = 16,
) -> tuple[Pair, list[str]]:
    """Serve the requests on the fake executor, whose steps take the modelled time `cost_ns`. All arrive together.
    Returns the pair as it ended, and its story, a line each."""
    pair = Pair(prompts, dict.fromkeys(prompts, tokens), options, block_tokens=block_tokens)
    clock = ModelledClock()
    executor = FakeExecutor(blocks=blocks, block_tokens=block_tokens, clock=clock, cost_ns=cost_ns)
    story: list[str] = []
    pair.run(executor, blocks, story.append, clock)
    return pair, [line for line in story if "first token" not in line]


def real(
    prompts: dict[str, list[int]], tokens: int, executor: Executor, *, blocks: int, prefix_cache: bool, seats: int
) -> Pair:
    """Serve the requests on a loaded model, in steps that hold a whole prompt. All arrive together."""
    options = PairOptions(seats=seats, step_tokens=512, prefix_cache=prefix_cache)
    pair = Pair(prompts, dict.fromkeys(prompts, tokens), options)
    pair.run(executor, blocks, lambda line: None)
    return pair


def counts(pair: Pair, id: str) -> Counts:
    """The positions of request `id`, by how their state came to be."""
    return pair.narrator.story.record(id).sequences[0].counts


def steps(pair: Pair) -> list[Stepped]:
    return [event for event in pair.events if isinstance(event, Stepped)]


def blocks_taken(pair: Pair, id: str) -> int:
    """Blocks that `id` was given over its life, found ones included."""
    admitted = [table for event in pair.events if isinstance(event, Admitted) and event.id == id
                for table in event.tables]  # fmt: skip
    grown = [grown.blocks for event in steps(pair) for grown in event.grown if grown.id == id]
    return sum(map(len, [*admitted, *grown]))


def waits(pair: Pair, id: str) -> list[Wait]:
    """The verdict of every step in which `id` was judged and waited."""
    return [event.waits[id] for event in steps(pair) if id in event.waits]


def evicted_for(pair: Pair, id: str) -> int:
    """Reusable blocks that were evicted in the steps of `id`, which has every step to itself."""
    before = evicted = 0
    for event in steps(pair):
        if event.members[0].id == id:
            evicted += event.levels.evictions - before
        before = event.levels.evictions
    return evicted


def first_token_ms(pair: Pair, id: str) -> float:
    """From admission to the commit of the step that emitted the first token."""
    admitted = next(event.at for event in pair.events if isinstance(event, Admitted) and event.id == id)
    emitted = next(
        event.at
        for event in pair.events
        if isinstance(event, Committed) and any(out.id == id and out.emitted for out in event.outcomes)
    )
    return (emitted - admitted) / 1e6


def interval_ms(pair: Pair, id: str, name: str) -> float:
    """What the intervals called `name` of a request's life add up to."""
    return sum(each.ns for each in pair.narrator.story.record(id).intervals if each.name == name) / 1e6
