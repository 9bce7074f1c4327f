"""Two and three models on one device: every small world agrees with the plain reference, every answer is right."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.core.events import Finished, Stepped
from headway.core.request import Stage
from headway.policy.turns import Share, caught_up, next_model
from headway.policy.waiting import AWAITS_MODEL
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import brief, tell
from mixed_reference import Asked, Device, Model
from mixed_world import COSTS, LATENT, MixedWorld, part_ns

# -- turns: the pure decision ---------------------------------------------------------------------------------


def test_the_model_with_the_least_device_time_for_its_weight_is_next():
    assert next_model([Share(30, 1.0), Share(50, 2.0)]) == 1
    assert next_model([Share(30, 1.0), Share(70, 2.0)]) == 0
    assert next_model([Share(10, 1.0), Share(20, 2.0)]) == 0  # among equals the first


def test_an_idle_model_saves_nothing_up_and_is_not_punished_either():
    assert caught_up(Share(0, 2.0), [Share(100, 1.0), Share(900, 3.0)]) == 200
    assert caught_up(Share(500, 2.0), [Share(100, 1.0)]) == 500
    assert caught_up(Share(5, 1.0), []) == 5


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_busy_models_have_the_device_in_proportion_to_their_weights_however_long_their_steps_are(weight):
    world = MixedWorld(blocks=400, seats=2, latents=2, names=("text", "image"), weights={"image": weight})
    world.text("t", 2, 700)
    world.image("i", 150)
    while len(world.engine.requests) == 2:
        world.step()
    text, image = (world.models[name].device_ns for name in ("text", "image"))
    longest = sum(COSTS["image"]) * max(1.0, weight)  # nobody is further ahead than one of the longest steps
    assert abs(image / weight - text) <= longest


def test_a_model_that_was_idle_does_not_take_the_device_for_all_the_time_it_missed():
    world = MixedWorld(blocks=400, names=("text", "other"))
    world.text("early", 2, 200)
    for _ in range(100):
        world.step()
    world.text("late", 2, 50, model="other")
    steps = [world.step().model for _ in range(20)]
    assert steps.count("text") >= 7 and steps.count("other") >= 7


# -- what is told ---------------------------------------------------------------------------------------------


def test_a_running_request_waits_for_its_model_while_another_models_step_runs():
    world = MixedWorld(names=("text", "image"))
    world.text("t", 2, 9)
    world.image("i", 3)
    while not any(i.rule == "model" for i in world.story.record("t").life(world.clock.now_ns())):
        event = world.step()
    assert event.model == "image" and event.waits["t"] == AWAITS_MODEL == world.engine.requests["t"].verdict
    record = world.story.record("t")
    assert record.stage is Stage.RUNNING and record.verdict == AWAITS_MODEL
    assert record.doing == ("stalled", "turn", "model")


def test_whoever_waits_for_space_goes_on_waiting_for_space_while_another_models_step_runs():
    world = MixedWorld(latents=1, names=("text", "image"))
    world.image("holds", 4)
    world.step()
    world.image("waits", 4)
    world.text("t", 2, 5)
    while (verdict := world.engine.requests["waits"].verdict) in (None, AWAITS_MODEL):
        world.step()
    assert (verdict.on, verdict.rule, verdict.unit, verdict.need, verdict.have) == (
        "space",
        "latent",
        "bytes",
        100,
        0,
    )
    assert [holder.id for holder in verdict.holders] == ["holds"]
    while world.story.record("holds").stage is Stage.RUNNING:
        event = world.step()
        if event.model == "text":
            assert "waits" not in event.waits
            assert world.story.record("waits").doing == ("queued", "space", "latent")
    world.run()
    assert world.answers == {id: world.right(id) for id in world.asked}


def test_every_step_names_its_model_and_levels_are_kept_apart():
    world = MixedWorld()
    world.text("t", 3, 4)
    world.image("i", 3)
    world.embed("e", 5)
    world.step(), world.step(), world.step()
    assert {event.model for event in world.events if isinstance(event, Stepped)} == {"text", "image", "embed"}
    assert world.story.models["text"].live == 2 and world.story.models["image"].live == LATENT
    world.run()
    assert all(levels.live == 0 for levels in world.story.models.values())


def test_the_metrics_of_models_are_told_apart_by_their_label():
    world = MixedWorld(names=("text", "other"))
    world.text("a", 3, 4)
    world.text("b", 5, 2, model="other")
    world.text("c", 400, 1, model="other")  # can never fit
    folded = Story()
    metrics = Metrics(folded, ("text", "other"))
    world.run()
    for event in world.events:
        metrics.fold(event)
        folded.fold(event)

    def value(name: str, model: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"headway_{name}", {"model": model, **labels})

    assert (value("emitted_tokens_total", "text"), value("emitted_tokens_total", "other")) == (4, 2)
    assert value("positions_total", "text", kind="prefilled") == 3
    assert value("requests_refused_total", "other", reason="pool") == 1
    assert value("requests_refused_total", "text", reason="pool") == 0
    steps = [event.model for event in world.events if isinstance(event, Stepped)]
    assert value("step_seconds_count", "text") == steps.count("text")


def test_every_life_can_be_told_at_every_step_in_words_and_as_json():
    world, said = MixedWorld(latents=1), {}
    world.text("t", 3, 4)
    world.image("i", 2)
    world.image("waits", 2)
    world.embed("e", 5, 3)
    while world.engine.busy:
        world.step()
        for record in (*world.story.live.values(), *world.story.ended.values()):
            view = request_view(world.story, record, world.clock.now_ns())
            said.setdefault(record.id, set()).update([brief(view), " ".join(tell(view))])
    assert any("another model's step runs" in words for words in said["t"])
    assert any("needs 100 bytes, 100 short (i holds 100)" in words for words in said["waits"])
    assert any(words.startswith("update 2 of 2") for words in said["i"])
    assert any(words.startswith("stop, 2 of 2 updates in ") for words in said["i"])
    assert any(words.startswith("stop, 2 of 2 windows in ") for words in said["e"])


# -- whole items ----------------------------------------------------------------------------------------------


def test_an_input_is_never_cut_and_one_larger_than_a_step_takes_one_to_itself():
    world = MixedWorld(budget=6, seats=6, names=("embed",))
    for id, length in (("a", 4), ("b", 3), ("huge", 20), ("c", 2)):
        world.embed(id, length)
    steps = []
    while world.engine.busy:
        event = world.step()
        steps.append(({member.id: member.positions for member in event.members}, event.oversized))
    assert steps == [({"a": 4}, False), ({"b": 3}, False), ({"huge": 20}, True), ({"c": 2}, False)]
    assert world.answers == {id: world.right(id) for id in world.asked}


def test_the_wait_of_an_input_that_does_not_fit_names_all_its_positions():
    world = MixedWorld(budget=6, seats=6, names=("embed",))
    world.embed("a", 4)
    world.embed("b", 3)
    event = world.step()
    wait = event.waits["b"]
    assert (wait.rule, wait.unit, wait.need, wait.have, wait.short) == ("budget", "positions", 3, 2, 1)


def test_an_encoder_takes_its_whole_context_and_not_one_position_more():
    world = MixedWorld(names=("embed",))
    assert world.embed("fits", 50).stage is Stage.WAITING
    refused = world.embed("over", 51)
    assert refused.stage is Stage.REFUSED
    assert (refused.verdict.rule, refused.verdict.need, refused.verdict.limit) == ("context", 51, 50)


def test_a_request_of_several_windows_moves_them_in_order_and_ends_with_the_last():
    world = MixedWorld(budget=6, seats=2, names=("embed",))
    world.embed("long", 4, 4, 1, 6)
    steps = []
    while world.engine.busy:
        steps.append([(member.index, member.positions) for member in world.step().members])
    assert steps == [[(0, 4)], [(1, 4), (2, 1)], [(3, 6)]]
    assert world.answers["long"] == world.right("long")
    assert [(part.done, part.of) for part in world.story.record("long").parts] == [(1, 1)] * 4


# -- images ---------------------------------------------------------------------------------------------------


def test_an_image_holds_its_latent_from_its_encoding_to_its_pixels_and_its_progress_is_known():
    world = MixedWorld(latents=1, names=("image",))
    world.image("i", 3)
    seen = []
    while world.engine.busy:
        event = world.step()
        seen.append((event.members[0].doing, world.models["image"].levels().live))
    doings = ["encode", "update", "update", "update", "decode_pixels"]
    assert seen == [*((doing, LATENT) for doing in doings[:-1]), ("decode_pixels", 0)]
    assert [(part.done, part.of) for part in world.story.record("i").parts] == [(5, 5)]
    assert world.answers["i"] == world.right("i")


def test_an_image_that_can_never_fit_is_refused_with_bytes():
    world = MixedWorld(latents=0, names=("image",))
    request = world.image("i", 3)
    verdict = request.verdict
    assert request.stage is Stage.REFUSED
    assert (verdict.rule, verdict.unit, verdict.need, verdict.limit) == ("pool", "bytes", LATENT, 0)


def test_under_deadlines_the_earliest_goes_first():
    world = MixedWorld(latents=1, seats=1, policy="deadline", names=("image",))
    for id, ms in (("late", 900), ("none", None), ("soon", 100), ("sooner", 50)):
        world.image(id, 1, deadline_ms=ms)
    world.run()
    ended = [event.id for event in world.events if isinstance(event, Finished)]
    assert ended == ["sooner", "soon", "late", "none"]


# -- every small world ----------------------------------------------------------------------------------------

TEXTS = [(1, 1), (2, 3), (5, 2)]
EMBEDS = [(1,), (3, 4), (9,)]
IMAGES = [1, 3]


def reference(seats: int, budget: int, bypass: int, blocks: int, latents: int, names: tuple[str, ...]) -> Device:
    spaces = {"text": (blocks, 2), "other": (blocks, 2), "embed": (0, 1), "image": (latents * LATENT, LATENT)}
    kinds = {"other": "text"}
    return Device({
        name: Model(kinds.get(name, name), *spaces[name], seats=seats, budget=budget, bypass=bypass) for name in names
    })  # fmt: skip


def live_through(requests, gaps, *, seats, budget, bypass, blocks, latents, names=("text", "embed", "image")):
    world = MixedWorld(blocks=blocks, latents=latents, seats=seats, budget=budget, bypass=bypass, names=names)
    plain = reference(seats, budget, bypass, blocks, latents, names)
    taken = 0
    for tick in range(300):
        while taken < len(requests) and gaps[taken] <= tick:
            add(world, plain, f"r{taken}", *requests[taken])
            taken += 1
        if not world.engine.busy and taken == len(requests):
            break
        compare(world, plain)
    else:
        raise AssertionError("the world did not end")
    ended = {id for id in world.asked if world.story.record(id).stage is Stage.FINISHED}
    refused = {id for id in world.asked if world.story.record(id).stage is Stage.REFUSED}
    assert ended | refused == set(world.asked)
    assert {id: world.answers[id] for id in ended} == {id: world.right(id) for id in ended}


def add(world: MixedWorld, plain: Device, id: str, name: str, shape) -> None:
    match name:
        case "text" | "other":
            request = world.text(id, *shape, model=name)
            parts, emits = [shape[0]], shape[1]
        case "embed":
            request = world.embed(id, *shape)
            parts, emits = list(shape), 0
        case "image":
            request = world.image(id, shape)
            parts, emits = [1] * (shape + 2), 0
    if request.stage is not Stage.REFUSED:
        plain.add(name, Asked(id, request.arrival, parts, emits))


def compare(world: MixedWorld, plain: Device) -> None:
    before = world.clock.now_ns()
    expected = plain.step()
    event = world.step()
    if expected is None or event is None:
        assert expected is None and event is None
        return
    name, waits, moves = expected
    spent: dict[str, int] = {}
    for member in event.members:
        spent[member.id] = spent.get(member.id, 0) + member.positions
    assert event.model == name
    assert spent == moves
    assert {id: (w.on, w.rule, w.need, w.have) for id, w in event.waits.items()} == waits
    plain.models[name].commit()
    plain.models[name].device += world.clock.now_ns() - before


KINDS = [("text", shape) for shape in TEXTS] + [("embed", shape) for shape in EMBEDS] + [("image", n) for n in IMAGES]


@pytest.mark.parametrize("latents", [0, 1, 2])
@pytest.mark.parametrize(("blocks", "seats"), [(2, 2), (3, 1), (5, 2)])
def test_every_triple_of_all_three_patterns_is_judged_as_the_plain_reference_says(blocks, seats, latents):
    for triple in itertools.product(KINDS, repeat=3):
        live_through(triple, (0, 0, 2), seats=seats, budget=4, bypass=1, blocks=blocks, latents=latents)


@pytest.mark.parametrize("blocks", [3, 4, 6])
def test_every_triple_on_two_text_models_is_judged_as_the_plain_reference_says(blocks):
    kinds = [(name, shape) for name in ("text", "other") for shape in TEXTS]
    for triple in itertools.product(kinds, repeat=3):
        live_through(
            triple, (0, 1, 1), seats=2, budget=4, bypass=1, blocks=blocks, latents=0, names=("text", "other")
        )


# -- random lives ---------------------------------------------------------------------------------------------


class MixedLives(RuleBasedStateMachine):
    """Arrivals of every pattern, cancels, failures and steps: the identities hold and the answers are right."""

    @initialize(
        blocks=st.integers(2, 20), latents=st.integers(0, 3), seats=st.integers(1, 4),
        extra=st.integers(0, 8), bypass=st.integers(0, 3), weight=st.sampled_from([0.5, 1.0, 4.0]),
    )  # fmt: skip
    def begin(self, blocks, latents, seats, extra, bypass, weight):
        self.count = 0
        self.broken: set[str] = set()
        self.world = MixedWorld(
            blocks=blocks, latents=latents, seats=seats, budget=seats + extra, bypass=bypass,
            names=("text", "other", "embed", "image"), weights={"image": weight}, parts=part_ns,
        )  # fmt: skip
        self.world.measure_images()

    def name(self) -> str:
        self.count += 1
        return f"r{self.count}"

    @rule(prompt=st.integers(1, 9), emits=st.integers(1, 5), model=st.sampled_from(["text", "other"]))
    def text(self, prompt, emits, model):
        self.world.text(self.name(), prompt, emits, model=model)

    @rule(lengths=st.lists(st.integers(1, 15), min_size=1, max_size=3))
    def embed(self, lengths):
        self.world.embed(self.name(), *lengths)

    @rule(
        updates=st.integers(1, 4), previews=st.integers(0, 3), guidance=st.sampled_from([1.0, 4.0]),
        room=st.none() | st.floats(1, 20),
    )  # fmt: skip
    def image(self, updates, previews, guidance, room):
        fields = {"previews": previews, "guidance": guidance, "negative": (7,)}
        if room is not None:
            fields["deadline_ms"] = room * self.world.alone_ms(updates, guidance > 1)
        self.world.image(self.name(), updates, **fields)

    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            event = self.world.step()
            for wait in event.waits.values() if event else ():
                assert wait.short == wait.need - wait.have > 0

    @rule(pick=st.integers(0, 1000), when=st.sampled_from(["before", "in flight"]))
    def cancel(self, pick, when):
        engine = self.world.engine
        plan = engine.plan() if when == "in flight" else None
        alive = [request for request in engine.requests.values() if not request.ended]
        if alive:
            request = alive[pick % len(alive)]
            self.broken.add(request.id)
            engine.cancel(request.id)
            engine.check()
        if plan is not None:
            self.run(plan)

    @rule()
    def fail(self):
        engine = self.world.engine
        if engine.plan() is not None:
            flying = {request.id for request in engine._flight.requests}
            engine.abort("the machine broke")
            self.broken |= flying
            engine.check()
            assert all(self.world.story.record(id).stage is Stage.FAILED for id in flying)

    def run(self, plan):
        engine = self.world.engine
        result = engine._flight.model.executor.run(plan)
        for emission in engine.commit(result):
            self.broken.add(emission.id)  # its answer was not collected here
        engine.check()
        self.world.agree()

    @invariant()
    def levels_add_up(self):
        if hasattr(self, "world"):
            for model in self.world.models.values():
                space = model.pattern.space
                assert space.live + space.reusable + space.free == space.total

    def teardown(self):
        if not hasattr(self, "world"):
            return
        self.world.run()
        for id in self.world.asked:
            if self.world.story.record(id).stage is Stage.FINISHED and id not in self.broken:
                assert self.world.answers[id] == self.world.right(id)


MixedLives.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
test_whatever_happens_to_three_patterns_at_once_the_identities_hold_and_the_answers_are_right = (
    pytest.mark.filterwarnings("default")(MixedLives.TestCase)
)
