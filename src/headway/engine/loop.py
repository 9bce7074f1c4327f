"""The engine: one loop over the served models, and the only place where a request changes. Requests join and leave
between steps (continuous batching).

    step() = plan() + executor.run() + commit()

`plan` decides what moves and takes the space for it; `commit` enters the results into the books. Requests may be
added or cancelled between the two. Who waits is decided in `policy/waiting.py`, who is preempted in
`policy/preempt.py`, who is next in `policy/order.py`, whose step it is in `policy/turns.py`. How a step is put
together from these is in `engine/planner.py`, where a request is in `engine/queues.py`, and what its progress means
only its pattern knows (`engine/pattern.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.clock import Clock
from headway.core.errors import InvalidRequest, InvariantError, StalledError, UnknownRequest, error_words
from headway.core.events import (
    GRAMMAR,
    NOT_FINITE,
    AnyEvent,
    Cancelled,
    Committed,
    Failed,
    Finished,
    Levels,
    NoProgress,
    Refused,
    Supplied,
)
from headway.core.plan import StepPlan, StepResult
from headway.core.request import AnyEmission, NewRequest, Request, Stage
from headway.core.verdict import Input, Wait
from headway.engine.pattern import Books, Entry
from headway.engine.planner import Planner
from headway.engine.served import ServedModel
from headway.policy.copies import copy_budget
from headway.policy.progress import APART_NS, TIMES
from headway.policy.turns import Pace, caught_up, next_turn
from headway.policy.waiting import never

_NOT_FINITE = (
    "is not finite (NaN or infinity): the model's weights are damaged, or too large for the data type that they are "
    "served in"
)


#: What is tried again and again is a step, or a reload for one request, by its id, which is never empty.
_STEP = ""


@dataclass(frozen=True, slots=True)
class Ports:
    """What may be done between the parts of a step: after it is `planned`, before it runs; and after it `ran`, before
    its result is entered. Requests may be added and cancelled there."""

    planned: Callable[[], None] = lambda: None
    ran: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Flight:
    """A planned step whose result is not in yet. To the blocks of those that are `reloading` it copies what lies in
    tiers."""

    model: ServedModel
    plan: StepPlan
    entries: list[Entry]
    planned_at: int
    divided: bool
    reloading: list[Request]
    requests: list[Request] = field(init=False)

    def __post_init__(self) -> None:
        """Each request of the step once."""
        requests = [entry.request for entry in self.entries] + self.reloading
        self.requests = list({request.arrival: request for request in requests}.values())


class Engine:
    """Requests of one or several models, a step of one of them at a time. Synchronous, single-threaded, and free of
    I/O: executors compute, `clock` tells the time, `emit` receives every event in order. `slowdown` bounds how far
    other models' steps may stretch the gap between the tokens of one (see `policy/turns.py`); None: no bound."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        clock: Clock,
        *,
        emit: Callable[[AnyEvent], None] | None = None,
        ports: Ports | None = None,
        slowdown: float | None = None,
    ) -> None:
        self.models = {model.name: model for model in models}
        self.clock = clock
        self.emit = emit or (lambda event: None)
        self.steps = 0
        self._ports = ports or Ports()
        self._slowdown = slowdown
        self._arrivals = 0
        self._flight: _Flight | None = None

    # -- arrivals and departures -----------------------------------------------------------------------------

    def add(self, new: NewRequest) -> Request:
        """Queue a request, or refuse it (stage `refused`, with its verdict) when it could never be served. One that
        needs something from outside the step waits beside the queue until `supply` brings it, or `fail` ends it.

        Raises DuplicateRequest for a live id, InvalidRequest for a field that cannot be served as given.
        """
        model = self._model(new)
        pattern, queues = model.pattern, model.queues
        for other in self.models.values():
            other.queues.refuse_duplicate(new.id)
        pattern.check(new)
        worst = pattern.worst(new)
        refusal = never(worst, model.limits)
        at = self.clock.now_ns()
        self._arrivals += 1
        arrived = at if new.received_at is None else new.received_at
        due = None if new.deadline_ms is None else arrived + round(new.deadline_ms * 1e6)
        request = Request(
            new.id,
            model.name,
            new.priority,
            self._arrivals,
            positions=new.positions,
            seats=worst.seats,
            deadline_at=due,
            caller=new.caller,
        )
        if refusal is None:
            request.progress = pattern.begin(new, model.limits.context)
            refusal = model.too_late(request, new, at)
        if refusal is not None:
            request.verdict, request.progress = refusal, None
            request.move(Stage.REFUSED)
            self.emit(Refused(at=at, id=new.id, reason=refusal.rule, verdict=refusal, model=model.name))
            return request
        request.awaits = pattern.awaits(new)
        self._wake(model)
        self.emit(pattern.arrived(new, request, at, queues.order(request)))
        queues.join(request)
        model.recovery.arrived(new.positions)
        return request

    def turned_away(self, model: str, requests: int) -> None:
        """So many requests for a model were turned away before they came here, since too many wait: what is told of
        a cut of admission counts them. Unknown models are ignored."""
        if model in self.models:
            self.models[model].recovery.turned_away(requests)

    def supply(self, request_id: str, what: Input, content: object) -> None:
        """Something that a request awaited is there: for a grammar, one guide for each of its sequences. With the
        last of it the request queues at the place that its arrival gives it. Raises UnknownRequest when no live
        request with this id awaits it."""
        request, model = self._live(request_id)
        self._wake(model)
        model.queues.supplied(request_id, what)
        model.pattern.supply(request, what, content)
        if not request.awaits:
            self.emit(Supplied(at=self.clock.now_ns(), id=request_id))

    def fail(self, request_id: str, message: str, reason: str = GRAMMAR) -> None:
        """What a live request awaits cannot be had, or its grammar leads nowhere: that is its end, and nobody else's.
        Space and errors are as for `cancel`."""
        levels, reusable, later = self._end(request_id, Stage.FAILED)
        self.emit(
            Failed(
                at=self.clock.now_ns(),
                id=request_id,
                message=message,
                reason=reason,
                levels=levels,
                reusable=reusable,
                until_commit=later,
            )
        )

    def cancel(self, request_id: str, by: str = "caller") -> None:
        """End a live request now. Its space is free at once, or, if the running step names it, when that step
        commits. Raises UnknownRequest when no live request has the id."""
        levels, reusable, later = self._end(request_id, Stage.CANCELLED)
        at = self.clock.now_ns()
        self.emit(Cancelled(at=at, id=request_id, by=by, levels=levels, reusable=reusable, until_commit=later))

    # -- the step --------------------------------------------------------------------------------------------

    def step(self) -> list[AnyEmission]:
        """Do one step. Returns what was emitted; an empty list also when there was nothing to do."""
        plan = self.plan()
        if plan is None:
            return []
        assert self._flight is not None
        self._ports.planned()
        try:
            result = self._flight.model.executor.run(plan)
        except Exception as error:  # whatever it is, it is these requests' end and nobody else's
            self.abort(error_words(error))
            return []
        self._ports.ran()
        return self.commit(result)

    def plan(self) -> StepPlan | None:
        """Choose what moves in the next step and take the space for it. None when nobody could move: no request is
        alive, or all that are await something from outside, or the space of those who do. Raises StalledError where
        requests wait, nothing moves, and that was so `TIMES` times for the same reason; the event `NoProgress` has
        told it."""
        if self._flight is not None:
            raise InvariantError("a step is planned while another one is in flight")
        self.collect()
        busy = [model for model in self.models.values() if not model.idle]
        at, still, stalled = self.clock.now_ns(), list(busy), []
        while still:
            model, planner = self._look(still, at)
            if planner.entries or model.pattern.copies:
                break
            still.remove(model)
            stalled.append(self._stalled(model, planner, at))
        else:
            if stalled and all(stalled):
                raise StalledError(", ".join(stalled))
            return None
        model.repeats.forget(_STEP)
        self.steps += 1
        for other in busy:
            if other is not model:
                planner.waits |= other.pass_turn()
        plan = planner.finish()
        reloading = [request for request in model.queues.reloading if model.pattern.copying(request)]
        self._flight = _Flight(model, plan, planner.entries, at, planner.divided, reloading)
        for request in self._flight.requests:
            request.in_flight += 1
        self._fail_at_dead_ends(self._flight)
        return plan

    def _look(self, busy: list[ServedModel], at: int) -> tuple[ServedModel, Planner]:
        """Whose step it is, and that step as far as it can be put together."""
        shares, budgets = [each.share for each in busy], [each.options.step_tokens for each in busy]
        paces = [each.pace(at) for each in busy] if len(busy) > 1 else [Pace(0)]
        turn = next_turn(shares, paces, budgets, self._slowdown)
        model, kept = busy[turn.place], "" if turn.kept is None else busy[turn.kept].name
        budget = max(turn.budget, model.least_budget)
        copies = copy_budget(each.fastest_ns for each in busy if each.queues.running or each.queues.returned)
        planner = Planner(model, self.steps + 1, at, self.emit, budget, copies, kept)
        planner.fill()
        return model, planner

    def commit(self, result: StepResult) -> list[AnyEmission]:
        """Enter the result of the planned step into the books. Returns what was emitted."""
        flight = self._take_flight()
        pattern = flight.model.pattern
        books = Books(self.clock.now_ns())
        pattern.committed(flight.plan, result, books.at, books.at - flight.planned_at)
        for part in result.spent:
            flight.model.durations.note(part.kind, part.size, part.rows, part.ns)
        spoiled = {flight.entries[place].request.arrival: flight.entries[place] for place in result.spoiled}
        failed = self._fail_all(flight.model, [entry.request for entry in spoiled.values()])
        for entry, entered in zip(flight.entries, result.results, strict=True):
            pattern.enter(entry, entered, books)
        for entry in spoiled.values():
            self._release(flight.model, entry.request, keep=False)
        flight.model.queues.served(books.emissions)
        finished = self._settle(flight)
        self.emit(
            Committed(
                at=books.at,
                step=flight.plan.step,
                model=flight.model.name,
                outcomes=tuple(books.outcomes),
                forks=tuple(books.forks),
                moves=tuple(books.moves),
                levels=flight.model.levels(),
                reusable=flight.model.newly_reusable(),
            )
        )
        loop = flight.model.lost_work(books, flight.plan.step)
        for event in (*([loop] if loop else []), *books.events):
            self.emit(event)
        for request in failed:
            message = f"{pattern.words(spoiled[request.arrival])} {_NOT_FINITE}"
            self.emit(Failed(at=books.at, id=request.id, message=message, reason=NOT_FINITE))
        for request, reason in finished:
            self.emit(Finished(at=books.at, id=request.id, reason=reason))
        self.collect()
        return books.emissions

    def abort(self, message: str) -> None:
        """The planned step failed: its requests fail, everyone else is untouched. Space that nobody else holds goes
        back unindexed, also what was indexed before: who knows what the failure left in it."""
        flight = self._take_flight(failed=True)
        model, at = flight.model, self.clock.now_ns()
        model.pattern.aborted()
        failed = self._fail_all(model, flight.requests)
        for request in flight.requests:
            self._release(model, request, keep=False)
        self.emit(
            Committed(
                at=at,
                step=flight.plan.step,
                model=model.name,
                outcomes=(),
                forks=(),
                levels=model.levels(),
                reusable=model.newly_reusable(),
            )
        )
        for request in failed:
            self.emit(Failed(at=at, id=request.id, message=message))

    def collect(self) -> None:
        """Take in what tiers did beside the steps: blocks that were read from disk, or written to it. Of a reload for
        which nothing came for long, as when a disk hangs, the event `NoProgress` tells."""
        for model in self.models.values():
            at = self.clock.now_ns()
            for event in model.pattern.collect(at):
                self.emit(event)
            for request in list(model.queues.reloading):
                wait = model.pattern.reloading(request)
                if wait is not None:
                    self._note(model, request.id, request.id, wait, at, APART_NS)
                    continue
                self._wake(model)
                model.repeats.forget(request.id)
                model.queues.reloaded(request)
                self.emit(model.pattern.reloaded(request, at))

    # -- numbers ---------------------------------------------------------------------------------------------

    @property
    def requests(self) -> Mapping[str, Request]:
        """All requests whose space is not given back yet, by id; where two have one, the live one."""
        listed = sorted((request for model in self.models.values() for request in model.queues), key=_liveness)
        return {request.id: request for request in listed}

    @property
    def busy(self) -> bool:
        """Whether any request is alive, or its space not given back yet."""
        return any(len(model.queues) for model in self.models.values())

    @property
    def idle(self) -> bool:
        """Whether no step could move anyone, or copy anything between a pool and its tiers."""
        return all(model.idle for model in self.models.values())

    @property
    def awaiting(self) -> bool:
        """Whether anything from outside the step is awaited: a grammar, a read from disk, a write to it."""
        return any(model.queues.awaiting or model.pattern.moves for model in self.models.values())

    def levels(self) -> Levels:
        """Of the only model."""
        (model,) = self.models.values()
        return model.levels()

    def check(self) -> None:
        """Raise InvariantError unless the identities of space and positions hold. Changes nothing."""
        for model in self.models.values():
            model.check()

    # -- inside ----------------------------------------------------------------------------------------------

    def _model(self, new: NewRequest) -> ServedModel:
        if not new.model and len(self.models) == 1:
            return next(iter(self.models.values()))
        if new.model not in self.models:
            raise InvalidRequest("model", f"model {new.model!r} is not served; {', '.join(self.models)} are")
        return self.models[new.model]

    def _wake(self, model: ServedModel) -> None:
        """A model is about to be busy again: time that it did not ask for is not saved up."""
        if model.queues.idle:
            others = [other.share for other in self.models.values() if other is not model and not other.idle]
            model.device_ns, model.stopped_at = caught_up(model.share, others), None

    def _stalled(self, model: ServedModel, planner: Planner, at: int) -> str:
        """Nobody of a model moves in a step. Why not, once that was so `TIMES` times for the same reason; until then,
        and while something from outside the step is awaited that may hold space, nothing."""
        if model.queues.idle or model.queues.reloading:
            return ""  # it had only copies to make, and they need none; or blocks come back for those who hold them
        if planner.head is None:
            raise StalledError(f"{len(model.queues.running)} requests of {model.name} hold seats, and none can move")
        if model.queues.awaiting:
            return ""
        wait = planner.waits[planner.head]
        if self._note(model, _STEP, planner.head, wait, at) < TIMES:
            return ""
        return f"{planner.head} waits by the rule {wait.rule} ({wait.short} {wait.unit} short), and nothing runs"

    def _note(self, model: ServedModel, tried: str, request_id: str, wait: Wait, at: int, apart_ns: int = 0) -> int:
        """Something was tried and moved nothing. How often in a row (see `Repeats.note`); the time that makes it no
        progress is told."""
        times = model.repeats.note(tried, request_id, wait, at, apart_ns)
        if times == TIMES:
            self.emit(NoProgress(at=at, step=self.steps, model=model.name, id=request_id, wait=wait, times=times))
        return times

    def _live(self, request_id: str) -> tuple[Request, ServedModel]:
        for model in self.models.values():
            request = model.queues.find(request_id)
            if request is not None:
                return request, model
        raise UnknownRequest(request_id)

    def _end(self, request_id: str, stage: Stage) -> tuple[Levels, tuple[int, ...], bool]:
        """Take a live request out of where it is. Its space goes now, or with the running step that names it. Gives
        the pool's levels, what became reusable, and whether its space goes only when that step commits."""
        request, model = self._live(request_id)
        model.queues.end(request, stage)
        model.repeats.forget(request_id)
        if not request.in_flight:
            self._release(model, request)
        return model.levels(), model.newly_reusable(), bool(request.in_flight)

    def _fail_at_dead_ends(self, flight: _Flight) -> None:
        """Where a grammar has no way on, the end is all that its mask allows; that must not look like a good end."""
        for request in flight.requests:
            fault = flight.model.pattern.fault(request)
            if fault is not None:
                self.fail(request.id, fault)

    def _fail_all(self, model: ServedModel, requests: Iterable[Request]) -> list[Request]:
        """These requests of a step end here. Returns those that had not ended before."""
        alive = [request for request in requests if not request.ended]
        for request in alive:
            model.queues.end(request, Stage.FAILED)
        return alive

    def _take_flight(self, *, failed: bool = False) -> _Flight:
        flight, self._flight = self._flight, None
        if flight is None:
            raise InvariantError("a result arrived while no step is in flight")
        for request in flight.requests:
            request.in_flight -= 1
        now = self.clock.now_ns()
        cost = 0 if failed else flight.plan.cost
        flight.model.spent(now - flight.planned_at, cost, now, divided=flight.divided)
        return flight

    def _settle(self, flight: _Flight) -> list[tuple[Request, str]]:
        """Give back the space of what ended during or with the step. Returns the requests that finished, and why."""
        model, finished = flight.model, []
        for request in flight.requests:
            settled = model.pattern.settle(request)
            for tokens in settled.answers if not request.ended else ():
                model.answers.add(tokens)
            if request.ended:
                self._release(model, request)
            elif settled.seats:
                model.queues.reseat(request, settled.seats)
            else:
                model.queues.end(request, Stage.FINISHED)
                finished.append((request, settled.reason))
                self._release(model, request)
        return finished

    def _release(self, model: ServedModel, request: Request, *, keep: bool = True) -> None:
        model.pattern.release(request, keep=keep)
        model.queues.forget(request)


def _liveness(request: Request) -> tuple[bool, int]:
    return not request.ended, request.arrival
