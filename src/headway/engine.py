"""The engine: the loop, the queue, and the only place where a request changes.

    step() = plan() + executor.run() + commit()

`plan` decides what moves and takes the blocks for it; `commit` enters what came of it into the books. Requests may
be added or cancelled between the two. Who waits is decided in `policy/waiting.py`, who is preempted in
`policy/preempt.py`, who is next in `policy/order.py`, what a step may spend in `policy/budget.py`. How a step is put
together from these is in `planning.py`, how its result is entered in `committing.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

from headway.arriving import Groups, arrived, new_request, new_sequences
from headway.clock import Clock
from headway.committing import Committing, Flight, give_back, not_finite
from headway.compute.executor import Executor
from headway.errors import ConfigError, DuplicateRequest, InvariantError, StalledError, UnknownRequest, error_words
from headway.hooks import Drafters, Watcher, no_drafts, no_watcher
from headway.integrity import check_identities
from headway.memory.reserve import StateMemory
from headway.plan import StepPlan, StepResult, TokenLogprob
from headway.planning import Planning
from headway.policy.order import ORDERS
from headway.policy.waiting import Limits, never
from headway.request import Emission, Guide, NewRequest, Request, Sequence, Stage
from headway.story.events import (
    GRAMMAR,
    NOT_FINITE,
    AnyEvent,
    Cancelled,
    Committed,
    DraftsPaused,
    Failed,
    Finished,
    Levels,
    Refused,
    Supplied,
)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The bounds that one engine works within (see `headway serve --help` for their meaning). Raises ConfigError for
    more seats than positions: each decoding sequence takes one in every step."""

    seats: int = 64
    step_tokens: int = 512
    max_context: int = 1 << 20
    max_bypass: int = 32
    policy: str = "fcfs"

    def __post_init__(self) -> None:
        if self.seats > self.step_tokens:
            raise ConfigError("--seats", f"{self.seats} seats need as many positions; a step has {self.step_tokens}")


class Engine:
    """One model's requests. Synchronous, single-threaded, and free of I/O: `executor` computes, `clock` tells the
    time, `emit` receives every event in order."""

    def __init__(
        self,
        executor: Executor,
        memory: StateMemory,
        clock: Clock,
        options: EngineOptions | None = None,
        *,
        emit: Callable[[AnyEvent], None] | None = None,
        drafters: Drafters = no_drafts,
        watcher: Watcher = no_watcher,
    ) -> None:
        self.executor = executor
        self.memory = memory
        self.clock = clock
        self.options = options or EngineOptions()
        self.emit = emit or (lambda event: None)
        self.order = ORDERS[self.options.policy]
        self.drafters = drafters
        self.watcher = watcher
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []  # sorted by self.order
        self.awaiting: dict[str, Request] = {}  # their grammars are being compiled; they join `waiting` then
        self.running: list[Request] = []
        self.steps = 0
        self._arrivals = 0
        self._groups = Groups()
        self._flight: Flight | None = None

    # -- arrivals and departures -----------------------------------------------------------------------------

    def add(self, new: NewRequest) -> Request:
        """Queue a request, or refuse it (stage `refused`, with its verdict) when it could never be served. One with
        a grammar waits beside the queue until `supply` brings what guides it, or `fail` ends it.

        Raises DuplicateRequest for a live id, InvalidRequest for a prompt or number that means nothing.
        """
        namesake = self.requests.get(new.id)
        if namesake is not None and not namesake.ended:
            raise DuplicateRequest(new.id)
        new.check(self.executor.facts.vocab)
        prompt, longest = len(new.prompt), new.max_tokens or 1
        refusal = never(
            seats=new.n,
            positions=prompt + longest,
            blocks=self.memory.worst_case(prompt, new.n, longest),
            limits=self.limits,
        )
        at = self.clock.now_ns()
        self._arrivals += 1
        sequences = (
            [] if refusal else new_sequences(new, self.executor.facts, self.memory, self.watcher, self.drafters)
        )
        request = new_request(new, sequences, self._arrivals, self._most_tokens(new), self.executor.facts)
        if refusal is not None:
            request.verdict = refusal
            request.move(Stage.REFUSED)
            self.emit(Refused(at=at, id=new.id, reason=refusal.rule, verdict=refusal))
            return request
        self.emit(event := arrived(new, request, at, self.order(request), self._groups))
        request.move(Stage.WAITING)
        request.verdict = event.wait
        self.requests[new.id] = request
        if event.wait is None:
            insort(self.waiting, request, key=self.order)
        else:
            self.awaiting[new.id] = request
        return request

    def supply(self, request_id: str, guides: list[Guide]) -> None:
        """The grammar of a request is compiled: one guide for each of its sequences. It queues at the place that its
        arrival gives it. Raises UnknownRequest when no request with this id awaits a grammar."""
        request = self._awaited(request_id)
        for sequence, guide in zip(request.sequences, guides, strict=True):
            sequence.guide = guide
        request.verdict = None
        insort(self.waiting, request, key=self.order)
        self.emit(Supplied(at=self.clock.now_ns(), id=request_id))

    def fail(self, request_id: str, message: str) -> None:
        """The grammar of a live request cannot be compiled, or leads nowhere: that is its end, and nobody else's.
        Blocks and errors are as for `cancel`."""
        self._end(request_id, Stage.FAILED)
        at = self.clock.now_ns()
        self.emit(Failed(at=at, id=request_id, message=message, reason=GRAMMAR, levels=self.levels()))

    @property
    def limits(self) -> Limits:
        own = self.executor.facts.max_context
        return Limits(min(self.options.max_context, own), own, self.memory.pool.total, self.options.seats)

    def cancel(self, request_id: str, by: str = "caller") -> Request:
        """End a live request now. Its blocks are free at once, or, if the running step names them, when that step
        commits. Raises UnknownRequest when no live request has the id."""
        request = self._end(request_id, Stage.CANCELLED)
        self.emit(Cancelled(at=self.clock.now_ns(), id=request_id, by=by, levels=self.levels()))
        return request

    # -- the step --------------------------------------------------------------------------------------------

    def step(self) -> list[Emission]:
        """Do one step. Returns what was emitted; an empty list also when there was nothing to do."""
        plan = self.plan()
        if plan is None:
            return []
        try:
            result = self.executor.run(plan)
        except Exception as error:  # whatever it is, it is these requests' end and nobody else's
            self.abort(error_words(error))
            return []
        return self.commit(result)

    def plan(self) -> StepPlan | None:
        """Choose what moves in the next step and take the blocks for it. None when nobody could move: no request is
        alive, or all that are await something from outside."""
        if self._flight is not None:
            raise InvariantError("a step is planned while another one is in flight")
        if self.idle:
            return None
        planning = Planning(self, self.steps + 1, self.clock.now_ns())
        planning.decodes()
        planning.chunks()
        planning.admissions()
        if not planning.entries:
            raise StalledError(f"{len(self.waiting)} requests wait, {len(self.running)} hold seats, none can move")
        self.steps += 1
        plan = planning.finish()
        self._flight = Flight(plan, planning.entries)
        return plan

    def commit(self, result: StepResult) -> list[Emission]:
        """Enter the result of the planned step into the books. Returns what was emitted."""
        flight = self._take_flight()
        at = self.clock.now_ns()
        committing = Committing(self.memory)
        spoiled = [flight.entries[place] for place in result.spoiled]
        failed = self._fail([entry.request for entry in spoiled])
        nothing: tuple[tuple[TokenLogprob, ...], ...] = ((),) * len(flight.entries)
        rows = zip(result.tokens, result.logprobs or nothing, result.scores or nothing, strict=True)
        for entry, row in zip(flight.entries, rows, strict=True):
            committing.enter(entry, *row)
        for entry in spoiled:
            self._release(entry.request, keep=False)
        finished = self._close(flight)
        self.emit(
            Committed(
                at=at,
                step=flight.plan.step,
                outcomes=tuple(committing.outcomes),
                forks=tuple(committing.forks),
                levels=self.levels(),
            )
        )
        for pause in committing.pauses:
            self.emit(DraftsPaused(at=at, id=pause[0], index=pause[1], pause=pause[2]))
        for request in failed:
            self.emit(Failed(at=at, id=request.id, message=not_finite(request, spoiled), reason=NOT_FINITE))
        for request in finished:
            self.emit(Finished(at=at, id=request.id, reason=str(request.sequences[0].finish)))
        return committing.emissions

    def abort(self, message: str) -> None:
        """The planned step failed: its requests fail, everyone else is untouched. Blocks that nobody else holds go
        back unindexed, also those that were indexed before: who knows what the failure left in them."""
        flight = self._take_flight()
        at = self.clock.now_ns()
        failed = self._fail(flight.requests())
        for request in flight.requests():
            self._release(request, keep=False)
        self.emit(Committed(at=at, step=flight.plan.step, outcomes=(), forks=(), levels=self.levels()))
        for request in failed:
            self.emit(Failed(at=at, id=request.id, message=message))

    def preempt(self, request: Request) -> tuple[list[Sequence], list[int], int]:
        """Take a running request's blocks and seats and queue it again at its old place.
        Returns its open sequences, the positions that each lost, and the blocks that are available again."""
        pool = self.memory.pool
        before = pool.live
        sequences = request.open_sequences
        for sequence in sequences:
            give_back(sequence)
        lost = [sequence.lose() for sequence in sequences]
        request.preemptions += 1
        request.move(Stage.WAITING)
        self.running.remove(request)
        insort(self.waiting, request, key=self.order)
        return sequences, lost, before - pool.live

    # -- numbers ---------------------------------------------------------------------------------------------

    def _most_tokens(self, new: NewRequest) -> int:
        """What each of its sequences may emit: what it asks for, else what context and pool have room for."""
        prompt = len(new.prompt)
        return new.max_tokens or min(self.limits.context - prompt, self.memory.longest(prompt, new.n))

    @property
    def idle(self) -> bool:
        """Whether no step could move anyone."""
        return not self.waiting and not self.running

    @property
    def seats_used(self) -> int:
        return sum(len(request.open_sequences) for request in self.running)

    def levels(self) -> Levels:
        pool = self.memory.pool
        return Levels(pool.live, pool.reusable, pool.free, self.seats_used, pool.evictions)

    def check(self) -> None:
        """Raise InvariantError unless the identities of space and positions hold. Changes nothing."""
        flying = self._flight.requests() if self._flight else []
        check_identities([*self.requests.values(), *flying], self.memory.pool)
        if self.seats_used > self.options.seats:
            raise InvariantError(f"{self.seats_used} seats are used of {self.options.seats}")

    # -- inside ----------------------------------------------------------------------------------------------

    def _end(self, request_id: str, stage: Stage) -> Request:
        """Take a live request out of where it is. Its blocks go now, or with the running step that names them."""
        request = self.requests.get(request_id)
        if request is None or request.ended:
            raise UnknownRequest(request_id)
        if request_id in self.awaiting:
            del self.awaiting[request_id]
        elif request.stage is Stage.WAITING:
            self._leave_queue(request)
        else:
            self.running.remove(request)
        request.move(stage)
        if not request.in_flight:
            self._release(request)
        return request

    def _awaited(self, request_id: str) -> Request:
        if request_id not in self.awaiting:
            raise UnknownRequest(request_id)
        return self.awaiting.pop(request_id)

    def _take_flight(self) -> Flight:
        flight, self._flight = self._flight, None
        if flight is None:
            raise InvariantError("a result arrived while no step is in flight")
        for entry in flight.entries:
            entry.request.in_flight = False
        return flight

    def _fail(self, requests: list[Request]) -> list[Request]:
        """These requests of a step end here. Returns those that had not ended before."""
        alive = [request for request in dict.fromkeys(requests) if not request.ended]
        for request in alive:
            self.running.remove(request)
            request.move(Stage.FAILED)
        return alive

    def _close(self, flight: Flight) -> list[Request]:
        """Give back the blocks of what ended during or with the step. Returns the requests that finished."""
        finished = []
        for request in flight.requests():
            for sequence in request.sequences:
                if sequence.finish is not None:
                    give_back(sequence)
            if request.ended:
                self._release(request)
            elif not request.open_sequences:
                self.running.remove(request)
                request.move(Stage.FINISHED)
                finished.append(request)
                self._release(request)
        return finished

    def _release(self, request: Request, *, keep: bool = True) -> None:
        for sequence in request.sequences:
            give_back(sequence, keep=keep)
        if self.requests.get(request.id) is request:
            del self.requests[request.id]

    def _leave_queue(self, request: Request) -> None:
        del self.waiting[bisect_left(self.waiting, self.order(request), key=self.order)]
