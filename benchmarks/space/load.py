"""A served load on the real engine, over an executor that computes nothing and a clock that is modelled.

What is measured depends on the engine's decisions only, so a run is exact and says the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headway.compute.executor import ModelFacts
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Committed, Finished, Preempted, Stepped
from headway.core.plan import Span, SpanResult, StepPlan, StepResult
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model

_END = 1
_FIRST = 2


@dataclass(frozen=True)
class Asked:
    """A request: its prompt's length, how many tokens its answer has, and how many its caller allows."""

    at_s: float
    prompt: int
    answer: int
    max_tokens: int


@dataclass(frozen=True)
class Costs:
    """What a step takes: so much however small it is, for each position, and for each position of context that a
    sequence of it reads. The defaults are those of a mid-sized model on one accelerator."""

    step_us: float = 8_000.0
    position_us: float = 60.0
    context_us: float = 0.05


class Scripted:
    """Implements `Executor`: each request's prompt repeats one token, its number, and so does its answer, up to the
    end that was written for it."""

    def __init__(
        self, blocks: int, block_tokens: int, asked: Sequence[Asked], clock: ModelledClock, costs: Costs
    ) -> None:
        self._ends = [each.prompt + each.answer - 1 for each in asked]
        self._clock, self._costs = clock, costs
        self.facts = ModelFacts(
            name="scripted", revision="0", pattern="text", vocab=_FIRST + len(asked), max_context=1 << 20,
            weights_format="fp32", weights_bytes=0, state_format="fp32", block_bytes=block_tokens, eos_ids=(_END,),
        )  # fmt: skip

    def run(self, plan: StepPlan) -> StepResult:
        costs, spans = self._costs, plan.spans
        context = sum(span.end for span in spans)
        self._clock.advance(round(1e3 * (costs.step_us + costs.position_us * plan.cost + costs.context_us * context)))
        return StepResult(tuple(SpanResult(self._answer(span)) for span in spans))

    def _answer(self, span: Span) -> tuple[int, ...]:
        number = span.tokens[-1]
        return tuple(number if draw.position < self._ends[number - _FIRST] else _END for draw in span.draws)


@dataclass(frozen=True)
class Setting:
    """How the load is served."""

    blocks: int
    admit: str = "optimistic"
    policy: str = "fcfs"
    block_tokens: int = 16
    seats: int = 64
    step_tokens: int = 512
    prefix_cache: bool = True


@dataclass
class Outcome:
    """What came of a load, in modelled time; counts of positions, tokens and preemptions."""

    seconds: float = 0.0
    finished: int = 0
    emitted: int = 0
    preemptions: int = 0
    lost: int = 0
    prefilled: int = 0
    decoded: int = 0
    recomputed: int = 0
    most_running: int = 0
    live_ns: float = 0.0  # blocks of the pool in use, times how long
    step_ns: float = 0.0
    planned: Stepped | None = None

    @property
    def goodput(self) -> float:
        """Tokens per second that callers got."""
        return self.emitted / self.seconds if self.seconds else 0.0

    @property
    def recompute_share(self) -> float:
        """The recompute tax: recomputed positions of all that were evaluated."""
        evaluated = self.prefilled + self.decoded + self.recomputed
        return self.recomputed / evaluated if evaluated else 0.0

    @property
    def occupancy(self) -> float:
        """Blocks in use while steps ran, on average: the share of the pool that sequences held."""
        total = self.planned.levels.total if self.planned else 0
        return self.live_ns / (self.step_ns * total) if self.step_ns else 0.0


def conversations(count: int, per_second: float, *, seed: int = 1, max_tokens: int = 512) -> list[Asked]:
    """Arrivals at random at a constant rate; lengths spread as chats' are: many short, a few long (log-normal), and
    callers that allow more than they get."""
    chance = random.Random(seed)
    at_s, asked = 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(per_second)
        prompt = min(1024, max(8, round(chance.lognormvariate(5.3, 0.8))))
        answer = min(max_tokens, max(2, round(chance.lognormvariate(4.9, 0.8))))
        asked.append(Asked(at_s, prompt, answer, max_tokens))
    return asked


def serve(asked: Sequence[Asked], setting: Setting, costs: Costs | None = None) -> Outcome:
    """Serve a load to its end. `asked` is in order of arrival."""
    clock, outcome = ModelledClock(), Outcome()
    executor = Scripted(setting.blocks, setting.block_tokens, asked, clock, costs or Costs())
    memory = StateMemory(BlockPool(setting.blocks, setting.block_tokens), prefix_cache=setting.prefix_cache)
    options = EngineOptions(
        seats=setting.seats, step_tokens=setting.step_tokens, policy=setting.policy, admit=setting.admit
    )
    model = text_model(executor, memory, options)
    engine = Engine([model], clock, emit=lambda event: _count(event, outcome))
    coming = 0
    while coming < len(asked) or engine.busy:
        now_s = clock.now_ns() / 1e9
        if not engine.busy and asked[coming].at_s > now_s:
            clock.advance(round((asked[coming].at_s - now_s) * 1e9) + 1)
            continue
        while coming < len(asked) and asked[coming].at_s <= now_s:
            each = asked[coming]
            prompt = (_FIRST + coming,) * each.prompt
            engine.add(TextRequest(id=f"r{coming}", prompt=prompt, max_tokens=each.max_tokens))
            coming += 1
        engine.step()
        outcome.most_running = max(outcome.most_running, len(model.queues.running))
    outcome.seconds = clock.now_ns() / 1e9
    return outcome


def _count(event: AnyEvent, outcome: Outcome) -> None:
    match event:
        case Stepped():
            outcome.planned = event
        case Committed(outcomes=spans):
            assert outcome.planned is not None
            took = event.at - outcome.planned.at
            outcome.step_ns += took
            outcome.live_ns += took * outcome.planned.levels.live
            for span in spans:
                outcome.prefilled += span.prefilled
                outcome.decoded += span.decoded
                outcome.recomputed += span.recomputed
                outcome.emitted += span.emitted
        case Preempted(lost=lost):
            outcome.preemptions += 1
            outcome.lost += sum(lost)
        case Finished():
            outcome.finished += 1


def compared(asked: Sequence[Asked], settings: Iterable[Setting], costs: Costs | None = None) -> list[Outcome]:
    """The same load under each setting."""
    return [serve(asked, replace(setting), costs) for setting in settings]
