"""Where each live request of one model is, and every move between these places. Nothing else moves a request.

waiting    in the queue, sorted by the policy's order
awaiting   beside the queue: something outside the step is awaited (a grammar, a reload)
running    holding seats
ended      over, and named by a step that runs: its space is given back when that step comes back
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from headway.core.errors import DuplicateRequest, UnknownRequest
from headway.core.request import Request, Stage
from headway.core.verdict import Input
from headway.policy.order import Order


class Queues:
    """The live requests of one model. An id may come back while its cancelled namesake still runs its last step, so
    inside requests are known by their arrival."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.awaiting: dict[int, Request] = {}
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
        return not self.waiting and not self.running

    def find(self, request_id: str) -> Request | None:
        """The request of that id that has not ended, or None."""
        found = self._by_id.get(request_id)
        return None if found is None or found.ended else found

    def refuse_duplicate(self, request_id: str) -> None:
        """Raises DuplicateRequest for an id that is alive."""
        if self.find(request_id) is not None:
            raise DuplicateRequest(request_id)

    # -- moves -----------------------------------------------------------------------------------------------

    def join(self, request: Request) -> None:
        """It arrived: into the queue, or beside it while it awaits something."""
        self._live[request.arrival] = self._by_id[request.id] = request
        request.move(Stage.WAITING)
        if request.awaits:
            request.verdict = next(iter(request.awaits.values()))
            self.awaiting[request.arrival] = request
        else:
            insort(self.waiting, request, key=self.order)

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
            insort(self.waiting, request, key=self.order)
        return request

    def admit(self, request: Request) -> None:
        """From the queue to its seats."""
        self._leave_queue(request)
        request.move(Stage.RUNNING)
        request.overtaken = 0
        self.running.append(request)
        self.seats_used += request.seats

    def preempt(self, request: Request) -> None:
        """From its seats back to its old place in the queue."""
        self._leave_seats(request)
        request.preemptions += 1
        request.move(Stage.WAITING)
        insort(self.waiting, request, key=self.order)

    def reseat(self, request: Request, seats: int) -> None:
        """A running request needs `seats` seats from now on."""
        self.seats_used += seats - request.seats
        request.seats = seats

    def end(self, request: Request, stage: Stage) -> None:
        """Out of where it is. It stays among the live ones until `forget`."""
        if request.arrival in self.awaiting:
            del self.awaiting[request.arrival]
        elif request.stage is Stage.WAITING:
            self._leave_queue(request)
        else:
            self._leave_seats(request)
        request.move(stage)

    def forget(self, request: Request) -> None:
        """Its space is given back; nothing is left of it. A second call does nothing."""
        self._live.pop(request.arrival, None)
        if self._by_id.get(request.id) is request:
            del self._by_id[request.id]

    def _leave_queue(self, request: Request) -> None:
        del self.waiting[bisect_left(self.waiting, self.order(request), key=self.order)]

    def _leave_seats(self, request: Request) -> None:
        self.running.remove(request)
        self.seats_used -= request.seats
