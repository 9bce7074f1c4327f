"""Images with deadlines on the engine, on a modelled clock: what was promised is kept, what is refused cannot be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deadline_oracle import possible
from headway.compute.executor import ImageFacts
from headway.compute.fake_patterns import FakeDiffusion, expected_picture
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Stepped
from headway.core.plan import Encode
from headway.core.request import ImageRequest, Request, Stage
from headway.core.verdict import Never, Wait
from headway.engine.loop import Engine, Ports
from headway.engine.served import EngineOptions
from headway.memory.bytes import BytePool
from headway.patterns.image.pattern import image_model, preview_places
from headway.policy.durations import Durations
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import brief, tell
from mixed_world import MixedWorld, alone_ns, measured

IMAGES = ImageFacts(width=16, height=16, least=8, most=32, multiple=4, most_updates=1000)
LATENT, MS = 100, 1_000_000


def part_ns(kind: str, size: tuple[int, ...], rows: int) -> int:
    """In ms: an update takes 1 and 0.6 for each row, and of four times the pixels four times that."""
    step, row = {"encode": (300, 100), "update": (1000, 600), "decode_pixels": (500, 400)}[kind]
    return (step + row * rows) * 1000 * (4 if size == (32, 32) else 1)


@dataclass
class World:
    """One diffusion model. Who comes while a step runs is taken before its result is entered, as in a replica. Every
    batch was measured before, unless `cold`."""

    seats: int = 16
    latents: int = 16
    cold: bool = False
    policy: str = "fcfs"
    durations: Durations | None = None
    events: list[AnyEvent] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    news: dict[str, ImageRequest] = field(default_factory=dict)
    arrivals: list[tuple[int, ImageRequest]] = field(default_factory=list)
    added: Callable[[Request], None] = lambda request: None
    metrics: Metrics | None = None

    def __post_init__(self) -> None:
        self.clock = ModelledClock()
        self.story = Story(remembered=100_000)
        executor = FakeDiffusion(name="m", images=IMAGES, clock=self.clock, part_ns=part_ns)
        pool = BytePool(self.latents * LATENT, executor.forget)
        durations = self.durations or Durations()
        if not self.cold:
            measured(durations, part_ns, 2 * self.seats, 16, 32)
        options = EngineOptions(seats=self.seats, policy=self.policy)
        self.model = image_model(executor, pool, lambda asked: LATENT, options, durations=durations)
        self.engine = Engine([self.model], self.clock, emit=self._emit, ports=Ports(ran=self.arrive))

    def _emit(self, event: AnyEvent) -> None:
        self.events.append(event)
        if self.metrics is not None:
            self.metrics.fold(event)
        self.story.fold(event)

    def ask(self, id: str, updates: int, deadline_ms: float | None = None, **fields: object) -> Request:
        new = ImageRequest(**{"id": id, "prompt": (3,), "updates": updates, "deadline_ms": deadline_ms} | fields)
        return self.add(new)

    def add(self, new: ImageRequest) -> Request:
        self.news[new.id] = new
        request = self.engine.add(new)
        self.added(request)
        return request

    def arrive(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.clock.now_ns():
            self.add(self.arrivals.pop(0)[1])

    def step(self) -> None:
        for picture in self.engine.step():
            if picture.preview is None:
                self.pictures[picture.id] = picture.pixels
        self.engine.check()

    def run(self) -> World:
        while self.arrivals or self.engine.busy:
            if not self.engine.busy:
                self.clock.advance(max(0, self.arrivals[0][0] - self.clock.now_ns()))
                self.arrive()
            self.step()
        return self

    # -- what became of them ---------------------------------------------------------------------------------

    def count(self) -> dict[str, float | None]:
        """Complete answers by what became of their deadline."""
        assert self.metrics is not None
        value = self.metrics.registry.get_sample_value
        return {name: value("headway_deadlines_total", {"model": "m", "result": name}) for name in ("met", "missed")}

    def counted(self) -> World:
        self.metrics = Metrics(self.story, ("m",))
        return self

    def missed(self) -> list[str]:
        """Those that were promised their deadline, were not cancelled, and were not complete by then."""
        records = [self.story.record(id) for id in self.news]
        return [
            record.id
            for record in records
            if record.promised and record.stage is not Stage.CANCELLED
            and (record.stage is not Stage.FINISHED or record.ended_at > record.deadline_at)
        ]  # fmt: skip

    def paused(self) -> set[str]:
        steps = [event for event in self.events if isinstance(event, Stepped)]
        return {id for step in steps for id, wait in step.waits.items() if wait.rule == "deadline"}

    def of(self, stage: Stage) -> list[str]:
        return [id for id in self.news if self.story.record(id).stage is stage]

    def check_lives(self) -> None:
        """Whoever finished has the pixels and the updates that it had alone, and every life adds up."""
        doings: dict[str, list[str]] = {}
        for event in self.events:
            for member in event.members if isinstance(event, Stepped) else ():
                doings.setdefault(member.id, []).append(member.doing)
        for id in self.of(Stage.FINISHED):
            new, record = self.news[id], self.story.record(id)
            assert self.pictures[id] == expected_picture(asked(new))
            shown = len(preview_places(new.previews, new.updates))
            assert sorted(doings[id]) == ["decode_pixels"] * (1 + shown) + ["encode"] + ["update"] * new.updates
            assert record.preemptions == 0 and record.ended_at is not None
            assert sum(interval.ns for interval in record.life(0)) == record.elapsed_ns(0)

    def said(self, id: str) -> str:
        return " ".join(tell(request_view(self.story, self.story.record(id), self.clock.now_ns())))


def asked(new: ImageRequest) -> Encode:
    negative = new.negative if new.guidance > 1 else ()
    size = (new.width, new.height) if new.width else (16, 16)
    return Encode(0, new.prompt, new.seed, new.updates, negative, new.guidance, *size, previews=new.previews > 0)


def traffic(
    seed: int, count: int, load: float, *, most: int = 12, previews: bool = True
) -> list[tuple[int, ImageRequest]]:
    """Random arrivals of all sizes, lengths and guidances, one in seven without a deadline."""
    found = random.Random(seed)
    at, arrivals = ModelledClock().now_ns(), []
    for number in range(count):
        at += int(found.expovariate(load / (12 * MS)))
        side, rows, updates = found.choice([16] * 4 + [32]), found.choice([1, 2]), found.randint(1, most)
        room = found.uniform(1, 4) * alone_ns(part_ns, updates, rows, side) / MS
        arrivals.append((at, ImageRequest(
            id=f"r{number}", prompt=(3, number % 7), updates=updates, seed=number, negative=(9,),
            guidance=3.0 if rows == 2 else 1.0, width=side, height=side, received_at=at,
            deadline_ms=None if found.random() < 1 / 7 else room,
            previews=found.choice([0, 0, 0, 2]) if previews else 0,
        )))  # fmt: skip
    return arrivals


# -- a thousand arrivals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "seats", "latents", "load", "cancels"),
    [(1000, 16, 16, 1.0, 0.15), (150, 16, 16, 1.0, 0.0), (150, 4, 3, 1.2, 0.05), (150, 1, 1, 0.6, 0.0)],
)
def test_of_a_thousand_random_arrivals_no_promised_one_misses_its_deadline(
    count: int, seats: int, latents: int, load: float, cancels: float
) -> None:
    """With steps that take exactly what was measured; some cancelled between steps, many paused, where there is more
    than one seat."""
    found = random.Random(seats)
    world = World(seats=seats, latents=latents)
    world.arrivals = traffic(seats, count, load)
    while world.arrivals or world.engine.busy:
        if not world.engine.busy:
            world.clock.advance(max(0, world.arrivals[0][0] - world.clock.now_ns()))
            world.arrive()
        live = [request for request in world.engine.requests.values() if not request.ended]
        if live and found.random() < cancels:
            world.engine.cancel(found.choice(live).id)
        world.step()
    assert world.missed() == []
    assert len(world.of(Stage.REFUSED)) > count / 15
    promised = [id for id in world.news if world.story.record(id).promised]
    assert len(promised) > len(world.news) / 3
    assert (len(world.paused()) > count / 15) == (seats > 1)
    world.check_lives()


def test_whoever_was_refused_could_not_have_been_in_time_beside_what_was_promised() -> None:
    """At each refusal every order of steps is tried for those that were promised before, and the refused."""
    world = World()
    world.arrivals = traffic(2, 300, 0.9, most=6, previews=False)
    promised: dict[str, Request] = {}
    refused: list[tuple[ImageRequest, list[str]]] = []

    def added(request: Request) -> None:
        if request.promised:
            promised[request.id] = request
        elif request.stage is Stage.REFUSED:
            refused.append((world.news[request.id], list(promised)))

    def left(new: ImageRequest, done: int) -> tuple[list[tuple[object, int]], int]:
        rows, size = 1 + (new.guidance > 1), (new.width, new.height)
        items = [(("encode", ()), rows), *[(("update", size), rows)] * new.updates, (("decode_pixels", size), 1)]
        return items[done:], new.received_at + round(new.deadline_ms * 1e6)

    world.added = added
    judged = wrong = 0
    while world.arrivals or world.engine.busy:
        if not world.engine.busy:
            world.clock.advance(max(0, world.arrivals[0][0] - world.clock.now_ns()))
            world.arrive()
        world.step()
        for new, before in refused:  # as they stand at the boundary after the step in which it came
            live = [id for id in before if id in promised and not promised[id].ended]
            if len(live) > 5:
                continue
            states = [left(world.news[id], world.story.record(id).parts[0].done) for id in live]
            judged += 1
            wrong += possible([*states, left(new, 0)], world.clock.now_ns(), lambda work, rows: part_ns(*work, rows))
        refused.clear()
    assert world.missed() == [] and judged > 30
    assert wrong <= judged // 50


@pytest.mark.parametrize(("seats", "latents", "gap"), [(1, 1, 2), (2, 2, 0), (3, 2, 1)])
def test_every_triple_of_small_images_keeps_what_was_promised(seats: int, latents: int, gap: int) -> None:
    shapes = list(itertools.product((1, 3), (None, 1.0, 1.7)))
    for triple in itertools.product(shapes, repeat=3):
        world = World(seats=seats, latents=latents)
        for number, (updates, room) in enumerate(triple):
            alone = alone_ns(part_ns, updates, 1, 16) / MS
            world.ask(f"r{number}", updates, None if room is None else room * alone)
            for _ in range(gap):
                world.step()
        world.run()
        assert world.missed() == []
        assert all(world.story.record(id).verdict.rule == "deadline" for id in world.of(Stage.REFUSED))
        assert len(world.of(Stage.FINISHED)) + len(world.of(Stage.REFUSED)) == 3
        world.check_lives()


class Lives(RuleBasedStateMachine):
    """Arrivals, cancels, failed steps and time: nobody who was promised a deadline misses it."""

    @initialize(
        seats=st.integers(1, 4), latents=st.integers(1, 4), policy=st.sampled_from(["fcfs", "priority", "fair"])
    )
    def begin(self, seats, latents, policy):
        self.world, self.count, self.failed = World(seats=seats, latents=latents, policy=policy), 0, set()

    @rule(
        updates=st.integers(1, 6), rows=st.integers(1, 2), room=st.none() | st.floats(1, 5),
        previews=st.integers(0, 2), side=st.sampled_from([16, 32]), late=st.booleans(),
        priority=st.integers(0, 2), caller=st.sampled_from("ab"),
    )  # fmt: skip
    def ask(self, updates, rows, room, previews, side, late, priority, caller):
        self.count += 1
        deadline = None if room is None else room * alone_ns(part_ns, updates, rows, side) / MS
        self.world.ask(
            f"r{self.count}", updates, deadline, guidance=float(rows), negative=(9,), previews=previews, width=side,
            height=side, serve_late=late, priority=priority, caller=caller,
        )  # fmt: skip

    @rule(steps=st.integers(1, 5))
    def step(self, steps):
        for _ in range(steps):
            self.world.step()

    @rule(pick=st.integers(0, 99), flying=st.booleans())
    def cancel(self, pick, flying):
        engine = self.world.engine
        plan = engine.plan() if flying else None
        live = [request for request in engine.requests.values() if not request.ended]
        if live:
            engine.cancel(live[pick % len(live)].id)
        if plan is not None:
            result = engine._flight.model.executor.run(plan)
            for picture in engine.commit(result):
                if picture.preview is None:
                    self.world.pictures[picture.id] = picture.pixels
        engine.check()

    @rule()
    def fail(self):
        if self.world.engine.plan() is not None:
            self.failed |= {request.id for request in self.world.engine._flight.requests}
            self.world.engine.abort("the machine broke")

    @rule(ms=st.integers(1, 40))
    def idle(self, ms):
        """Nobody asks anything for a while."""
        self.world.run()
        self.world.clock.advance(ms * MS)

    @invariant()
    def waits_have_numbers(self):
        for request in self.world.engine.requests.values() if hasattr(self, "world") else ():
            if isinstance(request.verdict, Wait):
                assert request.verdict.short == request.verdict.need - request.verdict.have > 0

    def teardown(self):
        if hasattr(self, "world"):
            self.world.run()
            assert set(self.world.missed()) <= self.failed
            self.world.check_lives()


Lives.TestCase.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_whatever_happens_nobody_who_was_promised_a_deadline_misses_it = pytest.mark.filterwarnings("default")(
    Lives.TestCase
)


# -- what is measured -----------------------------------------------------------------------------------------


def test_a_cold_start_promises_nothing_and_says_so_and_a_warm_one_answers_from_what_was_kept() -> None:
    world = World(cold=True)
    request = world.ask("first", 3, deadline_ms=1.0)
    assert request.stage is Stage.WAITING and not request.promised
    world.step()
    assert "not promised: nothing like it was measured yet." in world.said("first")
    world.run()
    assert world.ask("second", 3, deadline_ms=1.0).stage is Stage.REFUSED
    kept = Durations.of(world.model.durations.rows())
    warm = World(cold=True, durations=kept)
    assert warm.ask("third", 3, deadline_ms=1.0).stage is Stage.REFUSED
    assert warm.ask("fourth", 3, deadline_ms=50.0).promised
    other = warm.ask("fifth", 3, deadline_ms=1.0, width=32, height=32)
    assert other.stage is Stage.WAITING and not other.promised, "its size was never measured"
    assert warm.run().missed() == []


def test_beside_another_model_a_promise_counts_from_step_to_step() -> None:
    def image_beside(text: bool) -> MixedWorld:
        world = MixedWorld(names=("text", "image"), blocks=900, latents=9, parts=part_ns, costs={
            "text": (2 * MS, 0), "image": (0, 0), "embed": (0, 0), "other": (0, 0)
        })  # fmt: skip
        measured(world.models["image"].durations, part_ns, 4)
        if text:
            world.text("t", 2, 400)
        world.image("first", 30)
        while world.story.record("first").stage is not Stage.FINISHED:
            world.step()
        return world

    room = 1.3 * alone_ns(part_ns, 10, 1) / MS
    assert image_beside(False).image("alone", 10, deadline_ms=room).promised
    assert image_beside(True).image("beside", 10, deadline_ms=room).stage is Stage.REFUSED


# -- what is told ---------------------------------------------------------------------------------------------


def pressed() -> World:
    """`tight` can spare two updates beside it and a half, `lax` has long."""
    world = World()
    world.ask("lax", 10, deadline_ms=200)
    world.step()
    world.step()
    room = alone_ns(part_ns, 6, 1, 16) / MS + 1.5
    assert world.ask("tight", 6, deadline_ms=room).promised
    world.step()
    return world


def test_a_pause_is_a_wait_for_a_turn_with_its_price_and_nothing_is_lost() -> None:
    world = pressed()
    record = world.story.record("lax")
    wait = record.verdict
    assert (
        isinstance(wait, Wait) and record.stage is Stage.RUNNING and record.doing == ("stalled", "turn", "deadline")
    )
    assert (wait.on, wait.rule, wait.unit, wait.by) == ("turn", "deadline", "ms", "tight")
    assert wait.need > wait.have == 0 and wait.price_ms > 0  # what it can spare is given away already, to later steps
    words = world.said("lax")
    assert (
        f"others have less slack. If it moved, tight would be complete {wait.need} ms later, which can spare 0 ms; "
        f"the pause makes it {wait.price_ms} ms later itself. Its latent stays, nothing is lost." in words
    )
    view = request_view(world.story, record, world.clock.now_ns())
    assert brief(view) == f"stalled: paused: tight would be {wait.need} ms later and can spare 0 ms"
    assert record.parts[0].done == 2
    world.run()
    assert world.missed() == [] and world.paused() == {"lax"}
    world.check_lives()


def test_why_gives_the_arithmetic_of_a_deadline_and_who_has_less() -> None:
    world = pressed()
    words = world.said("tight")
    assert "Deadline: 12.4 ms after its arrival, in 12.0 ms, promised." in words
    assert "Left: 6 updates × 1.6 ms + 0.9 ms of decoding = 10.5 ms; as planned it is complete" in words
    assert "before it is due; nobody has less slack." in words
    assert "; less slack: tight (" in world.said("lax")
    view = request_view(world.story, world.story.record("lax"), world.clock.now_ns()).deadline
    assert view is not None and view.promised and [less.id for less in view.less] == ["tight"]
    assert view.slack_ms is not None and 0 < view.slack_ms < view.left_ms
    world.run()
    ended = request_view(world.story, world.story.record("lax"), world.clock.now_ns()).deadline
    assert ended is not None and ended.met and ended.slack_ms is None
    planned, real = view.slack_ms, ended.left_ms
    assert real == planned, "with steps as measured, it is complete when it was planned to be"


def test_a_refusal_has_the_estimate_and_what_it_would_take_alone() -> None:
    world = pressed()
    alone = alone_ns(part_ns, 8, 2, 16) / MS
    refused = world.ask("refused", 8, deadline_ms=alone + 1, guidance=3.0, negative=(9,))
    verdict = refused.verdict
    assert isinstance(verdict, Never) and (verdict.rule, verdict.unit) == ("deadline", "ms")
    assert verdict.alone is not None and verdict.alone <= verdict.limit == int(alone + 1) < verdict.need
    assert world.said("refused").startswith(
        f"refused was refused: it would be complete {verdict.need} ms after its arrival at the earliest, beside what "
        f"others were promised before ({verdict.alone} ms without them), and its deadline is {verdict.limit} ms."
    )
    again = world.ask("again", 8, deadline_ms=verdict.need + 1, guidance=3.0, negative=(9,))
    assert again.promised, "what the estimate says can be had"
    assert world.run().missed() == []


def test_one_that_may_be_late_is_served_late_and_costs_nobody_a_promise() -> None:
    world = pressed().counted()
    late = world.ask("late", 8, deadline_ms=1.0, serve_late=True)
    assert late.stage is Stage.WAITING and not late.promised
    easy = world.ask("easy", 2, deadline_ms=500.0, serve_late=True)
    assert easy.promised
    world.step()
    world.run()
    assert world.missed() == [] and world.of(Stage.REFUSED) == []
    assert world.count() == {"met": 3, "missed": 1}
    assert "Deadline: 1.0 ms after its arrival, missed by" in world.said("late")


def test_previews_are_no_answers_and_what_was_cancelled_met_nothing() -> None:
    world = World().counted()
    world.ask("shows", 6, deadline_ms=500.0, previews=3)
    world.ask("goes", 6, deadline_ms=500.0, previews=3)
    for _ in range(6):
        world.step()
    world.engine.cancel("goes")
    assert world.count() == {"met": 0, "missed": 0}
    world.run()
    assert world.count() == {"met": 1, "missed": 0}


# -- without promises -----------------------------------------------------------------------------------------


def test_without_promises_batches_are_as_large_as_the_seats_and_deadlines_pass() -> None:
    """What benchmarks compare with: a fixed batch size, first come, first served."""
    clock = ModelledClock()
    executor = FakeDiffusion(images=IMAGES, clock=clock, part_ns=part_ns)
    options = EngineOptions(seats=2, promises=False)
    durations = measured(Durations(), part_ns, 8, 16)
    model = image_model(executor, BytePool(9 * LATENT), lambda asked: LATENT, options, durations=durations)
    sizes: list[int] = []
    engine = Engine([model], clock, emit=lambda e: sizes.append(len(e.members)) if isinstance(e, Stepped) else None)
    for number in range(4):
        new = ImageRequest(id=str(number), prompt=(1,), updates=3, deadline_ms=1.0)
        assert engine.add(new).stage is Stage.WAITING
    while engine.busy:
        engine.step()
    assert sizes == [2] * 10
