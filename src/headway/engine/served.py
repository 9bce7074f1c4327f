"""A served model: an executor, the pattern of its requests, their queues, and the bounds of its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice

from headway.compute.executor import Executor
from headway.core.errors import ConfigError, InvariantError
from headway.core.events import Levels, Recovery
from headway.core.request import NewRequest, Request
from headway.core.verdict import Never, Unit, Verdict, Wait
from headway.engine.pattern import AnyPattern, Books
from headway.engine.promises import Promises
from headway.engine.queues import Queues
from headway.policy.admit import AnswerLengths
from headway.policy.deadline import Fastest, soonest_ns, too_late
from headway.policy.durations import Durations
from headway.policy.order import ORDERS, promised_first, shorter_first
from headway.policy.progress import Repeats
from headway.policy.recovery import Watch
from headway.policy.turns import Pace, Share, charged
from headway.policy.waiting import AWAITS_MODEL, Limits, Room

#: Steps that a model's pace is measured over: of whole items only, and with something divided, which would be
#: forgotten between two prompts if they were not apart. Of these few: each chunk of a long prompt costs more than the
#: one before.
_RECENT_STEPS, _RECENT_DIVIDED = 31, 4


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The bounds that one model is served within (see `headway serve --help` for their meaning). A step has at most
    `step_tokens`; with `gap_ms` it has as many of them as keep the gap between tokens. Raises ConfigError for more
    seats than positions: each decoding sequence takes one in every step.

    promises   False: of a model whose work is known item by item no deadline is promised, and nobody pauses for
               another's: batches are as large as the seats. Only under --policy deadline is one refused then, which
               would be late even if all went as fast as can be
    """

    seats: int = 64
    step_tokens: int = 512
    gap_ms: float | None = None
    max_context: int = 1 << 20
    max_bypass: int = 32
    policy: str = "fcfs"
    admit: str = "headroom"
    recovery: str = "warn"
    promises: bool = True

    def __post_init__(self) -> None:
        if self.seats > self.step_tokens:
            raise ConfigError("--seats", f"{self.seats} seats need as many positions; a step has {self.step_tokens}")


class ServedModel:
    """`name` is how requests ask for it. `weight` is its share of the device's time beside other models, `device_ns`
    what it had of it, and `stopped_at` when its last step ended; None: it has had none since it became busy. `moved`
    are the arrivals of those who were in its last step, `durations` what parts of its steps took, as far as its
    executor tells, `answers` the lengths of its latest answers, `recovery` whether it is in a recovery loop, and
    `repeats` what was decided again and again while nothing moved. With `size` (what all of a request costs) smaller
    requests go first, within --max-bypass."""

    def __init__(
        self,
        executor: Executor,
        pattern: AnyPattern,
        options: EngineOptions | None = None,
        *,
        name: str = "",
        weight: float = 1.0,
        size: Callable[[Request], int] | None = None,
        durations: Durations | None = None,
    ) -> None:
        self.name = name or executor.facts.name
        self.executor = executor
        self.pattern = pattern
        self.options = options or EngineOptions()
        self.weight = weight
        self.device_ns = 0
        self.durations = Durations() if durations is None else durations
        self.moved: frozenset[int] = frozenset()
        self.stopped_at: int | None = None
        self.answers = AnswerLengths()
        self.recovery = Watch(auto=self.options.recovery == "auto")
        self.repeats = Repeats()
        self._recent: deque[tuple[int, int]] = deque(maxlen=_RECENT_STEPS)  # nanoseconds and cost
        self._divided: deque[tuple[int, int]] = deque(maxlen=_RECENT_DIVIDED)
        self._latest: deque[int] = deque(maxlen=_RECENT_STEPS)  # nanoseconds of both kinds
        order = ORDERS[self.options.policy]
        if size is not None:
            order = shorter_first(order, size, step=self.options.step_tokens, within=self.options.max_bypass)
        promises = pattern.foreseen and self.options.promises
        self.queues = Queues(
            promised_first(order) if promises else order,
            fair=self.options.policy == "fair",
            costed=self.options.policy == "deadline" and not promises,
        )
        self.promises = Promises(pattern, self.queues, self.options.seats, self.durations) if promises else None
        self.fastest = Fastest()

    @property
    def share(self) -> Share:
        """What it had of the device so far."""
        return Share(self.device_ns, self.weight)

    @property
    def fastest_ns(self) -> int:
        """How long the shortest of its latest steps took; 0: it has had none."""
        return min(self._latest, default=0)

    def pace(self, now: int) -> Pace:
        """How long its steps take, as measured, and whether callers wait for the next one."""
        paced = self.pattern.paced and bool(self.queues.running)
        since_ns = None if self.stopped_at is None else max(0, now - self.stopped_at)
        return Pace.of(self._recent, self._divided, paced=paced, since_ns=since_ns)

    def spent(self, ns: int, cost: int, at: int, *, divided: bool = False) -> None:
        """A step of its own took `ns` of the device and ended at `at`; in it something was `divided`, or might have
        been. Changes its share, and its pace, of which steps say nothing that evaluated nothing (they only copied, or
        failed), or in which the clock went back."""
        self.device_ns += charged(ns)
        self.stopped_at = at
        if not cost or ns <= 0:
            return
        (self._divided if divided else self._recent).append((ns, cost))
        self._latest.append(ns)
        if self.options.policy == "deadline":
            self.fastest = self.fastest.after(ns, cost, self.options.step_tokens)

    def too_late(self, request: Request, new: NewRequest, now: int) -> Never | None:
        """The refusal of a request that came now and cannot be ready by its deadline, or None. Only where that is
        promised, or the deadlines are the order. Notes what was promised, and what it costs."""
        if self.promises is not None:
            return self.promises.refusal(request, new, now)
        if self.options.policy != "deadline":
            return None
        work = self.pattern.least_work(request, new, self.answers)
        request.cost = work.cost
        if new.deadline_ms is None:
            return None
        ahead = self.queues.cost_ahead(request)
        spent_ns = 0 if new.received_at is None else max(0, now - new.received_at)
        soonest = soonest_ns(work, ahead, self.fastest, self.options.step_tokens)
        return too_late(spent_ns + soonest, new.deadline_ms)

    def lost_work(self, books: Books, step: int) -> Recovery | None:
        """Whether it is in a recovery loop, once there is anything to say of that after a step. Changes what is known
        of it."""
        news = self.recovery.worked(
            books.at,
            prefilled=sum(outcome.prefilled for outcome in books.outcomes),
            recomputed=sum(outcome.recomputed for outcome in books.outcomes),
            emitted=sum(outcome.emitted for outcome in books.outcomes) + sum(fork.emitted for fork in books.forks),
        )
        return None if news is None else Recovery(at=books.at, step=step, model=self.name, **asdict(news))

    @property
    def least_budget(self) -> int:
        """What a step must be able to spend, however its budget is cut: the next token of each running sequence."""
        return self.queues.seats_used if self.pattern.paced else 1

    @property
    def idle(self) -> bool:
        """Whether no step of its own could move anyone, or copy anything."""
        return self.queues.idle and not self.pattern.copies

    @property
    def cost_unit(self) -> Unit:
        return self.pattern.cost_unit

    @property
    def limits(self) -> Limits:
        """The most that any of its requests could ever get."""
        own, space = self.executor.facts.max_context, self.pattern.space
        context = min(self.options.max_context, own)
        return Limits(context, own, space.total, self.options.seats, space.unit)

    def room(self, budget: int, *, untouched: bool, by: str = "") -> Room:
        """What it has to give now, in a step that has `budget` left of what `by` allowed."""
        space = self.pattern.space
        seats = self.options.seats - self.queues.seats_used
        unit = self.cost_unit
        return Room(seats, space.free, space.reusable, budget, untouched, space.rule, space.unit, unit, by)

    def pass_turn(self) -> dict[str, Wait]:
        """Another model's step runs. Those whom its own next step would look at first wait for that: whoever holds
        seats, and of the queue whoever is not known to wait for something else. Changes their verdicts, and returns
        them by id."""
        seen = islice(self.queues.waiting.upcoming(), self.options.max_bypass + 1)
        looked = (request for request in seen if _would_look(request.verdict))
        passed = [*self.queues.running, *self.queues.returned, *looked]
        for request in passed:
            request.verdict = AWAITS_MODEL
        return {request.id: AWAITS_MODEL for request in passed}

    def levels(self) -> Levels:
        space = self.pattern.space
        return Levels(space.live, space.reusable, space.free, self.queues.seats_used, space.evictions)

    def newly_reusable(self) -> tuple[int, ...]:
        """What the event that is about to be told says of space that was given back (see `Space`)."""
        return self.pattern.space.newly_reusable()

    def check(self) -> None:
        """Raise InvariantError unless the identities of progress, space and seats hold. Changes nothing."""
        self.pattern.check_identities(self.queues)
        seats = sum(request.seats for request in self.queues.running)
        if self.queues.seats_used != seats or seats > self.options.seats:
            raise InvariantError(f"{self.queues.seats_used} seats are counted, {seats} held, of {self.options.seats}")


def _would_look(verdict: Verdict | None) -> bool:
    """Whether only a turn is between a waiting request and its next judgement, as far as is known."""
    return not isinstance(verdict, Wait) or (verdict.on == "turn" and verdict.rule != "seats")
