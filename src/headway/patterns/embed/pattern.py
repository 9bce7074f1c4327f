"""Embeddings: each input is evaluated once, whole, and becomes one vector. Nothing is fed back and nothing is kept,
so an input needs a turn and no space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.compute.executor import Executor
from headway.core.errors import InvalidRequest
from headway.core.events import Admitted, Arrived, Member, Moved
from headway.core.plan import Evaluate, StepPlan, Vector
from headway.core.price import Price
from headway.core.request import Embedded, EmbedRequest, Request, Stage
from headway.core.verdict import Ask, Input, Unit, Wait, Worst
from headway.engine.pattern import NO_EXTRA, Books, Entry, Extra, Lost, Settled, WithoutTiers, Work
from headway.engine.served import EngineOptions, ServedModel
from headway.memory.bytes import BytePool
from headway.policy.admit import AnswerLengths, Outlook
from headway.policy.deadline import LeastWork
from headway.policy.schedule import Run


@dataclass(frozen=True, slots=True)
class Quote:
    ask: Ask


@dataclass(slots=True, eq=False)
class EmbedProgress:
    """`done[i]` says whether `inputs[i]` was evaluated; `size` are the positions of all inputs."""

    inputs: tuple[Evaluate, ...]
    done: list[bool]
    size: int

    def left(self) -> list[int]:
        return [index for index, done in enumerate(self.done) if not done]


class EmbedPattern(WithoutTiers):
    """Implements `Pattern`. A part is the number of an input, a step's budget counts positions. An input is never
    cut: each of its positions is evaluated with a view of all others."""

    cost_unit: Unit = "positions"
    yields = True
    paced = False
    foreseen = False

    def __init__(self, executor: Executor) -> None:
        self.space = BytePool(0)
        self._facts = executor.facts

    # -- before it is queued ---------------------------------------------------------------------------------

    def check(self, new: EmbedRequest) -> None:
        if not new.inputs or not all(each.tokens for each in new.inputs):
            raise InvalidRequest("input", "the input is empty; at least one token is needed")
        least = min(min(each.tokens) for each in new.inputs)
        most = max(max(each.tokens) for each in new.inputs)
        if not 0 <= least <= most < self._facts.vocab:
            message = f"token ids must be from 0 to {self._facts.vocab - 1}; input has {least} to {most}"
            raise InvalidRequest("input", message)

    def worst(self, new: EmbedRequest) -> Worst:
        """An encoder of 512 positions takes 512: no place is needed for what follows."""
        return Worst(seats=1, context=max(each.cost for each in new.inputs), space=0)

    def begin(self, new: EmbedRequest, context: int) -> EmbedProgress:
        return EmbedProgress(new.inputs, [False] * len(new.inputs), new.positions)

    def awaits(self, new: EmbedRequest) -> dict[Input, Wait]:
        return {}

    def supply(self, request: Request, what: Input, content: Any) -> None:
        """It awaits nothing."""

    def arrived(self, new: EmbedRequest, request: Request, at: int, order: tuple[int, ...]) -> Arrived:
        return Arrived(
            at=at,
            id=request.id,
            pattern="embed",
            model=request.model,
            priority=request.priority,
            order=order,
            deadline_at=request.deadline_at,
            parts=(1,) * len(new.inputs),
            positions=tuple(each.cost for each in new.inputs),
            stages=tuple(stage.split(" ×")[0] for stage in self._facts.graph),
        )

    # -- what it needs ---------------------------------------------------------------------------------------

    def quote(self, request: Request, seats: int) -> Quote:
        first = self.works(request)[0]
        return Quote(Ask(seats=1, space=0, revived=0, cost=first.cost, whole=True))

    def admit(self, request: Request, quote: Quote, at: int, step: int) -> Admitted:
        resumed = request.preemptions > 0
        return Admitted(
            at=at, step=step, id=request.id, resumed=resumed, indexes=(), tables=(), inherited=(), model=request.model
        )

    def least_work(self, request: Request, new: EmbedRequest, answers: AnswerLengths) -> LeastWork:
        return LeastWork(new.positions, 0)

    def runs(self, request: Request) -> tuple[Run, ...]:
        return ()

    def outlook(self, request: Request, quote: Any = None) -> list[Outlook]:
        """All is taken at admission."""
        return []

    def works(self, request: Request) -> list[Work]:
        progress: EmbedProgress = request.progress
        return [Work(index, progress.inputs[index].cost, whole=True) for index in progress.left()]

    def index(self, part: int) -> int:
        return part

    def grow(self, part: int, lacking: int) -> tuple[int, ...]:
        return ()

    def extra(self, request: Request, work: Work, left: int) -> Extra:
        return NO_EXTRA

    # -- the step --------------------------------------------------------------------------------------------

    def entry(self, request: Request, work: Work, cost: int, extra: Extra) -> Entry:
        progress: EmbedProgress = request.progress
        member = Member(request.id, work.part, 0, cost, 0, "evaluate")
        return Entry(request, work.part, progress.inputs[work.part], member)

    def plan(self, step: int, entries: Iterable[Entry]) -> StepPlan:
        return StepPlan(step, tuple(entry.item for entry in entries))

    def fault(self, request: Request) -> str | None:
        return None

    def words(self, entry: Entry) -> str:
        return f"what the model computed for input {entry.part}"

    def enter(self, entry: Entry, result: Vector, books: Books) -> None:
        request, index = entry.request, entry.part
        progress: EmbedProgress = request.progress
        progress.done[index] = True
        books.moves.append(Moved(request.id, index, 1, 1, entry.item.cost))
        if request.stage is Stage.RUNNING:
            books.emissions.append(Embedded(request.id, index, result.values))

    def settle(self, request: Request) -> Settled:
        progress: EmbedProgress = request.progress
        return Settled(1) if progress.left() else Settled(0, "stop")

    # -- the end ---------------------------------------------------------------------------------------------

    def holding(self, request: Request) -> tuple[int, int]:
        return 0, 0

    def lose(self, request: Request) -> Lost:
        """The vectors of its inputs have left already."""
        return Lost((), (), 0)

    def price(self, request: Request, lost: Lost, taken: int) -> Price:
        return Price()

    def release(self, request: Request, *, keep: bool = True) -> None:
        """It holds nothing."""

    def check_identities(self, requests: Iterable[Request]) -> None:
        self.space.check({})


def embed_model(
    executor: Executor, options: EngineOptions | None = None, *, name: str = "", weight: float = 1.0
) -> ServedModel:
    """An encoder as an engine serves it: of its inputs the shorter go first (`policy/order.py`)."""
    return ServedModel(executor, EmbedPattern(executor), options, name=name, weight=weight, size=_size)


def _size(request: Request) -> int:
    progress: EmbedProgress = request.progress
    return progress.size
