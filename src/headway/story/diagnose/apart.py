"""What was seen of each served model. A pool, a budget and a queue are one model's, so causes are looked for in each
apart; that they share the device's time is a cause of its own (`findings/turns.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.core import events as ev
from headway.story.diagnose.observations import Machine, Observations
from headway.story.reduce.reducer import Story


class Apart:
    """Folds events in order, each into the observations of the model that it is about; `since_ns` as there."""

    def __init__(
        self, loaded: Iterable[ev.Loaded] = (), machine: Machine | None = None, since_ns: int | None = None
    ) -> None:
        self._machine, self._since_ns = machine, since_ns
        self._story = Story(remembered=1 << 20, delivers=True)
        self._seen: dict[str, Observations] = {}
        self._models: dict[str, str] = {}  # by request
        for each in loaded:
            self._of(each.model).loaded = each

    @property
    def models(self) -> Sequence[Observations]:
        """At least one, in the order in which events named them."""
        return list(self._seen.values()) or [self._of("")]

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event in."""
        own = self._of(self._named(event))
        own.note(event)
        self._story.fold(event)
        own.settle(event)
        if isinstance(event, ev.Stepped | ev.Committed):
            for other in self._seen.values():
                if other is not own:
                    other.pass_turn(own.model, event)

    def fold_all(self, events: Iterable[ev.AnyEvent]) -> Apart:
        for event in events:
            self.fold(event)
        return self

    def _named(self, event: ev.AnyEvent) -> str:
        """The model that it is about: as it says, else its request's, else the first."""
        first = next(iter(self._seen), "")
        match event:
            case ev.Received() | ev.Arrived() | ev.Refused():
                self._models[event.id] = event.model or self._models.get(event.id, first)
                return self._models[event.id]
            case ev.Loaded() | ev.Stepped() | ev.Committed() | ev.Recovery() | ev.NoProgress() | ev.Offloaded():
                return event.model or first
            case ev.TurnedAway():
                return first
        return self._models.get(event.id, first)

    def _of(self, model: str) -> Observations:
        if model not in self._seen:
            self._seen[model] = Observations(model=model, machine=self._machine, story=self._story)
            if self._since_ns is not None:
                self._seen[model].since_ns = self._since_ns
        return self._seen[model]
