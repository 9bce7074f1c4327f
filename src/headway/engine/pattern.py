"""What the engine asks of a pattern: the only thing that knows what progress means.

The engine knows requests, seats, space, cost and turns. A pattern answers, for its own kind of request: its worst
case, what it needs now (`Ask`), which items it puts into a step, how a result enters its progress, and what
preemption loses. Everything that queues, judges, admits, preempts and releases is the engine's, the same for all.

A cost is counted in the pattern's own unit: positions for text. Space is counted in the unit of its `Space`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from headway.core.errors import InvariantError
from headway.core.events import (
    Admitted,
    AnyEvent,
    Arrived,
    Forked,
    Member,
    Moved,
    Outcome,
    Reloaded,
    ReloadStarted,
)
from headway.core.plan import StepPlan, StepResult
from headway.core.price import Price
from headway.core.request import AnyEmission, NewRequest, Request
from headway.core.verdict import Ask, Input, SpaceRule, Unit, Wait, Worst
from headway.policy.admit import AnswerLengths, Outlook
from headway.policy.copies import CopyBudget
from headway.policy.deadline import LeastWork
from headway.policy.schedule import Run

NewT_contra = TypeVar("NewT_contra", bound=NewRequest, contravariant=True)
P = TypeVar("P")


class Space(Protocol):
    """Memory for state, as far as the engine looks at it: `live + reusable + free = total`, always.

    rule   how a wait for it is called: `blocks`, `latent`
    unit   what its numbers count
    step   the step that is being planned: what is evicted, is evicted by it
    """

    step: int

    @property
    def rule(self) -> SpaceRule: ...
    @property
    def unit(self) -> Unit: ...
    @property
    def total(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def reusable(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def evictions(self) -> int: ...

    def newly_reusable(self) -> tuple[int, ...]:
        """What became reusable since this was last asked, and still is, by number where it has numbers. Asked once
        for each event with which space is given back, which tells it."""
        ...


class Quote(Protocol):
    """What a request's admission or resumption takes, read from its memory and not yet taken."""

    @property
    def ask(self) -> Ask: ...


class Work(msgspec.Struct, frozen=True, gc=False):
    """What one part of a running request would do next.

    part      the pattern's own: a sequence, an input, a latent
    cost      what all of it costs a step
    whole     it cannot be divided: it moves as one item, or waits. Whole items go before divisible ones
    lacking   space that it must be given first
    """

    part: Any
    cost: int
    whole: bool
    lacking: int = 0


class Extra(msgspec.Struct, frozen=True, gc=False):
    """What a work may do beyond what it must, with what nobody else needs: drafts beside a decode position."""

    content: Any
    cost: int
    lacking: int = 0


NO_EXTRA = Extra((), 0)


class Entry(msgspec.Struct, frozen=True):
    """One item of a step (`plan.Item`), and whose it is; `fills` and `copies` as in `StepPlan`."""

    request: Request
    part: Any
    item: Any
    member: Member
    copies: tuple[tuple[int, int], ...] = ()
    fills: tuple[tuple[int, int], ...] = ()


class Lost(msgspec.Struct, frozen=True):
    """What a preemption took, by part: `units` of progress that have no state any more, and space in all."""

    indexes: tuple[int, ...]
    units: tuple[int, ...]
    space: int


class Settled(msgspec.Struct, frozen=True):
    """What a request needs after a step: `seats` seats, or, with none, its end for a `reason`. `answers` are the
    lengths of those of its answers that ended with the step."""

    seats: int
    reason: str = ""
    answers: tuple[int, ...] = ()


@dataclass(slots=True)
class Books:
    """The result of one step: `emissions` for the callers; the rest is the story, `events` behind the step's own."""

    at: int
    emissions: list[AnyEmission] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    forks: list[Forked] = field(default_factory=list)
    moves: list[Moved] = field(default_factory=list)
    events: list[AnyEvent] = field(default_factory=list)


class Pattern(Protocol[NewT_contra]):
    """One kind of request. What is said to change state changes the request's progress and its memory, nothing
    else; all other methods change nothing."""

    @property
    def space(self) -> Space: ...

    @property
    def cost_unit(self) -> Unit:
        """What a step's budget counts."""
        ...

    @property
    def yields(self) -> bool:
        """Whether a running request stands back, every other step, for those who wait: it holds no space that would
        be free the sooner, and it may have many steps to go."""
        ...

    @property
    def paced(self) -> bool:
        """Whether a caller waits for what each step of a running request brings, as for the next token."""
        ...

    @property
    def foreseen(self) -> bool:
        """Whether `runs` tells all that is left of a request."""
        ...

    # -- before it is queued

    def check(self, new: NewT_contra) -> None:
        """Raises InvalidRequest for a field that the model cannot take as given."""
        ...

    def worst(self, new: NewT_contra) -> Worst:
        """The most that it could ever need."""
        ...

    def begin(self, new: NewT_contra, context: int) -> Any:
        """The progress of a request that could be served within `context` positions."""
        ...

    def awaits(self, new: NewT_contra) -> dict[Input, Wait]:
        """What it needs from outside the step before it may queue."""
        ...

    def supply(self, request: Request, what: Input, content: Any) -> None:
        """Something that it awaited is there. Changes state."""
        ...

    def arrived(self, new: NewT_contra, request: Request, at: int, order: tuple[int, ...]) -> Arrived:
        """The event of its arrival."""
        ...

    # -- state tiers: patterns without any inherit `WithoutTiers`

    @property
    def copies(self) -> bool:
        """Whether there is something for a step to copy between pool and tiers, also one with no items."""
        ...

    @property
    def moves(self) -> bool:
        """Whether tiers do something beside the steps that is to be asked for (`collect`)."""
        ...

    def open(self, step: int, at: int, copies: CopyBudget) -> None:
        """A step is about to be planned; `copies` is its budget for copies between pool and tiers. Changes the
        memory."""
        ...

    def reloads(self, quote: Any) -> bool:
        """Whether what was quoted comes in part from tiers."""
        ...

    def reload(self, request: Request, quote: Any, at: int, step: int) -> ReloadStarted:
        """Take exactly what was quoted, and have what lies in tiers brought back. Returns the event. Changes state.
        Raises InvariantError when the quoted space is not there."""
        ...

    def reloading(self, request: Request) -> Wait | None:
        """What is missing of what is brought back for it; None once that is over."""
        ...

    def copying(self, request: Request) -> bool:
        """Whether the step that is planned copies to blocks of a request that holds no seat."""
        ...

    def reloaded(self, request: Request, at: int) -> Reloaded:
        """The event of the end of a reload."""
        ...

    def collect(self, at: int) -> list[AnyEvent]:
        """Take in what tiers did beside the steps. Returns what there is to tell. Changes the memory."""
        ...

    def committed(self, plan: StepPlan, result: StepResult, at: int, ns: int) -> None:
        """A step ran, in `ns`: what it copied is there. Before its results are entered. Changes the memory."""
        ...

    def aborted(self) -> None:
        """A step failed, and with it what it copied. Changes the memory."""
        ...

    # -- what it needs

    def quote(self, request: Request, seats: int) -> Quote:
        """What admission or resumption takes, where `seats` seats are free."""
        ...

    def admit(self, request: Request, quote: Any, at: int, step: int) -> Admitted:
        """Take exactly what was quoted, and what state is found with it. Returns the event. Changes state. Raises
        InvariantError when the quoted space is not there."""
        ...

    def least_work(self, request: Request, new: NewT_contra, answers: AnswerLengths) -> LeastWork:
        """What is left of a request that came now at least, where `answers` tell how long others were."""
        ...

    def runs(self, request: Request) -> tuple[Run, ...]:
        """What is left of a request, item by item, where that is known."""
        ...

    def outlook(self, request: Request, quote: Any = None) -> list[Outlook]:
        """What each part of a running request may still take, or, with its quote, of one that is to be admitted.
        Nothing where all is taken at admission."""
        ...

    def works(self, request: Request) -> list[Work]:
        """What a running request would do next, by part, in the order in which parts get their turn."""
        ...

    def index(self, part: Any) -> int:
        """A part's number within its request."""
        ...

    def grow(self, part: Any, lacking: int) -> tuple[int, ...]:
        """Take the space that a part lacks; the caller knows that it is there. Returns what was taken, by number
        where it has numbers. Changes state."""
        ...

    def extra(self, request: Request, work: Work, left: int) -> Extra:
        """What it may do beyond a whole work, where the step has `left` to give and the space has room."""
        ...

    # -- the step

    def entry(self, request: Request, work: Work, cost: int, extra: Extra) -> Entry:
        """The item that spends `cost` of a work, and the extra. Changes no progress."""
        ...

    def plan(self, step: int, entries: Iterable[Entry]) -> StepPlan:
        """The plan of a step with these items."""
        ...

    def fault(self, request: Request) -> str | None:
        """Why a request that is in the step cannot go on; None when it can."""
        ...

    def words(self, entry: Entry) -> str:
        """What an item computed, as a message calls it: "what the model computed at positions 3 to 7"."""
        ...

    def enter(self, entry: Entry, result: Any, books: Books) -> None:
        """Enter an item's result. A request that has ended meanwhile is charged for what ran, and emits nothing.
        Changes state."""
        ...

    def settle(self, request: Request) -> Settled:
        """Give back the space of the parts that ended. Changes state."""
        ...

    # -- the end

    def holding(self, request: Request) -> tuple[int, int]:
        """Space that would be available if it left, and space that it shares with others, which would stay."""
        ...

    def lose(self, request: Request) -> Lost:
        """Give up all state, to be computed again later. Changes state."""
        ...

    def price(self, request: Request, lost: Lost, taken: int) -> Price:
        """What it costs to resume one that just `lost` its state, before others take `taken` of the space."""
        ...

    def release(self, request: Request, *, keep: bool = True) -> None:
        """The one way in which its state ends; a second call does nothing. With `keep` False nothing of it is to be
        found again. Changes state."""
        ...

    def check_identities(self, requests: Iterable[Request]) -> None:
        """Raises InvariantError unless progress and space of all live requests add up."""
        ...


AnyPattern: TypeAlias = Pattern[Any]


class WithoutTiers:
    """What a pattern answers whose state lies nowhere but in its pool."""

    space: Any
    copies = False
    moves = False

    def open(self, step: int, at: int, copies: CopyBudget) -> None:
        self.space.step = step

    def reloads(self, quote: Any) -> bool:
        return False

    def reload(self, request: Request, quote: Any, at: int, step: int) -> ReloadStarted:
        raise InvariantError(f"{request.id} has nothing to be reloaded")

    def reloading(self, request: Request) -> Wait | None:
        return None

    def copying(self, request: Request) -> bool:
        return False

    def reloaded(self, request: Request, at: int) -> Reloaded:
        raise InvariantError(f"{request.id} has nothing to be reloaded")

    def collect(self, at: int) -> list[AnyEvent]:
        return []

    def committed(self, plan: StepPlan, result: StepResult, at: int, ns: int) -> None:
        """It copied nothing."""

    def aborted(self) -> None:
        """It copied nothing."""
