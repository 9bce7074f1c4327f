"""Bad luck at every stage of a request's life, in the engine alone (the table says what must come of it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from fault_table import cells
from headway.core.events import AnyEvent
from headway.core.plan import Grammar, Span, StepPlan
from headway.core.request import Stage
from headway.core.verdict import Wait
from headway.story.sinks.metrics import FINISHES, Metrics
from world import SAMPLED, Allowing, World


class Counted(World):
    """Counts what happens, as the front does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.metrics = Metrics(self.story)

    def _emit(self, event: AnyEvent) -> None:
        self.metrics.fold(event)
        super()._emit(event)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"headway_{name}", {"model": "fake", **labels}) or 0.0

    def steps_until(self, truth: Callable[[], bool]) -> None:
        for _ in range(200):
            if truth():
                return
            self.step()
        raise AssertionError("it did not come true")

    def plan_until(self, truth: Callable[[Span], bool]) -> StepPlan:
        """Steps until the next one has such a span; that one is in flight then."""
        for _ in range(200):
            plan = self.engine.plan()
            assert plan is not None
            self.engine.check()
            if any(map(truth, plan.items)):
                return plan
            self.note(self.engine.commit(self.executor.run(plan)))
        raise AssertionError("there was no such step")


VICTIM, BLOCKS = 30, 24


def waits_by(world: World, rule: str) -> bool:
    verdict = world.story.record("victim").verdict
    return isinstance(verdict, Wait) and verdict.rule == rule


def is_victims(span: Span) -> bool:
    """Its prompt is known by its second token; nobody else decodes from beyond it."""
    return span.tokens[0] == 4 or span.start >= VICTIM


def awaiting_grammar(world: Counted) -> None:
    world.add("victim", 9, max_tokens=6, grammar=Grammar("json"))


def waiting_for_space(world: Counted) -> None:
    world.add("hog", 52, max_tokens=8)
    world.step()
    world.add("victim", 60, max_tokens=6)
    world.steps_until(lambda: waits_by(world, "blocks"))


def waiting_for_a_seat(world: Counted) -> None:
    world.add("hog", 9, n=2, sampling=SAMPLED, max_tokens=9)
    world.step()
    world.add("victim", 9, n=2, sampling=SAMPLED, max_tokens=6)
    world.steps_until(lambda: waits_by(world, "seats"))


def between_two_chunks(world: Counted) -> None:
    victim = world.add("victim", VICTIM, max_tokens=6)
    world.steps_until(lambda: 0 < victim.progress.sequences[0].computed < VICTIM)


def last_chunk_in_flight(world: Counted) -> StepPlan:
    world.add("victim", [4] * VICTIM, max_tokens=6)
    return world.plan_until(lambda span: is_victims(span) and span.end == VICTIM)


def decoding(world: Counted) -> StepPlan:
    world.add("victim", [4] * VICTIM, max_tokens=6)
    return world.plan_until(lambda span: span.start == VICTIM + 2)


def decoding_with_drafts(world: Counted) -> StepPlan:
    truth = [4] * VICTIM
    world.model.pattern.drafters = lambda new: Right(truth) if new.id == "victim" else None
    world.add("victim", truth, max_tokens=12)
    truth += world.expected("victim", 0, 12)
    return world.plan_until(lambda span: span.drafts > 0)


def preempted(world: Counted) -> None:
    world.add("elder", 40, max_tokens=30)
    victim = world.add("victim", 30, max_tokens=20)
    world.steps_until(lambda: victim.preemptions == 1 and victim.stage is Stage.WAITING)


def siblings_before_the_fork(world: Counted) -> None:
    victim = world.add("victim", VICTIM, n=2, sampling=SAMPLED, max_tokens=6)
    world.steps_until(lambda: victim.stage is Stage.RUNNING)
    assert victim.progress.sequences[1].fork_at is not None


def siblings(world: Counted) -> StepPlan:
    world.add("victim", [4] * VICTIM, n=2, sampling=SAMPLED, max_tokens=6)
    return world.plan_until(lambda span: span.start == VICTIM + 2)


class Right:
    """A drafter that knows the answer."""

    def __init__(self, truth: list[int]) -> None:
        self._truth = truth

    def guess(self, tokens: list[int]) -> list[int]:
        return self._truth[len(tokens) :][:3]

    def verified(self, drafted: int, accepted: int) -> None:
        assert drafted == accepted


ENGINE: dict[str, Callable[[Counted], StepPlan | None]] = {
    "awaiting its grammar": awaiting_grammar,
    "waiting for space": waiting_for_space,
    "waiting for a seat": waiting_for_a_seat,
    "between two chunks": between_two_chunks,
    "last chunk in flight": last_chunk_in_flight,
    "decoding": decoding,
    "decoding with drafts": decoding_with_drafts,
    "preempted": preempted,
    "siblings before the fork": siblings_before_the_fork,
    "siblings": siblings,
}


def strike(world: Counted, fault: str, plan: StepPlan | None) -> None:
    """The fault, and the end of the step in flight, if any."""
    if fault == "step raises":
        if plan is None:
            world.executor.fail_next = RuntimeError("the machine broke")
            world.step()
        else:
            world.engine.abort("RuntimeError: the machine broke")
        return
    world.engine.cancel("victim", by={"client leaves": "client", "DELETE": "request"}[fault])
    world.engine.check()
    if plan is not None:
        world.note(world.engine.commit(world.executor.run(plan)))


@cells(list(ENGINE), ["client leaves", "DELETE", "step raises"])
def test_the_engine_ends_whom_it_must_and_nobody_else(stage: str, fault: str, outcome: str) -> None:
    world = Counted(blocks=BLOCKS, block_tokens=4, seats=4, step_tokens=16)
    world.add("neighbour", 6, max_tokens=20)
    world.step()
    strike(world, fault, ENGINE[stage](world))
    if world.engine.awaiting:
        world.engine.supply("victim", "grammar", [Allowing(world.vocab)])
    world.add("later", 11, max_tokens=4)
    world.run()

    stages = {id: str(world.story.record(id).stage) for id in world.asked}
    bystanders = "failed" if fault == "step raises" else "finished"
    assert stages == dict.fromkeys(stages, bystanders) | {"victim": outcome, "later": "finished"}
    for id, new in world.asked.items():
        for index in range(new.n):
            assert world.said[id, index] == world.expected(id, index)
            assert (stages[id] == "finished") == (len(world.said[id, index]) == new.max_tokens)
    record = world.story.record("victim")
    assert record.reason == {"cancelled": "request" if fault == "DELETE" else "client", "failed": "error",
                             "finished": "length"}[outcome]  # fmt: skip
    assert (record.message == "RuntimeError: the machine broke") == (outcome == "failed")
    assert not any(sequence.blocks for sequence in record.sequences)

    counted = {reason: world.count("requests_finished_total", reason=reason) for reason in FINISHES}
    reasons = Counter("length" if ended == "finished" else ended for ended in stages.values())
    assert counted == {reason: reasons[reason] for reason in FINISHES}
    assert world.count("preemptions_total") == sum(world.story.record(id).preemptions for id in world.asked)
    assert (world.pool.live, world.pool.reusable + world.pool.free) == (0, BLOCKS)
    assert world.model.queues.seats_used == 0 and not world.engine.awaiting
    world.engine.check()
