"""Work that is lost and done again, second by second, folded from events alone; and what the engine said of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core import events as ev
from headway.core.recovery import Rates

_SECOND_NS = 1_000_000_000
#: Seconds that are kept, and over how many of them means are taken unless told otherwise.
KEPT_SECONDS, USUAL_SECONDS = 600, 10


@dataclass(slots=True)
class Second:
    """One second of one model: sequences preempted, positions by kind, tokens emitted."""

    second: int
    preempted: int = 0
    prefilled: int = 0
    recomputed: int = 0
    emitted: int = 0


class Recovery:
    """The latest seconds of each model in which a step was committed or a request preempted.

    told    by model, all that the engine told of its recovery loops, in order
    """

    def __init__(self) -> None:
        self.told: dict[str, list[ev.Recovery]] = {}
        self._seconds: dict[str, deque[Second]] = {}
        self._model_of: dict[str, str] = {}

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event in."""
        match event:
            case ev.Arrived():
                self._model_of[event.id] = event.model
            case ev.Finished() | ev.Cancelled() | ev.Failed():
                self._model_of.pop(event.id, None)
            case ev.Recovery():
                self.told.setdefault(event.model, []).append(event)
            case ev.Preempted():
                self._at(self._model_of.get(event.id, ""), event.at).preempted += len(event.indexes)
            case ev.Committed():
                second = self._at(event.model, event.at)
                for outcome in event.outcomes:
                    second.prefilled += outcome.prefilled
                    second.recomputed += outcome.recomputed
                    second.emitted += outcome.emitted
                second.emitted += sum(fork.emitted for fork in event.forks)

    def rates(self, model: str, over: int = USUAL_SECONDS) -> Rates:
        """Means over the latest `over` seconds."""
        seconds = self._seconds.get(model, ())
        end = seconds[-1].second if seconds else 0
        return _rates([each for each in seconds if end - over < each.second <= end], over)

    def seconds(self, model: str) -> Sequence[Second]:
        """The latest ones in which something happened, in order."""
        return list(self._seconds.get(model, ()))

    def _at(self, model: str, at: int) -> Second:
        seconds = self._seconds.setdefault(model, deque(maxlen=KEPT_SECONDS))
        second = at // _SECOND_NS
        if not seconds or seconds[-1].second != second:  # an earlier one: the clock went back
            seconds.append(Second(second))
        return seconds[-1]


def _rates(seconds: Sequence[Second], over: int) -> Rates:
    prefilled, recomputed = sum(each.prefilled for each in seconds), sum(each.recomputed for each in seconds)
    return Rates(
        preempted=sum(each.preempted for each in seconds) / over,
        recomputed=recomputed / over,
        prompt=(prefilled + recomputed) / over,
        goodput=sum(each.emitted for each in seconds) / over,
    )
