"""The life of an image on the engine, over an executor whose pixels show every mistake in the books."""

from __future__ import annotations

import pytest

from headway.compute.executor import ImageFacts
from headway.compute.fake_patterns import FakeDiffusion, expected_picture
from headway.core.clock import ModelledClock
from headway.core.errors import InvalidRequest
from headway.core.events import AnyEvent, Cancelled, Stepped
from headway.core.plan import DecodePixels, Encode, StepPlan, StepResult, Update
from headway.core.price import Price
from headway.core.request import ImageRequest, Pictured, Request, Stage
from headway.engine.loop import Engine
from headway.engine.planner import Planner
from headway.engine.served import EngineOptions
from headway.memory.bytes import BytePool
from headway.page.words import Question, answer
from headway.patterns.image.pattern import image_model, preview_places
from headway.policy.copies import CopyBudget
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell

IMAGES = ImageFacts(width=16, height=16, least=8, most=32, multiple=4, most_updates=1000, noise="fake")
LATENT = 100


class World:
    """An engine over one fake diffusion model. What left it, in order, is in `pictured`."""

    def __init__(self, *, latents: int = 4, seats: int = 4, policy: str = "fcfs") -> None:
        self.clock = ModelledClock()
        self.executor = FakeDiffusion(images=IMAGES, clock=self.clock, cost_ns=cost_ns)
        self.pool = BytePool(latents * LATENT, self.executor.forget)
        options = EngineOptions(seats=seats, policy=policy)
        self.model = image_model(self.executor, self.pool, lambda asked: LATENT, options)
        self.events: list[AnyEvent] = []
        self.story = Story()
        self.engine = Engine([self.model], self.clock, emit=self._emit)
        self.pictured: list[Pictured] = []

    def _emit(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.story.fold(event)

    def step(self) -> None:
        self.pictured += self.engine.step()  # type: ignore[arg-type]
        self.engine.check()

    def run(self) -> World:
        while self.engine.busy:
            self.step()
        return self

    def of(self, id: str) -> list[tuple[int | None, bytes]]:
        return [(one.preview, one.pixels) for one in self.pictured if one.id == id]

    def doings(self, id: str) -> list[str]:
        steps = [event for event in self.events if isinstance(event, Stepped)]
        return [member.doing for step in steps for member in step.members if member.id == id]


def cost_ns(plan: StepPlan) -> int:
    return 5_000 + 900 * len(plan.items)


def image(id: str, updates: int = 6, **fields: object) -> ImageRequest:
    return ImageRequest(**{"id": id, "prompt": (3, 1, 4), "updates": updates} | fields)


def asked(new: ImageRequest) -> Encode:
    negative = new.negative if new.guidance > 1 else ()
    size = (new.width, new.height) if new.width else (16, 16)
    return Encode(0, new.prompt, new.seed, new.updates, negative, new.guidance, *size, previews=new.previews > 0)


@pytest.mark.parametrize("previews", range(4))
@pytest.mark.parametrize("updates", [1, 2, 3, 4, 20])
def test_previews_are_numbered_in_order_and_each_shows_the_latent_of_its_update(updates: int, previews: int) -> None:
    new = image("mine", updates, previews=previews, seed=7)
    world = World()
    world.engine.add(new)
    world.engine.add(image("other", 9, previews=1))
    world.run()
    places = preview_places(previews, updates)
    expected = [(number, expected_picture(asked(new), after)) for number, after in enumerate(places)]
    assert world.of("mine") == [*expected, (None, expected_picture(asked(new)))]
    assert len(places) == min(previews, updates - 1)
    assert world.doings("mine").count("update") == updates
    assert world.doings("mine").count("decode_pixels") == len(places) + 1


def test_a_preview_is_no_progress_and_no_completed_image() -> None:
    world = World()
    world.engine.add(image("mine", 4, previews=3))
    seen = []
    while world.engine.busy:
        world.step()
        record = world.story.record("mine")
        seen.append((record.parts[0].done, record.stage is Stage.FINISHED, len(world.of("mine"))))
    done = [1, 2, 2, 3, 3, 4, 4, 5, 6]
    previews = [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert seen == [(each, each == 6, shown) for each, shown in zip(done, previews, strict=True)]
    assert world.story.record("mine").parts[0].of == 6


def test_what_an_image_gets_depends_on_its_own_settings_alone() -> None:
    news = [
        image("plain", 3),
        image("guided", 5, guidance=4.0, negative=(9,)),
        image("unguided", 3, guidance=1.0, negative=(9,)),
        image("wide", 4, width=32, height=8),
        image("seeded", 3, seed=-(1 << 63)),
    ]
    world = World(latents=2, seats=3)
    for new in news:
        world.engine.add(new)
        world.step()
    world.run()
    assert {new.id: world.of(new.id) for new in news} == {
        new.id: [(None, expected_picture(asked(new)))] for new in news
    }
    assert world.of("plain") == world.of("unguided")
    assert len(world.of("wide")[0][1]) == 32 * 8 * 3


@pytest.mark.parametrize("when", ["between steps", "in flight"])
def test_a_cancel_at_every_item_frees_the_latent_and_nothing_more_leaves(when: str) -> None:
    items = 1 + 6 + 2 + 1  # with two previews
    for after in range(items):
        world = World(latents=1)
        world.engine.add(image("goes", 6, previews=2))
        world.engine.add(image("next", 1))
        for _ in range(after):
            world.step()
        sent, slot = len(world.of("goes")), world.engine.requests["goes"].progress.grant
        plan = world.engine.plan() if when == "in flight" else None
        world.engine.cancel("goes")
        if plan is not None:
            assert world.pool.live == LATENT, "what a running step names outlives its request"
            assert world.engine.commit(world.executor.run(plan)) == []
        assert world.pool.live == 0 and (slot is None or world.executor.latent(slot.slot) == b"")
        world.run()
        assert len(world.of("goes")) == sent
        assert world.of("next") == [(None, expected_picture(asked(image("next", 1))))]
        assert sum(isinstance(event, Cancelled) for event in world.events) == 1


def test_a_preempted_image_begins_again_and_shows_no_preview_twice() -> None:
    new = image("mine", 6, previews=2, seed=3)
    world = World()
    world.engine.add(new)
    for _ in range(5):
        world.step()
    request = world.engine.requests["mine"]
    assert world.of("mine") == [(0, expected_picture(asked(new), 2))]
    lost = world.model.pattern.lose(request)
    assert (lost.units, lost.space, world.pool.live) == ((4,), LATENT, 0)
    world.model.queues.preempt(request)
    world.run()
    assert [preview for preview, _ in world.of("mine")] == [0, 1, None]
    assert world.of("mine")[1:] == [(1, expected_picture(asked(new), 4)), (None, expected_picture(asked(new)))]


@pytest.mark.parametrize(
    ("steps", "lost", "says"),
    [
        (1, 1, "its latent is gone, so its encoding is to be done again."),
        (2, 2, "its latent is gone, so its encoding and 1 update are to be done again."),
        (5, 4, "its latent is gone, so its encoding and 3 updates are to be done again."),  # one step was a preview
        (8, 7, "its latent is gone, so its encoding and 6 updates are to be done again."),  # its pixels are left
    ],
)
def test_what_a_preempted_image_lost_is_said_by_why_and_by_the_page_and_is_what_it_does_again(
    steps: int, lost: int, says: str
) -> None:
    world = World()
    request, other = world.engine.add(image("mine", 6, previews=1)), world.engine.add(image("other", 9))
    for _ in range(steps):
        world.step()
    preempt(world, request, by=other)
    record = world.story.record("mine")
    view = request_view(world.story, record, world.clock.now_ns())
    sentence = f"Preempted at step {steps + 1} for other: {says}"
    assert sentence in tell(view) and record.preempted[-1].price == Price(recompute=lost)
    assert sentence in answer(Question(rows=(), chosen=view)).chosen
    assert tell(view)[0] == "mine is waiting to resume: it was preempted once."
    before = len(world.doings("mine"))
    world.run()
    doings = world.doings("mine")
    assert doings[before : before + lost] == ["encode", *["update"] * (lost - 1)]
    assert len([each for each in doings if each != "decode_pixels"]) == 7 + lost, "and nothing else again"


def test_an_image_that_could_not_go_on_itself_and_one_to_which_nothing_was_done_are_told_so_too() -> None:
    world = World()
    request = world.engine.add(image("mine", 3))
    plan = world.engine.plan()
    assert plan is not None
    world.engine.commit(world.executor.run(plan))
    preempt(world, request, by=request)
    world.step()
    request.progress.done = 0  # as if it were preempted in the step that admits it
    preempt(world, request, by=request)
    told = tell(request_view(world.story, world.story.record("mine"), 0))
    assert (
        "Last preempted at step 3 since it could not grow: its latent is gone, and nothing had been done to it."
    ) in told


def preempt(world: World, victim: Request, by: Request) -> None:
    """As a step does that lacks space. No step lacks any of images: each takes all that it needs at its admission."""
    planner = Planner(world.model, world.engine.steps + 1, world.clock.now_ns(), world._emit, 4, CopyBudget(0))
    planner._preempt(victim, by=by, taken=0)


def test_an_encoding_joins_between_updates_and_all_that_runs_moves_by_one_item() -> None:
    world = World()
    world.engine.add(image("early", 5))
    world.step(), world.step()
    world.engine.add(image("late", 2, previews=1))
    kinds = []
    for _ in range(5):
        plan = world.engine.plan()
        assert plan is not None
        kinds.append([type(item) for item in plan.items])
        world.engine.commit(world.executor.run(plan))
    assert kinds == [[Update, Encode], [Update] * 2, [Update, DecodePixels], [Update] * 2, [DecodePixels] * 2]


INVALID = {
    "steps": [{"updates": 0}, {"updates": -1}, {"updates": 10_000}],
    "prompt": [{"prompt": ()}, {"prompt": (997,)}, {"prompt": (-1,)}],
    "negative_prompt": [{"negative": (997,)}],
    "guidance": [{"guidance": -0.5}, {"guidance": float("nan")}, {"guidance": float("inf")}, {"guidance": 2.0}],
    "partial_images": [{"previews": 4}, {"previews": -1}],
    "size": [{"width": 18, "height": 16}, {"width": 36, "height": 16}, {"width": 16}, {"width": 4, "height": 4}],
}


@pytest.mark.parametrize(
    ("field", "fields"), [(name, each) for name, cases in INVALID.items() for each in cases], ids=str
)
def test_what_a_model_cannot_take_as_given_is_refused_by_its_field(field: str, fields: dict[str, object]) -> None:
    world = World()
    with pytest.raises(InvalidRequest) as refused:
        world.engine.add(image("mine", **fields))
    assert refused.value.field == field
    assert not world.engine.busy


def test_the_largest_of_two_prompts_must_fit_the_context() -> None:
    world = World()
    verdict = world.engine.add(image("mine", negative=(1,) * 78, guidance=2.0)).verdict
    assert (verdict.rule, verdict.need, verdict.limit) == ("context", 78, 77)


def test_what_updates_take_is_measured_by_how_many_there_are() -> None:
    world = World()
    for id, updates in (("a", 3), ("b", 6), ("c", 9)):
        world.engine.add(image(id, updates))
    world.run()
    durations = world.model.durations
    assert [durations.ns("update", (16, 16), rows) for rows in (1, 2, 3)] == [5_900, 6_800, 7_700]
    assert durations.ns("update", (16, 16), 5) == 9_500  # which was never measured


def test_numbers_that_are_not_finite_end_their_image_in_words_that_say_where() -> None:
    for words in ("of the prompt", "in update 1 of 3", "after update 1", "in update 2 of 3", "in update 3 of 3"):
        other = image(f"spoiled {words}", 3, previews=1)
        lives = World()
        lives.engine.add(other)
        while True:
            plan = lives.engine.plan()
            assert plan is not None
            result = lives.executor.run(plan)
            if called(lives).endswith(words):
                lives.engine.commit(StepResult(result.results, spoiled=(0,)))
                break
            lives.engine.commit(result)
        record = lives.story.record(other.id)
        assert record.stage is Stage.FAILED and record.message is not None
        assert words in record.message and "is not finite" in record.message
        assert lives.pool.live == 0


def called(world: World) -> str:
    """How a message would call what the planned step computes for it."""
    (entry,) = world.engine._flight.entries  # type: ignore[union-attr]
    return world.model.pattern.words(entry)
