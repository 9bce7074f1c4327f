"""What happened, as the front knows it: the event log, the ring, the story's records and the metrics, fed with the
same events in one order."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterable
from time import monotonic_ns

from headway.core import events as ev
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.metrics import Metrics
from headway.story.sinks.ring import EventRing
from headway.story.tell.alarms import alarm

#: So many parts of steps may lie unfolded, an event and a member of a step being one each.
_MOST_UNFOLDED = 64


class Chronicle:
    """`tell` takes an event in at once. `tell_soon` is for what steps do to those that run on, most of all events:
    these are logged at once, and folded before anyone looks, or when there are many. By then the processor has what
    folding takes in its caches: for a single event it comes from memory, and takes longer than the token's text.

    `log` is where events are kept, if they are. `story`, `metrics` and `ring` are whole whenever they are asked for:
    whoever waits meanwhile asks again. What cannot be folded then is told to `contradicted`."""

    def __init__(
        self,
        models: Iterable[str],
        log: EventLog | None,
        *,
        on_alarm: Callable[[str], None],
        contradicted: Callable[[Exception], None],
    ) -> None:
        self._story = Story(delivers=True)
        self._ring = EventRing(log.epoch if log else secrets.token_hex(4))
        self._metrics = Metrics(self._story, models)
        self.log = log
        self._on_alarm, self._contradicted = on_alarm, contradicted
        self._lock = threading.RLock()  # whoever looks from another thread may fold, too
        self._unfolded: list[ev.AnyEvent] = []
        self._parts = 0

    @property
    def story(self) -> Story:
        self._settle()
        return self._story

    @property
    def metrics(self) -> Metrics:
        self._settle()
        return self._metrics

    @property
    def ring(self) -> EventRing:
        self._settle()
        return self._ring

    def tell(self, event: ev.AnyEvent) -> None:
        """Take one event in. Raises whatever an event that cannot be makes of the records."""
        with self._lock:
            for each in self._logged((event,)):
                self._settle()
                self._fold(each)
        if (sentence := alarm(event)) is not None:
            self._on_alarm(sentence)

    def tell_soon(self, events: Iterable[ev.Stepped | ev.Committed]) -> None:
        """The same, soon. Call it inside a running event loop, after what callers wait for: they go first."""
        with self._lock:
            for event in self._logged(events):
                self._unfolded.append(event)
                self._parts += 1
                if isinstance(event, ev.Stepped):
                    self._parts += len(event.members)
            much = self._parts >= _MOST_UNFOLDED
        if much:
            self._parts = 0
            asyncio.get_running_loop().call_soon(self._settle)

    def turn_away(self, model: str, reason: str) -> None:
        """Count a request that never got a record. It is told with what happens next, so that a flood adds little."""
        self._metrics.refuse(model, reason)

    def _logged(self, events: Iterable[ev.AnyEvent]) -> Iterable[ev.AnyEvent]:
        """What is to be folded, in its order, and is in the log by now."""
        if counts := self._metrics.turned_away():
            events = (ev.TurnedAway(at=monotonic_ns(), counts=counts), *events)
        if self.log is not None:
            for event in events:
                if not self.log.append(event):
                    self._metrics.lose_logged()
        return events

    def _settle(self) -> None:
        """Fold what is left."""
        with self._lock:
            unfolded, self._unfolded, self._parts = self._unfolded, [], 0
            for event in unfolded:
                try:
                    self._fold(event)
                except Exception as error:  # whatever it is, it comes of a replica that contradicts itself
                    self._contradicted(error)

    def _fold(self, event: ev.AnyEvent) -> None:
        self._metrics.fold(event)
        self._story.fold(event)
        self._ring.append(event)
