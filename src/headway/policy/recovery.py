"""When lost work is a recovery loop, and for how long admission is cut because of it.

A replica in a recovery loop is busy and gets nowhere: sequences are preempted, their positions are computed again,
and what that takes is missing where answers are emitted, so that more wait, and more are preempted. While admission
is cut it goes by `reserve` (`policy/admit.py`): nobody is admitted, or resumed, who could preempt later. Those who
run already may still preempt each other until they end.

Time is cut into windows of `WINDOW_SECONDS` seconds in which something was computed; a server without work is in no
loop. `judge` decides at the end of each, from counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.core.recovery import NO_DEMAND, NO_RATES, Demand, Phase, Rates

WINDOW_SECONDS = 10
#: From this share of prompt work on, what is done again is a loop when goodput falls below `FALLEN` of its best.
LOST_SHARE, FALLEN = 0.25, 0.8
#: Where no window that is remembered lost less, goodput has nothing to fall from. Then it is a loop from so many
#: windows on, each with preemptions and at least this share of prompt work done again: more than `headroom` loses
#: where it serves best (36%, docs/space.md).
START_WINDOWS, START_SHARE = 3, 0.4
#: Windows over which the best one is remembered, and without a loop after which a cut is as short as the first.
REMEMBERED = 60
#: A cut is lifted after so many windows without a preemption; after twice as many each time that a loop comes back.
CLEAN, MOST_CLEAN = 2, 32

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class State:
    """What is known after a window.

    past      the latest windows outside of loops, the newest last
    best      of those before the loop that lasts, the one with the most goodput; none where it lasts since the start
    looping   lost work rose while goodput fell, or was as much since the start, and that is not over
    cut       admission goes by `reserve`
    clean     windows in a row, up to the newest, without a preemption
    needed    that lift the cut
    """

    past: tuple[Rates, ...] = ()
    best: Rates = NO_RATES
    looping: bool = False
    cut: bool = False
    clean: int = 0
    needed: int = CLEAN
    since_lifted: int = REMEMBERED

    @property
    def told(self) -> bool:
        """Whether there is anything to say of it."""
        return self.looping or self.cut


def is_loop(now: Rates, best: Rates) -> bool:
    """Whether lost work rose while goodput fell."""
    return loses(now, LOST_SHARE) and now.share > best.share and now.goodput < FALLEN * best.goodput


def is_loop_since_start(past: Sequence[Rates], now: Rates) -> bool:
    """Whether so much was lost in all windows that are known that none of them tells what goodput could be."""
    windows = (*past, now)
    return len(windows) >= START_WINDOWS and all(loses(each, START_SHARE) for each in windows)


def loses(rates: Rates, share: float) -> bool:
    """Whether sequences are preempted and that share of prompt work or more is done again."""
    return rates.preempted > 0 and rates.share >= share


def judge(state: State, now: Rates, *, auto: bool) -> State:
    """The state after one more window, which went as `now` says. With `auto` a loop cuts admission."""
    best, looping = _compared(state, now)
    clean = 0 if now.preempted else state.clean + 1
    since = state.since_lifted + 1
    past = state.past if looping else (*state.past, now)[-REMEMBERED:]
    after = replace(state, past=past, best=best, looping=looping, clean=clean, since_lifted=since)
    if state.cut:
        lifted = not looping and clean >= state.needed
        return replace(after, cut=False, since_lifted=0) if lifted else after
    if looping and auto:
        needed = min(2 * state.needed, MOST_CLEAN) if since <= REMEMBERED else CLEAN
        return replace(after, cut=True, needed=needed)
    return after


def _compared(state: State, now: Rates) -> tuple[Rates, bool]:
    """The best window before the loop, if there is one, and whether `now` is in a loop. One that has lasted since the
    start is over once less is lost, or while admission is cut: the windows of the cut tell what goodput could be, and
    later loops are judged by them."""
    best = state.best if state.told else max(state.past, key=_goodput, default=NO_RATES)
    if state.told and not best.goodput:
        return best, loses(now, LOST_SHARE)
    if is_loop(now, best):
        return best, True
    since_start = not state.told and is_loop_since_start(state.past, now)
    return (NO_RATES, True) if since_start else (best, False)


def _goodput(rates: Rates) -> float:
    return rates.goodput


@dataclass(frozen=True, slots=True)
class News:
    """What a window brought: see the event `Recovery`."""

    phase: Phase
    cut: bool
    now: Rates
    best: Rates
    offered: Demand
    rejected: Demand
    clean: int
    needed: int


@dataclass(slots=True)
class _Counts:
    """Of one window: sequences, positions, tokens, and seconds in which something was computed."""

    seconds: int = 0
    preempted: int = 0
    prefilled: int = 0
    recomputed: int = 0
    emitted: int = 0

    def rates(self) -> Rates:
        over = max(1, self.seconds)
        return Rates(
            preempted=self.preempted / over,
            recomputed=self.recomputed / over,
            prompt=(self.prefilled + self.recomputed) / over,
            goodput=self.emitted / over,
        )


class Watch:
    """Counts what one model loses and does again, and what comes and is admitted; judges each window at its end. It
    costs a step the same however many wait."""

    def __init__(self, *, auto: bool) -> None:
        self.state = State()
        self._auto = auto
        self._counts = _Counts()
        self._second = -1
        self._cut_seconds = 0
        # since admission is cut: (requests, positions) that came, what of these was admitted, and requests that
        # found no place in the queue; (requests, positions) that came at any time
        self._come, self._let_in, self._away = (0, 0), (0, 0), 0
        self._ever = (0, 0)

    @property
    def cut(self) -> bool:
        return self.state.cut

    def arrived(self, positions: int) -> None:
        """A request queued whose prompt has so many positions."""
        self._come = self._come[0] + 1, self._come[1] + positions
        self._ever = self._ever[0] + 1, self._ever[1] + positions

    def turned_away(self, requests: int) -> None:
        """So many requests found no place in the queue. Nobody read their prompts, so these are taken to be as long
        as those that came; whoever tries again is counted again."""
        self._away += requests

    def admitted(self, positions: int) -> None:
        """Such a request was admitted for the first time."""
        self._let_in = self._let_in[0] + 1, self._let_in[1] + positions

    def preempted(self, sequences: int) -> None:
        self._counts.preempted += sequences

    def worked(self, at: int, *, prefilled: int, recomputed: int, emitted: int) -> News | None:
        """A step came back at `at` (ns). News when a window ended with it and there is anything to say."""
        news = None
        if at // _SECOND_NS != self._second:
            self._second = at // _SECOND_NS
            if self._counts.seconds >= WINDOW_SECONDS:
                news = self._end_window()
            self._counts.seconds += 1
        self._counts.prefilled += prefilled
        self._counts.recomputed += recomputed
        self._counts.emitted += emitted
        return news

    def _end_window(self) -> News | None:
        before, now = self.state, self._counts.rates()
        self.state = judge(before, now, auto=self._auto)
        self._cut_seconds += self._counts.seconds
        self._counts = _Counts()
        offered, rejected = self._demand() if before.cut else (NO_DEMAND, NO_DEMAND)
        if self.state.cut and not before.cut:
            self._cut_seconds, self._come, self._let_in, self._away = 0, (0, 0), (0, 0), 0
        if not (before.told or self.state.told):
            return None
        phase: Phase = "over" if not self.state.told else "lasts" if before.told else "began"
        after = self.state
        return News(phase, after.cut, now, after.best, offered, rejected, after.clean, after.needed)

    def _demand(self) -> tuple[Demand, Demand]:
        """What came since admission is cut, and what of it was not admitted."""
        over = max(1, self._cut_seconds)
        requests, positions = self._come if self._come[0] else self._ever
        come = self._come[0] + self._away, self._come[1] + self._away * positions / max(1, requests)
        left = (max(0, came - let_in) for came, let_in in zip(come, self._let_in, strict=True))
        return Demand(*(came / over for came in come)), Demand(*(each / over for each in left))
