"""What each step planned and what came of it, folded from its two events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core import events as ev

#: What a step may be spent on: how positions of a text may end, in the words of `positions_total{kind}`, and the
#: items of other patterns, in their own unit.
KINDS = ("prefilled", "decoded", "recomputed", "rejected", "evaluated")
_KIND_OF_DOING = {"prefill": "prefilled", "decode": "decoded", "recompute": "recomputed"}
#: What is evaluated once, and not a sequence's: an encoder's positions, or what another model's budget counts.
_OTHER = "evaluated"


@dataclass(slots=True)
class StepRecord:
    """One step of one model. Times are nanoseconds of the monotonic clock.

    ended_at   when its result was in the books, or when it was known that none comes; None while it runs
    outcomes   what its spans came to; empty while it runs, and for a step that failed
    moves      the same of parts whose progress is counted in items
    emitted    tokens, those of siblings that forked included
    """

    step: int
    began_at: int
    budget: int
    members: tuple[ev.Member, ...]
    waiting: int
    head: str | None
    model: str = ""
    ended_at: int | None = None
    outcomes: tuple[ev.Outcome, ...] = ()
    moves: tuple[ev.Moved, ...] = ()
    emitted: int = 0

    @property
    def failed(self) -> bool:
        """Whether it ended without a result: its requests failed, or the replica ended."""
        return self.ended_at is not None and bool(self.members) and not self.outcomes and not self.moves

    @property
    def spent(self) -> int:
        """What it takes of its budget: positions that it evaluates, drafts included, or what other items cost."""
        return sum(member.positions for member in self.members)

    def positions(self) -> dict[str, int]:
        """What it was spent on; the kinds sum to `spent`. Exact once the result is in; until then, and for a step
        that failed, as planned, where a span that recomputes any position counts as recomputed."""
        if self.outcomes:
            counted = {kind: sum(getattr(outcome, kind) for outcome in self.outcomes) for kind in KINDS[:-1]}
            return {**counted, _OTHER: 0}
        planned = Counter[str]()
        for member in self.members:
            planned[_KIND_OF_DOING.get(member.doing, _OTHER)] += member.positions
        return {kind: planned[kind] for kind in KINDS}

    def batch(self) -> dict[str, dict[str, int]]:
        """For each request of the step: positions by what it did, all its sequences together."""
        batch: dict[str, dict[str, int]] = {}
        for member in self.members:
            own = batch.setdefault(member.id, {})
            own[member.doing] = own.get(member.doing, 0) + member.positions
        return batch


class Steps:
    """The last `kept` steps (all without it), the newest last."""

    def __init__(self, kept: int | None = None) -> None:
        self._records: deque[StepRecord] = deque(maxlen=kept)

    @property
    def records(self) -> Sequence[StepRecord]:
        return self._records

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event in; those that are not of a step change nothing. A commit without a step in flight is how a
        front tells that the replica ended."""
        newest = self._records[-1] if self._records else None
        running = newest if newest is not None and newest.ended_at is None else None
        match event:
            case ev.Stepped():
                if running is not None:
                    running.ended_at = event.at
                self._records.append(
                    StepRecord(
                        event.step, event.at, event.budget, event.members, event.waiting, event.head, event.model
                    )
                )
            case ev.Committed() if running is not None:
                running.ended_at, running.outcomes, running.moves = event.at, event.outcomes, event.moves
                running.emitted = sum(o.emitted for o in event.outcomes) + sum(f.emitted for f in event.forks)
