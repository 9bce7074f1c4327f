"""Work that is lost and done again, second by second, folded from events alone: what shows a recovery loop.

A replica in a recovery loop is busy and gets nowhere: sequences are preempted, their positions are computed again,
and what that takes is missing where answers are emitted, so that more wait, and more are preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core import events as ev

_SECOND_NS = 1_000_000_000
#: Seconds that are kept.
KEPT_SECONDS = 600
#: A stretch of so many seconds is compared with the best one before it.
STRETCH_SECONDS = 10
#: From this share of prompt work on, what is done again is a loop when goodput falls below `FALLEN` of its best.
LOST_SHARE, FALLEN = 0.25, 0.8


@dataclass(slots=True)
class Second:
    """One second of one model: sequences preempted, positions by kind, tokens emitted."""

    second: int
    preempted: int = 0
    prefilled: int = 0
    recomputed: int = 0
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Means per second. `prompt` are positions of prompts and of what was lost; `share` is what of them was done
    again; `goodput` are tokens that callers got."""

    preempted: float
    recomputed: float
    prompt: float
    goodput: float

    @property
    def share(self) -> float:
        return self.recomputed / self.prompt if self.prompt else 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """Evidence of a recovery loop: how it is now, and how it was when goodput was best."""

    now: Rates
    best: Rates


class Recovery:
    """The latest seconds of each model in which a step was committed or a request preempted."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[Second]] = {}
        self._model_of: dict[str, str] = {}

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event in."""
        match event:
            case ev.Arrived():
                self._model_of[event.id] = event.model
            case ev.Finished() | ev.Cancelled() | ev.Failed():
                self._model_of.pop(event.id, None)
            case ev.Preempted():
                self._at(self._model_of.get(event.id, ""), event.at).preempted += len(event.indexes)
            case ev.Committed():
                second = self._at(event.model, event.at)
                for outcome in event.outcomes:
                    second.prefilled += outcome.prefilled
                    second.recomputed += outcome.recomputed
                    second.emitted += outcome.emitted
                second.emitted += sum(fork.emitted for fork in event.forks)

    def rates(self, model: str, over: int = STRETCH_SECONDS) -> Rates:
        """Means over the latest `over` seconds."""
        seconds = self._seconds.get(model, ())
        end = seconds[-1].second if seconds else 0
        return _rates([each for each in seconds if end - over < each.second <= end], over)

    def loop(self, model: str) -> Loop | None:
        """Whether lost work rose while goodput fell: the latest stretch beside the best one before it. Only seconds
        in which something happened count: a server without work is in no loop."""
        seconds = list(self._seconds.get(model, ()))
        ends = range(len(seconds), STRETCH_SECONDS - 1, -STRETCH_SECONDS)
        stretches = [_rates(seconds[end - STRETCH_SECONDS : end], STRETCH_SECONDS) for end in ends]
        if len(stretches) < 2:
            return None
        now, best = stretches[0], max(stretches[1:], key=lambda rates: rates.goodput)
        lost = now.preempted > 0 and now.share >= LOST_SHARE and now.share > best.share
        return Loop(now, best) if lost and now.goodput < FALLEN * best.goodput else None

    def models(self) -> Sequence[str]:
        return list(self._seconds)

    def _at(self, model: str, at: int) -> Second:
        seconds = self._seconds.setdefault(model, deque(maxlen=KEPT_SECONDS))
        second = at // _SECOND_NS
        if not seconds or seconds[-1].second < second:
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
