"""The engine under random lives: whatever happens, the identities hold and the tokens are the right ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.events import Committed, Preempted
from headway.core.plan import Sampling
from headway.core.request import Stage
from headway.core.verdict import Go, Never, Wait
from world import World

PROMPTS = st.one_of(
    st.integers(1, 30).map(lambda length: list(range(length))),  # prompts that share prefixes
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.sampled_from([[1] * 24, [2] * 30, [3] * 20]),  # prompts that come again after they were evicted
)


class Lives(RuleBasedStateMachine):
    """Arrivals, cancels at any point (between plan and commit too), failures, and steps."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.plan = None
        self.broken: set[str] = set()

    @initialize(
        blocks=st.integers(1, 40), block_tokens=st.integers(1, 8), seats=st.integers(1, 6),
        extra=st.integers(0, 20), bypass=st.integers(0, 4), cache=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority", "deadline", "fair"]), guesses=st.integers(0, 3),
        admit=st.sampled_from(["optimistic", "headroom", "reserve", "predict"]),
        answers=st.sampled_from([[], [2] * 32, list(range(1, 13)) * 3]), recovery=st.sampled_from(["warn", "auto"]),
        tiers=st.sampled_from([(0, 0), (3, 0), (30, 0), (1, 9), (3, 30), (30, 30)]), delay=st.integers(0, 3),
        most_copies=st.sampled_from([1, 64]), staging=st.booleans(),
    )  # fmt: skip
    def begin(
        self, blocks, block_tokens, seats, extra, bypass, cache, policy, guesses, admit, answers, recovery, tiers,
        delay, most_copies, staging,
    ):  # fmt: skip
        self.world = World(
            blocks=blocks, block_tokens=block_tokens, seats=seats, step_tokens=seats + extra, max_bypass=bypass,
            prefix_cache=cache, policy=policy, vocab=5, max_context=200, admit=admit, host_slots=tiers[0],
            disk_slots=tiers[1], disk_delay=delay, most_copies=most_copies, staging=staging and tiers[1] > 0,
            recovery=recovery,
            drafter=lambda tokens: [(tokens[-1] + i) % 5 for i in range(guesses)],
        )  # fmt: skip
        for tokens in answers:
            self.world.model.answers.add(tokens)

    @rule(prompt=PROMPTS, n=st.integers(1, 3), max_tokens=st.none() | st.integers(1, 12),
          min_tokens=st.integers(0, 3), priority=st.integers(-1, 1), caller=st.sampled_from(["", "c", "d"]),
          due=st.none() | st.sampled_from([1e5, 2e5]), salt=st.sampled_from(["", "s"]),
          stop=st.none() | st.integers(0, 4), temperature=st.sampled_from([0.0, 1.0]))  # fmt: skip
    def add(self, prompt, n, max_tokens, min_tokens, priority, caller, due, salt, stop, temperature):
        self.count += 1
        prompt = [token % 5 for token in prompt]
        self.world.add(
            f"r{self.count}", prompt, n=n, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens or 3),
            priority=priority, caller=caller, deadline_ms=due, cache_salt=salt,
            stop_ids=() if stop is None else (stop,),
            sampling=Sampling(temperature=temperature, seed=3),
        )  # fmt: skip

    @precondition(lambda self: self.plan is None)
    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            seen = len(self.world.events)
            self.world.step()
            self.look_at_preemptions(seen)
            self.look_at_verdicts()

    @precondition(lambda self: self.plan is None)
    @rule()
    def only_plan(self):
        self.plan = self.world.engine.plan()
        self.world.engine.check()
        self.world.agree()

    @precondition(lambda self: self.plan is not None)
    @rule()
    def run_and_commit(self):
        plan, self.plan = self.plan, None
        self.world.note(self.world.engine.commit(self.world.executor.run(plan)))

    @precondition(lambda self: self.plan is not None)
    @rule()
    def run_fails(self):
        self.plan = None
        engine = self.world.engine
        flying = {request.id for request in engine._flight.requests if not request.ended}
        others = {id: request.stage for id, request in engine.requests.items() if id not in flying}
        engine.abort("the machine broke")
        self.broken |= flying
        assert all(self.world.story.record(id).stage is Stage.FAILED for id in flying)
        assert all(id not in engine.requests or engine.requests[id].stage is stage for id, stage in others.items())
        self.world.note([])

    @precondition(lambda self: hasattr(self, "world") and self.world.disk is not None)
    @rule(faults=st.lists(st.sampled_from([None, "read", "checksum"]), max_size=5))
    def the_disk_is_wrong(self, faults):
        self.world.disk.wrong = faults

    @precondition(lambda self: self.plan is not None and self.plan.items)
    @rule(pick=st.integers(0, 1000))
    def a_span_is_not_finite(self, pick):
        plan, self.plan = self.plan, None
        engine = self.world.engine
        place = pick % len(plan.items)
        hit = engine._flight.entries[place].request
        fails = {hit.id} if not hit.ended else set()
        others = {e.request.id for e in engine._flight.entries if not e.request.ended} - fails
        self.world.executor.spoils = lambda span: span is plan.items[place]
        result = self.world.executor.run(plan)
        self.world.executor.spoils = lambda span: False
        self.world.note(engine.commit(result))
        self.broken |= fails
        assert all(self.world.story.record(id).stage is Stage.FAILED for id in fails)
        assert not any(self.world.story.record(id).stage is Stage.FAILED for id in others)

    @rule()
    def admission_is_cut_or_lifted(self):
        """At any moment, as if a window had ended."""
        watch = self.world.model.recovery
        if self.world.model.options.recovery == "auto":
            watch.state = replace(watch.state, cut=not watch.cut)

    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick):
        alive = [r for r in self.world.engine.requests.values() if not r.ended]
        if alive:
            request = alive[pick % len(alive)]
            self.broken.add(request.id)
            self.world.engine.cancel(request.id)
            self.world.engine.check()
            self.world.agree()

    @rule(pick=st.integers(0, 1000))
    def fail_one(self, pick):
        """As when its grammar leads nowhere, also while its step runs."""
        alive = [r for r in self.world.engine.requests.values() if not r.ended]
        if alive:
            request = alive[pick % len(alive)]
            self.broken.add(request.id)
            self.world.engine.fail(request.id, "it leads nowhere")
            self.world.engine.check()
            self.world.agree()

    def look_at_preemptions(self, seen):
        """Nobody is preempted for one that is behind it: r1 came first, where nothing else counts."""
        policy = self.world.model.options.policy

        def place(id):
            due = self.world.story.record(id).deadline_at
            counts = {"priority": (self.world.asked[id].priority,), "deadline": (due is None, due or 0)}
            return (*counts.get(policy, ()), int(id[1:]))

        for event in self.world.events[seen:]:
            if isinstance(event, Preempted):
                assert self.world.model.options.admit != "reserve"
                assert place(event.id) >= place(event.by)

    def look_at_verdicts(self):
        if not self.world.steps():
            return
        event = self.world.steps()[-1]
        levels = event.levels
        assert levels.live + levels.reusable + levels.free == self.world.pool.total
        for wait in event.waits.values():
            assert wait.short == wait.need - wait.have > 0
            assert wait.have >= 0
            assert len(wait.holders) <= 5
        if event.head is not None:
            assert event.head in event.waits
        for member in event.members:
            assert isinstance(self.world.story.record(member.id).verdict, Go | Wait | None)

    @invariant()
    def emitted_tokens_are_the_right_ones(self):
        if not hasattr(self, "world"):
            return
        for (id, index), said in self.world.said.items():
            assert said == self.world.expected(id, index)

    def teardown(self):
        if not hasattr(self, "world"):
            return
        if self.plan is not None:
            self.run_and_commit()
        self.world.run()
        world = self.world
        assert world.pool.live == 0
        if world.tiers is not None:
            assert not world.tiers._reloads
        for id, new in world.asked.items():
            record = world.story.record(id)
            if record.stage is Stage.REFUSED:
                assert isinstance(record.verdict, Never) and record.verdict.need > record.verdict.limit
            elif id not in self.broken:
                assert record.stage is Stage.FINISHED
                for index in range(new.n):
                    said, finish = world.said[id, index], world.finish[id, index]
                    assert finish == ("stop" if said[-1] in new.stop_ids else "length")
                    assert not set(said[:-1]) & set(new.stop_ids)
                    if new.max_tokens is not None and finish == "length":
                        assert len(said) == new.max_tokens
        self.sum_up()

    def sum_up(self):
        """Evaluated positions, told three ways, are the same."""
        committed = [
            outcome for event in self.world.events if isinstance(event, Committed) for outcome in event.outcomes
        ]
        told = sum(o.prefilled + o.decoded + o.recomputed + o.rejected for o in committed)
        run = {event.step for event in self.world.events if isinstance(event, Committed) and event.outcomes}
        planned = sum(m.positions for event in self.world.steps() if event.step in run for m in event.members)
        assert told == planned
        counts = [s.counts for record in self.world.story.ended.values() for s in record.sequences]
        assert told == sum(c.prefilled + c.decoded + c.recomputed + c.rejected for c in counts)


Lives.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
test_whatever_happens_the_identities_hold_and_the_tokens_are_right = pytest.mark.filterwarnings("default")(
    Lives.TestCase
)
