"""The reducer: events in, records out. `why`, the timeline, the page, the log and the metrics read records only.

Folding a step costs in proportion to what moved and what was judged, never to the length of the queue.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from headway.core import events as ev
from headway.core.errors import UnknownRequest
from headway.core.price import Price
from headway.core.request import Stage
from headway.core.tiers import TierLevel
from headway.core.verdict import BEHIND, Go, Unit, Verdict, Wait, awaits_input, change_key
from headway.story.reduce.record import MOST_PREEMPTIONS, PartRecord, Preemption, Record, SequenceRecord

NO_LEVELS = ev.Levels(0, 0, 0, 0, 0)
#: Which of several things that one step did for a request names its time.
_PRECEDENCE = ("decode", "prefill", "recompute", "evaluate", "encode", "update", "decode_pixels")


class Story:
    """All live requests and the last `remembered` ended ones.

    `delivers` says that a front will report `Delivered` for each request; without it a life ends with its stage.

    models     pool and seats of each served model, by name, in the order in which events named them
    reusable   the reusable blocks of each model's pool
    facts      what the replica said of each when it was loaded, where that is among the events
    tiers      how much lies in each tier of each model
    loops      by model, what was told last of a recovery loop, or a cut of admission, that is not over
    stuck      by request, what was told of a decision that is no progress, while it is alive and has not moved
    unwritten  by model, what was told of writes to its tiers that stand, until they move
    waiting    the ids of live requests that were received, and not admitted, or preempted since
    """

    def __init__(self, *, remembered: int = 1000, delivers: bool = False) -> None:
        self.live: dict[str, Record] = {}
        self.waiting: set[str] = set()
        self.ended: OrderedDict[str, Record] = OrderedDict()
        self.models: dict[str, ev.Levels] = {}
        self.reusable: defaultdict[str, set[int]] = defaultdict(set)
        self.facts: dict[str, ev.Loaded] = {}
        self.tiers: dict[str, tuple[TierLevel, ...]] = {}
        self.loops: dict[str, ev.Recovery] = {}
        self.stuck: dict[str, ev.NoProgress] = {}
        self.unwritten: dict[str, ev.NoProgress] = {}
        self.step = 0
        self.stepped_at = 0
        self._remembered = remembered
        self.delivers = delivers
        self._members: dict[str, set[str]] = {}  # live requests of a list of prompts, by the id that they share
        self._patterns: dict[str, str] = {}  # as requests told
        self._fresh: dict[str, list[str]] = {}  # by model: who queued since its last step
        self._judged: dict[str, set[str]] = {}  # by model: whose verdict its last step told
        self._in_flight: dict[str, Record] = {}  # an id may come back while its cancelled namesake is in flight
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.Loaded: self._loaded, ev.TurnedAway: self._turned_away,
            ev.Received: self._received, ev.Prompted: self._prompted, ev.Arrived: self._arrived,
            ev.Refused: self._refused,
            ev.Supplied: self._supplied, ev.DraftsPaused: self._drafts_paused,
            ev.Admitted: self._admitted, ev.Preempted: self._preempted, ev.Stepped: self._stepped,
            ev.Committed: self._committed, ev.Finished: self._finished, ev.Cancelled: self._cancelled,
            ev.ReloadStarted: self._reload_started, ev.Reloaded: self._reloaded,
            ev.ReloadDropped: self._reload_dropped, ev.Offloaded: self._offloaded,
            ev.Failed: self._failed, ev.Delivered: self._delivered,
            ev.Recovery: self._recovery, ev.NoProgress: self._no_progress,
        }  # fmt: skip

    def fold(self, event: ev.AnyEvent) -> None:
        """Take one event into the records. An event about a request that is not known is ignored."""
        self._handlers[type(event)](event)

    @property
    def levels(self) -> ev.Levels:
        """Pool and seats of the model that was told of first."""
        return next(iter(self.models.values()), NO_LEVELS)

    @property
    def still(self) -> list[ev.NoProgress]:
        """All that makes no progress now."""
        return [*self.stuck.values(), *self.unwritten.values()]

    def know(self, loaded: ev.Loaded) -> None:
        """A model is served whose loading may be among the events no more. Nothing is known of its levels yet."""
        self.facts.setdefault(loaded.model, loaded)
        self.tiers.setdefault(loaded.model, loaded.tiers)
        self.models.setdefault(loaded.model, NO_LEVELS)

    def unit(self, model: str) -> Unit:
        """Of its space."""
        return "bytes" if self.pattern(model) == "image" else "blocks"

    def pattern(self, model: str) -> str:
        """Which pattern that model serves: as it was loaded, else as its requests are; text where nothing tells."""
        return self.facts[model].pattern if model in self.facts else self._patterns.get(model, "text")

    def record(self, request_id: str) -> Record:
        """The live or remembered record. Raises UnknownRequest."""
        found = self.live.get(request_id) or self.ended.get(request_id)
        if found is None:
            raise UnknownRequest(request_id)
        return found

    def alive(self, id: str) -> str | None:
        """The live request of that id, or one of a list of prompts under it; None if there is none."""
        return id if id in self.live else next(iter(self._members.get(id, ())), None)

    def ahead(self, record: Record) -> int:
        """How many requests that wait for the same model go before this one."""
        return sum(order < record.order for order in self.queued().get(record.model, ()))

    def queued(self) -> dict[str, list[tuple[int, ...]]]:
        """For each model the places in its order of the waiting requests that others wait behind, sorted."""
        queues: dict[str, list[tuple[int, ...]]] = {}
        for record in self.live.values():
            if record.stage is Stage.WAITING and not awaits_input(record.verdict):
                queues.setdefault(record.model, []).append(record.order)
        return {model: sorted(orders) for model, orders in queues.items()}

    def slacks(self) -> dict[str, list[tuple[int, str]]]:
        """For each model what its live requests with deadlines can spare (ns), and their ids, the least first."""
        slacks: dict[str, list[tuple[int, str]]] = {}
        for record in self.live.values():
            if not record.ended and (slack := record.slack_ns) is not None:
                slacks.setdefault(record.model, []).append((slack, record.id))
        return {model: sorted(each) for model, each in slacks.items()}

    def references(self, model: str) -> Counter[int]:
        """How many sequences hold each live block of that model's pool."""
        return Counter(
            block for r in self.live.values() if r.model == model for s in r.sequences for block in s.blocks
        )

    def holders(self, model: str) -> list[Record]:
        """Whose sequences hold blocks of that model's pool: live requests, and such as ended while the step that runs
        names their blocks."""
        found = {id(record): record for record in (*self.live.values(), *self._in_flight.values())}
        return [r for r in found.values() if r.model == model and any(sequence.blocks for sequence in r.sequences)]

    # -- one method per event --------------------------------------------------------------------------------

    def _loaded(self, event: ev.Loaded) -> None:
        for record in [record for record in self._in_flight.values() if record.model == event.model]:
            _drop_blocks(self._in_flight.pop(record.id))  # its step died with the replica
        self._level(event.model, ev.Levels(0, 0, event.blocks, 0, 0))
        self.facts[event.model] = event
        self.tiers[event.model] = event.tiers
        self.loops.pop(event.model, None)
        self.unwritten.pop(event.model, None)

    def _turned_away(self, event: ev.TurnedAway) -> None:
        """They left no record."""

    def _received(self, event: ev.Received) -> None:
        self._open(Record(event.id, event.pattern, event.at, event.model, doing_since=event.at))

    def _prompted(self, event: ev.Prompted) -> None:
        if record := self.live.get(event.id):
            record.prompt_text = event.text

    def _arrived(self, event: ev.Arrived) -> None:
        record = self.live.get(event.id)
        if record is None or record.stage is not Stage.RECEIVED:
            record = self._open(Record(event.id, event.pattern, event.at, doing_since=event.at))
        self._turn(record, Stage.WAITING)
        record.model = self._named(event.model)
        self._patterns.setdefault(record.model, event.pattern)
        record.order, record.priority, record.max_tokens = event.order, event.priority, event.max_tokens
        record.deadline_at, record.promised = event.deadline_at, event.promised
        record.sequences = [SequenceRecord(index, event.prompt) for index in range(event.n)]
        positions = event.positions or (None,) * len(event.parts)
        record.parts = [PartRecord(of, positions=each) for of, each in zip(event.parts, positions, strict=True)]
        record.stages = event.stages
        if event.wait is None:
            self._queue(record, event.at)
        else:
            self._wait(record, event.wait, event.at)

    def _recovery(self, event: ev.Recovery) -> None:
        self.loops[event.model] = event
        if event.phase == "over":
            del self.loops[event.model]

    def _no_progress(self, event: ev.NoProgress) -> None:
        if event.wait is None:
            self.unwritten[event.model] = event
        elif record := self.live.get(event.id):
            self.stuck[event.id] = event
            self._wait(record, event.wait, event.at)

    def _supplied(self, event: ev.Supplied) -> None:
        if record := self.live.get(event.id):
            self._judge(record, None, event.at)
            self._queue(record, event.at)

    def _queue(self, record: Record, at: int) -> None:
        record.turn_to("queued", at, "turn", "order")
        self._fresh.setdefault(record.model, []).append(record.id)

    def _refused(self, event: ev.Refused) -> None:
        record = self.live.get(event.id)
        if record is None or record.ended:
            pattern = self.pattern(event.model)
            record = self._open(Record(event.id, pattern, event.at, event.model, doing_since=event.at))
        self._judge(record, event.verdict, event.at)
        record.reason = event.reason
        self._end(record, Stage.REFUSED, event.at)

    def _admitted(self, event: ev.Admitted) -> None:
        record = self.live.get(event.id)
        if record is None:
            return
        self.stuck.pop(event.id, None)
        self._turn(record, Stage.RUNNING)
        for index, table, inherited in zip(event.indexes, event.tables, event.inherited, strict=True):
            sequence = record.sequences[index]
            sequence.blocks = list(table)
            self.reusable[record.model].difference_update(table)
            self._inherit(sequence, inherited, event.resumed)
        record.choice = event.choice or record.choice
        if not event.resumed and event.inherited:
            record.first_reused = event.inherited[0]
            record.miss = event.miss

    def _preempted(self, event: ev.Preempted) -> None:
        record = self.live.get(event.id)
        if record is None:
            return
        self._turn(record, Stage.WAITING)
        record.preemptions += 1
        if event.by not in record.preempted_for:
            record.preempted_for.append(event.by)
        price = event.price if isinstance(event.price, Price) else Price(event.price)
        record.preempted = [*record.preempted, Preemption(event.step, event.by, price)][-MOST_PREEMPTIONS:]
        for index, lost in zip(event.indexes, event.lost, strict=True):
            if record.parts:
                record.parts[index].done -= lost
                continue
            sequence = record.sequences[index]
            sequence.counts.lost += lost
            sequence.computed = 0
            sequence.blocks = []
        self._keep(record.model, event.reusable)
        self._judged.setdefault(record.model, set()).add(event.id)

    def _reload_started(self, event: ev.ReloadStarted) -> None:
        if record := self.live.get(event.id):
            for index, table in zip(event.indexes, event.tables, strict=True):
                record.sequences[index].blocks = list(table)
                self.reusable[record.model].difference_update(table)
            record.choice = event.choice
            self._wait(record, event.wait, event.at)

    def _reloaded(self, event: ev.Reloaded) -> None:
        if record := self.live.get(event.id):
            for tier, blocks in event.blocks.items():
                record.reloaded[tier] = record.reloaded.get(tier, 0) + blocks
            self._seatless(record, event.at)

    def _reload_dropped(self, event: ev.ReloadDropped) -> None:
        if record := self.live.get(event.id):
            _drop_blocks(record)
            self._keep(record.model, event.reusable)
            self._seatless(record, event.at)

    def _seatless(self, record: Record, at: int) -> None:
        """It awaits no blocks any more; what it waits for the next step tells."""
        self.stuck.pop(record.id, None)
        self._judge(record, None, at)
        record.turn_to("preempted" if record.preemptions else "queued", at, "turn", "order")
        self._judged.setdefault(record.model, set()).add(record.id)

    def _offloaded(self, event: ev.Offloaded) -> None:
        self.tiers[self._named(event.model)] = event.tiers
        if event.moves_again:
            self.unwritten.pop(event.model, None)

    def _stepped(self, event: ev.Stepped) -> None:
        model = self._named(event.model)
        self.step, self.stepped_at = event.step, event.at
        self._level(model, event.levels)
        for told in [told for told in self.stuck.values() if told.model == model]:
            assert told.wait is not None
            if told.wait.on != "input" or event.waits.get(told.id, told.wait) != told.wait:
                del self.stuck[told.id]  # somebody moves, or its blocks come
        behind = self._judged.get(model, set()).union(self._fresh.pop(model, ())) - event.waits.keys()
        self._judged[model] = set()
        for request_id in behind:
            record = self.live.get(request_id)
            if record is not None and record.stage is Stage.WAITING:
                self._wait(record, BEHIND, event.at)
        for request_id, wait in event.waits.items():
            if record := self.live.get(request_id):
                self._judged.setdefault(record.model, set()).add(request_id)
                self._wait(record, wait, event.at)
        for forecast in event.forecasts:
            if record := self.live.get(forecast.id):
                record.forecast = forecast
        self._move_members(event)

    def _move_members(self, event: ev.Stepped) -> None:
        for request_id, index, blocks in ((g.id, g.index, g.blocks) for g in event.grown):
            if record := self.live.get(request_id):
                record.sequences[index].blocks.extend(blocks)
                self.reusable[record.model].difference_update(blocks)
        moved: dict[str, tuple[int, int]] = {}
        for member in event.members:
            doing, positions = moved.get(member.id, (0, 0))
            if (record := self.live.get(member.id)) and record.parts:
                record.parts[member.index].step = event.step
            moved[member.id] = max(doing, _PRECEDENCE.index(member.doing)), positions + member.positions
        self._in_flight = {}
        for request_id, (doing, positions) in moved.items():
            if record := self.live.get(request_id):
                self._in_flight[request_id] = record
                self._judge(record, Go(positions), event.at)
                record.turn_to(_PRECEDENCE[doing], event.at)

    def _committed(self, event: ev.Committed) -> None:
        self._level(self._named(event.model), event.levels, event.reusable)
        for outcome in event.outcomes:
            record = self._in_flight.get(outcome.id)
            if record is None:
                continue
            sequence = record.sequences[outcome.index]
            counts = sequence.counts
            counts.prefilled += outcome.prefilled
            counts.decoded += outcome.decoded
            counts.recomputed += outcome.recomputed
            counts.rejected += outcome.rejected
            counts.accepted += outcome.accepted
            sequence.computed += outcome.prefilled + outcome.decoded + outcome.recomputed
            sequence.emitted += outcome.emitted
            sequence.finish = outcome.finish
            sequence.blocks = [] if outcome.finish else sequence.blocks[: outcome.held]
            if outcome.emitted:
                sequence.last_token_at = event.at
        for move in event.moves:
            if record := self._in_flight.get(move.id):
                record.parts[move.index].done = move.done
        for fork in event.forks:
            if record := self._in_flight.get(fork.id):
                sequence = record.sequences[fork.index]
                self._inherit(sequence, fork.positions, fork.resumed)
                sequence.emitted += fork.emitted
                sequence.finish = fork.finish
                if fork.finish:
                    sequence.blocks = []
                if fork.emitted:
                    sequence.last_token_at = event.at
        for record in self._in_flight.values():
            if record.ended:
                _drop_blocks(record)
        self._in_flight = {}

    def _drafts_paused(self, event: ev.DraftsPaused) -> None:
        if record := self.live.get(event.id):
            record.sequences[event.index].pauses.append(event.pause)

    def _finished(self, event: ev.Finished) -> None:
        if record := self.live.get(event.id):
            record.reason = event.reason
            self._end(record, Stage.FINISHED, event.at)

    def _cancelled(self, event: ev.Cancelled) -> None:
        if record := self.live.get(event.id):
            record.reason = event.by
            self._level(record.model, event.levels, event.reusable)
            if event.until_commit:
                self._in_flight[record.id] = record  # also where the step only copies to its blocks
            self._end(record, Stage.CANCELLED, event.at)

    def _failed(self, event: ev.Failed) -> None:
        if record := self.live.get(event.id):
            record.reason, record.message = event.reason, event.message
            if event.levels is None:
                self._in_flight.pop(event.id, None)  # its blocks are gone, also where no commit will follow
            else:
                self._level(record.model, event.levels, event.reusable)
            if event.until_commit:
                self._in_flight[record.id] = record
            self._end(record, Stage.FAILED, event.at)

    def _delivered(self, event: ev.Delivered) -> None:
        record = self.live.get(event.id)
        if record is not None and record.ended:
            record.dropped = event.dropped
            self._remember(record, event.at)

    # -- the pools -------------------------------------------------------------------------------------------

    def _level(self, model: str, levels: ev.Levels, reusable: Iterable[int] = ()) -> None:
        """A pool's counts, and what became reusable. Where none is, none of those is that were: the replica ended."""
        self.models[model] = levels
        if levels.reusable:
            self._keep(model, reusable)
        else:
            self.reusable[model].clear()

    def _keep(self, model: str, reusable: Iterable[int]) -> None:
        """These blocks became reusable: nobody holds them, and they were not evicted."""
        self.reusable[model].update(reusable)

    # -- who is alive ----------------------------------------------------------------------------------------

    def _open(self, record: Record) -> Record:
        """It is alive from now on, whoever had its id before."""
        self.live[record.id] = record
        self._turn(record, record.stage)
        shared, numbered, _ = record.id.rpartition("~")
        if numbered:
            self._members.setdefault(shared, set()).add(record.id)
        return record

    def _turn(self, record: Record, stage: Stage) -> None:
        """A live request is at another stage."""
        record.stage = stage
        if stage is Stage.RECEIVED or stage is Stage.WAITING:
            self.waiting.add(record.id)
        else:
            self.waiting.discard(record.id)

    def _close(self, record: Record) -> None:
        """It is alive no more."""
        self.live.pop(record.id, None)
        self.waiting.discard(record.id)
        shared, numbered, _ = record.id.rpartition("~")
        if numbered and (members := self._members.get(shared)) is not None:
            members.discard(record.id)
            if not members:
                del self._members[shared]

    # -- shared ----------------------------------------------------------------------------------------------

    def _named(self, model: str) -> str:
        """Logs from before several models could be served name none: then it is the one that is known."""
        return model or next(iter(self.models), "")

    def _judge(self, record: Record, verdict: Verdict | None, at: int) -> None:
        if change_key(verdict) != change_key(record.verdict):
            record.since_step, record.since_at = self.step, at
        record.verdict = verdict

    def _wait(self, record: Record, wait: Wait, at: int) -> None:
        self._judge(record, wait, at)
        name = "stalled" if record.stage is Stage.RUNNING else "preempted" if record.preemptions else "queued"
        record.turn_to(name, at, wait.on, wait.rule)

    def _inherit(self, sequence: SequenceRecord, positions: int, resumed: bool) -> None:
        if resumed:
            sequence.counts.regained += positions
        else:
            sequence.counts.reused += positions
        sequence.computed += positions

    def _end(self, record: Record, stage: Stage, at: int) -> None:
        """Its work is over; its time goes on until the last byte is handed over."""
        self.stuck.pop(record.id, None)
        self._turn(record, stage)
        if stage is not Stage.REFUSED:
            record.verdict = None
        if self._in_flight.get(record.id) is not record:
            _drop_blocks(record)
        if self.delivers:
            record.turn_to("delivery", at)
        else:
            self._remember(record, at)

    def _remember(self, record: Record, at: int) -> None:
        record.end(at)
        self._close(record)
        self.ended[record.id] = record
        self.ended.move_to_end(record.id)
        while len(self.ended) > self._remembered:
            self.ended.popitem(last=False)


def _drop_blocks(record: Record) -> None:
    for sequence in record.sequences:
        sequence.blocks = []
