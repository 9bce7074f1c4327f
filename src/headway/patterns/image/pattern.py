"""Images: a prompt is encoded once, a latent is updated a fixed number of times, then decoded to pixels. The latent
is fed back from update to update, so it needs space from the first item to the last. What is left to do is always
known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.compute.executor import Executor
from headway.core.errors import InvalidRequest
from headway.core.events import Admitted, Arrived, Member, Moved
from headway.core.plan import DecodePixels, Encode, Item, ItemResult, Pixels, StepPlan, Update
from headway.core.request import ImageRequest, Pictured, Request, Stage
from headway.core.verdict import Ask, Input, Unit, Wait, Worst
from headway.engine.pattern import NO_EXTRA, Books, Entry, Extra, Lost, Settled, Work
from headway.engine.served import EngineOptions, ServedModel
from headway.memory.bytes import BytePool, Grant


@dataclass(frozen=True, slots=True)
class Quote:
    ask: Ask


@dataclass(slots=True, eq=False)
class ImageProgress:
    """`done` of its items are: the encoding, then the updates, then the pixels. `grant` is where its latent and its
    features are."""

    prompt: tuple[int, ...]
    seed: int
    updates: int
    done: int = 0
    grant: Grant | None = None

    @property
    def items(self) -> int:
        return self.updates + 2

    def next_item(self) -> tuple[str, Item]:
        """What comes next, and the name of the interval that it takes."""
        assert self.grant is not None and self.done < self.items
        slot = self.grant.slot
        if self.done == 0:
            return "encode", Encode(slot, self.prompt, self.seed)
        if self.done <= self.updates:
            return "update", Update(slot, self.done - 1, self.updates)
        return "decode_pixels", DecodePixels(slot)


class ImagePattern:
    """Implements `Pattern` over a pool of bytes, of which each image takes `latent_bytes`. A part is the progress, a
    step's budget counts items: each image puts one into a step, whole."""

    cost_unit: Unit = "updates"
    yields = False
    paced = False

    def __init__(self, executor: Executor, pool: BytePool, latent_bytes: int) -> None:
        self.space = pool
        self._facts = executor.facts
        self._latent_bytes = latent_bytes

    # -- before it is queued ---------------------------------------------------------------------------------

    def check(self, new: ImageRequest) -> None:
        if new.updates < 1:
            raise InvalidRequest("updates", f"updates is {new.updates}; at least 1 is needed")
        if not new.prompt:
            raise InvalidRequest("prompt", "the prompt is empty; at least one token is needed")

    def worst(self, new: ImageRequest) -> Worst:
        return Worst(seats=1, context=len(new.prompt), space=self._latent_bytes)

    def begin(self, new: ImageRequest, context: int) -> ImageProgress:
        return ImageProgress(new.prompt, new.seed, new.updates)

    def awaits(self, new: ImageRequest) -> dict[Input, Wait]:
        return {}

    def supply(self, request: Request, what: Input, content: Any) -> None:
        """It awaits nothing."""

    def arrived(self, new: ImageRequest, request: Request, at: int, order: tuple[int, ...]) -> Arrived:
        progress: ImageProgress = request.progress
        return Arrived(
            at=at,
            id=request.id,
            pattern="image",
            model=request.model,
            priority=request.priority,
            order=order,
            deadline_at=request.deadline_at,
            parts=(progress.items,),
        )

    # -- what it needs ---------------------------------------------------------------------------------------

    def quote(self, request: Request, seats: int) -> Quote:
        return Quote(Ask(seats=1, space=self._latent_bytes, revived=0, cost=1, whole=True))

    def admit(self, request: Request, quote: Quote, at: int, step: int) -> Admitted:
        progress: ImageProgress = request.progress
        progress.grant = self.space.take(self._latent_bytes)
        resumed = request.preemptions > 0
        return Admitted(at=at, step=step, id=request.id, resumed=resumed, indexes=(), tables=(), inherited=())

    def works(self, request: Request) -> list[Work]:
        return [Work(request.progress, 1, whole=True)]

    def index(self, part: ImageProgress) -> int:
        return 0

    def grow(self, part: ImageProgress, lacking: int) -> tuple[int, ...]:
        return ()

    def extra(self, request: Request, work: Work, left: int) -> Extra:
        return NO_EXTRA

    # -- the step --------------------------------------------------------------------------------------------

    def entry(self, request: Request, work: Work, cost: int, extra: Extra) -> Entry:
        doing, item = work.part.next_item()
        return Entry(request, work.part, item, Member(request.id, 0, work.part.done, cost, 0, doing))

    def plan(self, step: int, entries: Iterable[Entry]) -> StepPlan:
        return StepPlan(step, tuple(entry.item for entry in entries))

    def fault(self, request: Request) -> str | None:
        return None

    def words(self, entry: Entry) -> str:
        return f"what the model computed as item {entry.member.start + 1} of {entry.part.items}"

    def enter(self, entry: Entry, result: ItemResult, books: Books) -> None:
        request, progress = entry.request, entry.part
        progress.done += 1
        books.moves.append(Moved(request.id, 0, progress.done, progress.items))
        if isinstance(result, Pixels) and request.stage is Stage.RUNNING:
            books.emissions.append(Pictured(request.id, result.data))

    def settle(self, request: Request) -> Settled:
        progress: ImageProgress = request.progress
        return Settled(1) if progress.done < progress.items else Settled(0, "stop")

    # -- the end ---------------------------------------------------------------------------------------------

    def holding(self, request: Request) -> tuple[int, int]:
        progress: ImageProgress = request.progress
        return (progress.grant.size if progress.grant else 0), 0

    def lose(self, request: Request) -> Lost:
        """All of it is gone: an update is fed back into the next one, and nothing else remembers it."""
        progress: ImageProgress = request.progress
        lost, held = progress.done, self.holding(request)[0]
        progress.done = 0
        self.release(request)
        return Lost((0,), (lost,), held)

    def release(self, request: Request, *, keep: bool = True) -> None:
        progress: ImageProgress = request.progress
        if progress.grant is not None:
            progress.grant.release()
            progress.grant = None

    def check_identities(self, requests: Iterable[Request]) -> None:
        held = [request.progress.grant for request in requests]
        self.space.check({grant.slot: grant.size for grant in held if grant is not None})


def image_model(
    executor: Executor, pool: BytePool, latent_bytes: int, options: EngineOptions | None = None, *, name: str = ""
) -> ServedModel:
    """A diffusion model as an engine serves it."""
    return ServedModel(executor, ImagePattern(executor, pool, latent_bytes), options, name=name)
