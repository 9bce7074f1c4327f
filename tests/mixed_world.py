"""An engine that serves a text, an encoder and a diffusion model at once, on fake executors and one clock."""

from __future__ import annotations

from collections.abc import Callable

from headway.compute.fake import FakeExecutor, expected_tokens, linear_cost
from headway.compute.fake_patterns import FakeDiffusion, FakeEncoder, expected_picture, expected_vector
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Stepped
from headway.core.plan import Draw, Encode, Evaluate, Sampling
from headway.core.request import (
    Embedded,
    EmbedRequest,
    Emission,
    ImageRequest,
    NewRequest,
    Pictured,
    Request,
    TextRequest,
)
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.bytes import BytePool
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.embed.pattern import embed_model
from headway.patterns.image.pattern import image_model
from headway.patterns.text.pattern import text_model
from headway.policy.durations import Durations
from headway.story.reduce.reducer import Story

LATENT = 100
#: What a step costs, and each unit of it more, in ns: steps of the three models are of very different lengths.
COSTS = {"text": (1_000, 10), "other": (700, 30), "embed": (300, 50), "image": (5_000, 900)}


def part_ns(kind: str, size: tuple[int, ...], rows: int) -> int:
    """What the parts of an image's steps take: each a beginning of its own, and more for each row."""
    step, row = {"encode": (2_000, 500), "update": (5_000, 900), "decode_pixels": (3_000, 700)}[kind]
    return step + row * rows


def alone_ns(parts: Callable[[str, tuple[int, ...], int], int], updates: int, rows: int, size: int = 0) -> int:
    """What an image takes by itself, its sides `size` pixels long."""
    update, pixels = parts("update", (size, size), rows), parts("decode_pixels", (size, size), 1)
    return parts("encode", (), rows) + updates * update + pixels


def measured(
    durations: Durations, parts: Callable[[str, tuple[int, ...], int], int], rows: int, *sizes: int
) -> Durations:
    """With every number of rows measured, of images whose sides are `sizes` pixels long; without, the model's own."""
    for count in range(1, rows + 1):
        durations.note("encode", (), count, parts("encode", (), count))
        for side in sizes or (0,):
            for kind in ("update", "decode_pixels"):
                durations.note(kind, (side, side), count, parts(kind, (side, side), count))
    return durations


class MixedWorld:
    """`weights` are the models' shares of the device. All requests' results are kept in `answers`."""

    def __init__(
        self,
        *,
        blocks: int = 6,
        size: int = 2,
        latents: int = 2,
        seats: int = 2,
        budget: int = 6,
        bypass: int = 1,
        policy: str = "fcfs",
        admit: str = "optimistic",
        weights: dict[str, float] | None = None,
        names: tuple[str, ...] = ("text", "embed", "image"),
        slowdown: float | None = None,
        longest: int = 50,
        costs: dict[str, tuple[int, int]] | None = None,
        parts: Callable[[str, tuple[int, ...], int], int] | None = None,
    ) -> None:
        self.clock = ModelledClock()
        self.story = Story()
        self.events: list[AnyEvent] = []
        options = EngineOptions(seats=seats, step_tokens=budget, max_bypass=bypass, policy=policy, admit=admit)
        costs = {name: linear_cost(step_ns=step, position_ns=unit) for name, (step, unit) in (costs or COSTS).items()}
        self.encoder = FakeEncoder(clock=self.clock, cost_ns=costs["embed"], max_context=longest)
        self.part_ns = parts or part_ns
        self.diffusion = FakeDiffusion(clock=self.clock, cost_ns=costs["image"], part_ns=parts)
        makers = {
            name: lambda name=name: text_model(
                FakeExecutor(blocks=blocks, block_tokens=size, clock=self.clock, cost_ns=costs[name]),
                StateMemory(BlockPool(blocks, size), prefix_cache=False), options, name=name,
            )
            for name in ("text", "other")
        }  # fmt: skip
        makers["embed"] = lambda: embed_model(self.encoder, options, name="embed")
        makers["image"] = lambda: image_model(
            self.diffusion,
            BytePool(latents * LATENT, self.diffusion.forget),
            lambda asked: LATENT,
            options,
            name="image",
        )
        self.models = {name: makers[name]() for name in names}
        for name, weight in (weights or {}).items():
            self.models[name].weight = weight
        self.engine = Engine(list(self.models.values()), self.clock, emit=self._emit, slowdown=slowdown)
        self.asked: dict[str, NewRequest] = {}
        self.answers: dict[str, object] = {}

    def _emit(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.story.fold(event)

    def measure_images(self, rows: int = 40) -> None:
        """As if batches of every number of rows had run before, of images of the model's own size."""
        measured(self.models["image"].durations, self.part_ns, rows)

    def alone_ms(self, updates: int, guided: bool = False) -> float:
        """What an image takes by itself."""
        return alone_ns(self.part_ns, updates, 1 + guided) / 1e6

    # -- requests --------------------------------------------------------------------------------------------

    def text(self, id: str, prompt: int, emits: int, model: str = "text") -> Request:
        tokens = tuple((sum(map(ord, id)) * 31 + 7 * i) % 997 for i in range(prompt))
        return self.add(TextRequest(id=id, model=model, prompt=tokens, max_tokens=emits))

    def embed(self, id: str, *lengths: int) -> Request:
        inputs = tuple(Evaluate(tuple((sum(map(ord, id)) + i) % 997 for i in range(length))) for length in lengths)
        return self.add(EmbedRequest(id=id, model="embed", inputs=inputs))

    def image(self, id: str, updates: int, **fields: object) -> Request:
        return self.add(
            ImageRequest(id=id, model="image", prompt=(sum(map(ord, id)) % 997,), updates=updates, **fields)
        )

    def add(self, new: NewRequest) -> Request:
        self.asked[new.id] = new
        request = self.engine.add(new)
        self.engine.check()
        return request

    # -- steps -----------------------------------------------------------------------------------------------

    def step(self) -> Stepped | None:
        """One step, with everything checked after it. Returns its event."""
        told = len(self.events)
        for emission in self.engine.step():
            match emission:
                case Emission(id=id, tokens=tokens):
                    self.answers[id] = (*self.answers.get(id, ()), *tokens)
                case Embedded(id=id, index=index, values=values):
                    self.answers[id] = {**self.answers.get(id, {}), index: values}
                case Pictured(id=id, pixels=pixels, preview=None):
                    assert id not in self.answers, "an image has one answer"
                    self.answers[id] = pixels
        self.engine.check()
        self.agree()
        return next((event for event in self.events[told:] if isinstance(event, Stepped)), None)

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError(f"still alive after {limit} steps: {list(self.engine.requests)}")

    def agree(self) -> None:
        """Records say what the engine's own books say, and every life adds up without a remainder."""
        now = self.clock.now_ns()
        for request in self.engine.requests.values():
            if not request.ended:
                record = self.story.record(request.id)
                assert (record.stage, record.model) == (request.stage, request.model)
                assert record.preemptions == request.preemptions
        for record in (*self.story.live.values(), *self.story.ended.values()):
            assert sum(interval.ns for interval in record.life(now)) == record.elapsed_ns(now)

    # -- what is right ---------------------------------------------------------------------------------------

    def right(self, id: str) -> object:
        """The answer that a request must have, whatever was in its steps."""
        match self.asked[id]:
            case TextRequest(prompt=prompt, max_tokens=emits):
                return tuple(expected_tokens(prompt, Draw(0, 0, Sampling()), emits or 0, 997))
            case EmbedRequest(inputs=inputs):
                return {index: expected_vector(input) for index, input in enumerate(inputs)}
            case ImageRequest() as new:
                negative = new.negative if new.guidance > 1 else ()
                return expected_picture(Encode(0, new.prompt, new.seed, new.updates, negative, new.guidance))
        raise AssertionError(id)
