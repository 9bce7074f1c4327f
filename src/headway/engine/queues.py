"""Where each live request of one model is, and every move between these places. Nothing else moves a request.

waiting    in the queue, sorted by the policy's order
awaiting   beside the queue: something outside the step is awaited (a grammar)
reloading  holding space, and no seat: blocks are brought back from tiers; `returned` once that is over
running    holding seats
ended      over, and named by a step that runs: its space is given back when that step comes back
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

from headway.core.errors import DuplicateRequest, UnknownRequest
from headway.core.request import AnyEmission, Request, Stage
from headway.core.verdict import Input, Wait
from headway.engine.line import CostedLine, FairLine, Line, SortedLine
from headway.policy.fair import OUTPUT_WEIGHT, Counters
from headway.policy.order import Order


class Queues:
    """The live requests of one model. An id may come back while its cancelled namesake still runs its last step, so
    inside requests are known by their arrival."""

    def __init__(self, order: Order, *, fair: bool = False, costed: bool = False) -> None:
        """`order` is that of who runs: the last in it is preempted first. It is that of who waits too, unless the
        shares are to be `fair` among callers. Where it is `costed`, what waits ahead of a newcomer can be asked."""
        self.order = order
        self._counters = Counters() if fair else None
        line = CostedLine if costed else SortedLine
        self.waiting: Line = line(order) if self._counters is None else FairLine(self._counters)
        self.running: list[Request] = []
        self.awaiting: dict[int, Request] = {}
        self.reloading: list[Request] = []
        self.returned: list[Request] = []
        self.seats_used = 0
        self._live: dict[int, Request] = {}
        self._by_id: dict[str, Request] = {}

    def __iter__(self) -> Iterator[Request]:
        """All of them, those that ended in a step which still runs included."""
        return iter(self._live.values())

    def __len__(self) -> int:
        return len(self._live)

    @property
    def idle(self) -> bool:
        """Whether no step could move anyone."""
        return not len(self.waiting) and not self.running and not self.returned

    @property
    def holding(self) -> list[Request]:
        """Those that hold space without a seat."""
        return self.reloading + self.returned

    def find(self, request_id: str) -> Request | None:
        """The request of that id that has not ended, or None."""
        found = self._by_id.get(request_id)
        return None if found is None or found.ended else found

    def refuse_duplicate(self, request_id: str) -> None:
        """Raises DuplicateRequest for an id that is alive."""
        if self.find(request_id) is not None:
            raise DuplicateRequest(request_id)

    def cost_ahead(self, request: Request) -> int:
        """What those who wait ahead of a newcomer cost, all together."""
        assert isinstance(self.waiting, CostedLine)
        return self.waiting.cost_before(self.order(request))

    # -- moves -----------------------------------------------------------------------------------------------

    def join(self, request: Request) -> None:
        """It arrived: into the queue, or beside it while it awaits something."""
        self._live[request.arrival] = self._by_id[request.id] = request
        if self._counters is not None:
            self._counters.come(request.caller)
        request.move(Stage.WAITING)
        if request.awaits:
            request.verdict = next(iter(request.awaits.values()))
            self.awaiting[request.arrival] = request
        else:
            self.waiting.add(request)

    def supplied(self, request_id: str, what: Input) -> Request:
        """Something that a request awaited is there; with the last of it, it queues at the place that its arrival
        gives it. Raises UnknownRequest when no live request of that id awaits it."""
        request = self.find(request_id)
        if request is None or what not in request.awaits:
            raise UnknownRequest(request_id)
        del request.awaits[what]
        request.verdict = next(iter(request.awaits.values()), None)
        if not request.awaits:
            del self.awaiting[request.arrival]
            self.waiting.add(request)
        return request

    def admit(self, request: Request, cost: int) -> None:
        """From the queue to its seats, or from a reload, with `cost` to be spent for it at first."""
        if request in self.returned:
            self.returned.remove(request)
        else:
            self.waiting.remove(request)
        if not request.preemptions:
            self.charge(request, cost)
        request.move(Stage.RUNNING)
        request.overtaken = 0
        self.running.append(request)
        self.seats_used += request.seats

    def reload(self, request: Request, wait: Wait) -> None:
        """From the queue, with its space: it awaits blocks from tiers."""
        self.waiting.remove(request)
        request.verdict, request.overtaken = wait, 0
        self.reloading.append(request)

    def reloaded(self, request: Request) -> None:
        """They are there: it needs a seat."""
        self.reloading.remove(request)
        request.verdict = None
        insort(self.returned, request, key=self.order)

    def drop(self, request: Request) -> None:
        """It held space without a seat, and lost it: back to its old place in the queue."""
        self._unhold(request)
        request.verdict = None
        self.waiting.add(request)

    def preempt(self, request: Request) -> None:
        """From its seats back to its old place in the queue."""
        self._leave_seats(request)
        request.preemptions += 1
        request.move(Stage.WAITING)
        self.waiting.add(request)

    def served(self, emissions: Iterable[AnyEmission]) -> None:
        """Tokens that went to callers."""
        for emission in emissions if self._counters is not None else ():
            request = self.find(emission.id)
            if request is not None and emission.output_tokens:
                self.charge(request, OUTPUT_WEIGHT * emission.output_tokens)

    def charge(self, request: Request, tokens: int) -> None:
        """Virtual tokens were served for its caller."""
        if isinstance(self.waiting, FairLine):
            self.waiting.charge(request.caller, tokens)

    def reseat(self, request: Request, seats: int) -> None:
        """A running request needs `seats` seats from now on."""
        self.seats_used += seats - request.seats
        request.seats = seats

    def end(self, request: Request, stage: Stage) -> None:
        """Out of where it is. It stays among the live ones until `forget`."""
        if request.arrival in self.awaiting:
            del self.awaiting[request.arrival]
        elif request in self.holding:
            self._unhold(request)
        elif request.stage is Stage.WAITING:
            self.waiting.remove(request)
        else:
            self._leave_seats(request)
        request.move(stage)
        if self._counters is not None:
            self._counters.leave(request.caller)

    def forget(self, request: Request) -> None:
        """Its space is given back; nothing is left of it. A second call does nothing."""
        self._live.pop(request.arrival, None)
        if self._by_id.get(request.id) is request:
            del self._by_id[request.id]

    def _unhold(self, request: Request) -> None:
        (self.reloading if request in self.reloading else self.returned).remove(request)

    def _leave_seats(self, request: Request) -> None:
        self.running.remove(request)
        self.seats_used -= request.seats
