"""How one step of one model is put together: whole items of the running requests (decode positions), divisible ones
(chunked prefill), requests whose blocks were reloaded, admissions, in that order, and last those of the running who
stood back for the admitted.

The decisions are the policy's; space is taken here, at once and for good, so a plan never has to be undone. A
`Planner` lives for one call of `Engine.plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headway.core.events import AnyEvent, Bound, Grown, Preempted, ReloadDropped, Stepped
from headway.core.plan import StepPlan
from headway.core.request import Request, Stage
from headway.core.verdict import Go, Holder, Wait
from headway.engine.pattern import NO_EXTRA, Entry, Extra, Quote, Work
from headway.engine.served import ServedModel
from headway.policy import admit, preempt
from headway.policy.admit import Admission, Kept
from headway.policy.budget import beside, granted
from headway.policy.copies import CopyBudget
from headway.policy.waiting import Room, judge, look_further, no_budget

_NAMED_HOLDERS = 5


class Planner:
    """One step in the making; `left` is what it may still spend of its `budget`, in the unit of the model's pattern,
    and `copies` its budget for copies between pool and tiers.
    `kept` names the model for whose pace that budget was cut; `head` is the first request in order that waits.
    `divided`: an item is in it, all of it or in part, that could be divided."""

    def __init__(
        self,
        model: ServedModel,
        step: int,
        at: int,
        emit: Callable[[AnyEvent], None],
        budget: int,
        copies: CopyBudget,
        kept: str = "",
    ) -> None:
        self.entries: list[Entry] = []
        self.waits: dict[str, Wait] = {}
        self.left = budget
        self.divided = False
        self._budget, self._kept = budget, kept
        self._bound: Bound | None = None
        self._model = model
        self._pattern = model.pattern
        self._queues = model.queues
        self._step = step
        self._at = at
        self._emit = emit
        self.head: str | None = None
        self._grown: list[Grown] = []
        self._moving: set[int] = set()
        self._behind: list[Request] = []
        self._holders: tuple[tuple[Holder, ...], int] | None = None
        self._admission: Admission | None = None
        self._pattern.open(step, at, copies)
        self._promises = model.promises
        if self._promises is not None:
            self._promises.open(at, continued=model.stopped_at is not None)

    # -- the passes ------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """All passes, in their order."""
        self.running()
        self.returned()
        self.admissions()
        self.rest()

    def running(self) -> None:
        """What holds seats moves first, in order: its whole items, each with the space that it lacks, then what they
        may do beyond that, then what divisible ones get of the rest.

        Growing may preempt others, always the last in order, so nobody who was already planned.
        """
        whole: list[tuple[Request, Work]] = []
        divisible: list[tuple[Request, Work]] = []
        for request in sorted(self._queues.running, key=self._queues.order):
            if request.stage is not Stage.RUNNING:
                continue  # preempted a moment ago
            if self._stands_back(request):
                self._behind.append(request)
                continue
            if self._pauses(request):
                continue
            undivided: list[Work] = []
            for work in self._pattern.works(request):
                if work.whole:
                    undivided.append(work)
                else:
                    divisible.append((request, work))
            if undivided:
                whole += self._whole(request, undivided)
        for request, work in whole:
            extra = self._pattern.extra(request, work, self.left)
            self._grow(request, work, extra.lacking)
            self.left -= extra.cost
            self._put(request, work, work.cost, extra)
        if whole and (divisible or len(self._queues.waiting)):
            self._keep_gap()
        for request, work in divisible:
            if request.stage is Stage.RUNNING:
                self._divide(request, work)

    def returned(self) -> None:
        """Whoever holds its space already, its blocks being reloaded, needs a seat; it was judged when it took the
        space, so it goes before the queue. Of those who still await blocks the verdict says how many."""
        for request in list(self._queues.returned):
            quote = self._pattern.quote(request, self._room.seats)
            verdict = request.verdict = judge(quote.ask, self._room, self._name_holders)
            if isinstance(verdict, Go):
                self._admit(request, quote, verdict.positions)
            else:
                self.waits[request.id] = verdict
        for request in self._queues.reloading:
            wait = self._pattern.reloading(request)
            if wait is not None:
                request.verdict = self.waits[request.id] = wait

    def admissions(self) -> None:
        """Judge the head of the queue, and behind a blocked head as far as `look_further` allows."""
        head: Request | None = None
        behind = paused = 0
        room = self._room  # it changes only where somebody gets something
        for request in self._queues.waiting.upcoming():
            if head is not None and not request.promised:
                if not look_further(behind, head.overtaken, self._model.options.max_bypass):
                    break
                behind += 1
            quote = self._pattern.quote(request, room.seats)
            reloads = self._pattern.reloads(quote)
            given = self._to_reload(room) if reloads else room
            verdict = judge(quote.ask, given, self._name_holders, partial(self._keep, request, quote))
            request.verdict = verdict
            if isinstance(verdict, Go):
                if self._pauses(request):
                    paused += not request.promised
                    if paused > self._model.options.max_bypass:
                        break
                    continue
                if reloads:
                    self._reload(request, quote)
                else:
                    self._admit(request, quote, verdict.positions)
                room = self._room
                if head is not None and not request.promised:
                    head.overtaken += 1
                continue
            self.waits[request.id] = verdict
            head = head or request
            if verdict.rule == "budget":
                break  # nobody behind may have what is left: it would never be enough for this one
        if head is not None:
            self._queues.waiting.block(head)
        self.head = head.id if head else None

    def rest(self) -> None:
        """Whoever stood back for those who wait gets what they left."""
        for request in self._behind:
            for _, work in self._whole(request, self._pattern.works(request)):
                self._put(request, work, work.cost)

    def finish(self) -> StepPlan:
        """The plan; tells the story of how it came about."""
        plan = self._pattern.plan(self._step, self.entries)
        self._model.moved = frozenset(self._moving)
        self._emit(
            Stepped(
                at=self._at,
                step=self._step,
                model=self._model.name,
                budget=self._budget,
                members=tuple(entry.member for entry in self.entries),
                grown=tuple(self._grown),
                waits=self.waits,
                head=self.head,
                waiting=len(self._queues.waiting) + len(self._queues.returned),
                levels=self._model.levels(),
                oversized=plan.cost > self._budget,
                kept=self._kept,
                bound=self._bound,
                forecasts=() if self._promises is None else self._promises.close(self._moving),
            )
        )
        return plan

    # -- the running -----------------------------------------------------------------------------------------

    def _stands_back(self, request: Request) -> bool:
        """It moved in its model's last step, and others wait. So a document of many windows has every other step to
        itself at most, and those who wait the ones between; what they leave it has too."""
        return self._pattern.yields and len(self._queues.waiting) > 0 and request.arrival in self._model.moved

    def _pauses(self, request: Request) -> bool:
        """Whether it would make another one late that was promised a deadline."""
        wait = None if self._promises is None else self._promises.hold(request)
        if wait is not None:
            request.verdict = self.waits[request.id] = wait
        return wait is not None

    def _whole(self, request: Request, works: list[Work]) -> list[tuple[Request, Work]]:
        """Claim what a request's whole items spend, and the space that they lack, for as many of them as the step
        has a place for."""
        claimed: list[tuple[Request, Work]] = []
        left, lacking = self.left, 0
        for work in works:
            if not granted(work.cost, left, whole=True, untouched=not (self._moving or claimed)):
                if not claimed:
                    self._stall(request, work.cost)
                break
            claimed.append((request, work))
            left -= work.cost
            lacking += work.lacking
        if not claimed or (lacking and not self._make_space(request, lacking)):
            return []
        self.left = max(0, left)
        self._moving.add(request.arrival)
        for _, work in claimed if lacking else ():
            self._grow(request, work, work.lacking)
        return claimed

    def _keep_gap(self) -> None:
        """Whole items of the running are in the step, and their callers wait for it: what may come beside them is
        what keeps the gap between their tokens."""
        gap_ms = self._model.options.gap_ms
        if gap_ms is None or not self._pattern.paced:
            return
        spent, pace = self._budget - self.left, self._model.pace(self._at)
        room = beside(spent, pace, gap_ms)
        if room < self.left:
            self.left, self._budget = room, spent + room
            self._bound = Bound(gap_ms, pace.fixed_ns / 1e6, pace.unit_ns / 1e6)

    def _divide(self, request: Request, work: Work) -> None:
        cost = granted(work.cost, self.left, whole=False)
        if cost:
            self.left -= cost
            self._put(request, work, cost)
        elif request.arrival not in self._moving:
            self._stall(request, 1)

    def _stall(self, request: Request, need: int) -> None:
        request.verdict = self.waits[request.id] = no_budget(need, self._room)

    def _grow(self, request: Request, work: Work, lacking: int) -> None:
        if lacking > 0:
            taken = self._pattern.grow(work.part, lacking)
            self._grown.append(Grown(request.id, self._pattern.index(work.part), taken))

    # -- space -----------------------------------------------------------------------------------------------

    def _make_space(self, request: Request, needed: int) -> bool:
        """Preempt the last in order until `needed` is available. False when that was `request` itself. One that holds
        space without a seat loses it alike."""
        space = self._pattern.space
        while needed > space.free + space.reusable:
            victim = preempt.victim([*self._queues.running, *self._queues.holding], self._queues.order)
            if victim.stage is not Stage.RUNNING:
                self._drop(victim, by=request)
                continue
            self._preempt(victim, by=request, taken=0 if victim is request else needed)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request, by: Request, taken: int) -> None:
        """`taken` is the space that `by` takes at once."""
        lost = self._pattern.lose(victim)
        price = self._pattern.price(victim, lost, taken)
        self._queues.preempt(victim)
        self._model.recovery.preempted(len(lost.indexes))
        self._emit(
            Preempted(
                at=self._at,
                step=self._step,
                id=victim.id,
                by=by.id,
                lost=lost.units,
                indexes=lost.indexes,
                blocks=lost.space,
                price=price,
                reusable=self._model.newly_reusable(),
            )
        )

    def _drop(self, victim: Request, by: Request) -> None:
        lost = self._pattern.lose(victim)
        self._queues.drop(victim)
        self._model.repeats.forget(victim.id)
        self._emit(
            ReloadDropped(
                at=self._at,
                step=self._step,
                id=victim.id,
                by=by.id,
                blocks=lost.space,
                reusable=self._model.newly_reusable(),
            )
        )

    # -- the queue -------------------------------------------------------------------------------------------

    def _admit(self, request: Request, quote: Quote, grant: int) -> None:
        """Give the request its seats and its space, and its parts what the step has for them; the first has
        `grant`."""
        admitted = self._pattern.admit(request, quote, self._at, self._step)
        self._queues.admit(request, quote.ask.cost)
        if not request.preemptions:
            self._model.recovery.admitted(request.positions)
        self._holders = self._admission = None
        self._emit(admitted)
        first, *others = self._pattern.works(request)
        self.left = max(0, self.left - grant)
        self._put(request, first, grant)
        for work in others:
            cost = granted(work.cost, self.left, whole=work.whole)
            if not cost:
                break
            self.left -= cost
            self._put(request, work, cost)

    def _reload(self, request: Request, quote: Quote) -> None:
        """Give the request its space, and have its blocks brought back before it gets its seats."""
        started = self._pattern.reload(request, quote, self._at, self._step)
        self._queues.reload(request, started.wait)
        self.waits[request.id] = started.wait
        self._holders = self._admission = None
        self._emit(started)

    def _keep(self, request: Request, quote: Quote) -> Kept:
        """What must be left when `request` is admitted; those who run are looked at once for all who ask."""
        rule = admit.CUT if self._model.recovery.cut else self._model.options.admit
        asks = [] if rule == "optimistic" else self._pattern.outlook(request, quote)
        if not asks:
            return admit.NOTHING_KEPT
        if self._admission is None:
            self._admission = self._judge_by(rule)
        return self._admission(asks)

    def _judge_by(self, rule: str) -> Admission:
        """What `rule` says while those run who run now."""
        if rule == "headroom":
            return admit.headroom(self._queues.seats_used + sum(other.seats for other in self._queues.holding))
        holders = [*self._queues.running, *self._queues.holding]
        outlooks = [each for other in holders for each in self._pattern.outlook(other)]
        return admit.predict(outlooks, self._model.answers) if rule == "predict" else admit.reserve(outlooks, by=rule)

    @property
    def _room(self) -> Room:
        by = f"--gap-ms {self._bound.gap_ms:g}" if self._bound else ""
        return self._model.room(self.left, untouched=not self._moving, by=by)

    def _to_reload(self, room: Room) -> Room:
        """Of it, for one that will hold space before it has a seat: there are as many of these as there are seats, at
        most, so that they do not take all the space, and looking after them does not take all the time."""
        awaited = sum(other.seats for other in self._queues.holding)
        return replace(room, seats=min(room.seats, self._model.options.seats - awaited))

    def _name_holders(self) -> tuple[tuple[Holder, ...], int]:
        """Who would free how much by leaving, the largest first."""
        if self._holders is None:
            holders = [*self._queues.running, *self._queues.holding]
            rows = [Holder(request.id, *self._pattern.holding(request)) for request in holders]
            rows.sort(key=lambda row: -row.blocks)
            self._holders = tuple(rows[:_NAMED_HOLDERS]), max(0, len(rows) - _NAMED_HOLDERS)
        return self._holders

    # -- spending --------------------------------------------------------------------------------------------

    def _put(self, request: Request, work: Work, cost: int, extra: Extra = NO_EXTRA) -> None:
        """An item of the request is in the step. What it spends was subtracted before."""
        entry = self._pattern.entry(request, work, cost, extra)
        self.entries.append(entry)
        self._moving.add(request.arrival)
        self.divided |= not work.whole
        request.verdict = Go(cost)
