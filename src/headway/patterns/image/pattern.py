"""Images: a prompt is encoded once, a latent is updated a fixed number of times, then decoded to pixels. The latent
is fed back from update to update, so it needs space from the first item to the last. What is left to do is always
known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from headway.compute.executor import Executor, ModelFacts
from headway.core.errors import InvalidRequest
from headway.core.events import Admitted, Arrived, Member, Moved
from headway.core.plan import DecodePixels, Encode, ItemResult, Pixels, StepPlan, Update
from headway.core.price import Price
from headway.core.request import MOST, MOST_PREVIEWS, ImageRequest, Pictured, Request, Stage
from headway.core.verdict import Ask, Input, Unit, Wait, Worst
from headway.engine.pattern import NO_EXTRA, Books, Entry, Extra, Lost, Settled, WithoutTiers, Work
from headway.engine.served import EngineOptions, ServedModel
from headway.memory.bytes import BytePool, Grant
from headway.policy.admit import AnswerLengths, Outlook
from headway.policy.deadline import LeastWork
from headway.policy.durations import Durations
from headway.policy.schedule import Run


@dataclass(frozen=True, slots=True)
class Quote:
    ask: Ask


@dataclass(slots=True, eq=False)
class ImageProgress:
    """`done` of its items are: the encoding, then the updates, then the pixels. Previews are no progress: one is due
    after each of `previews` (numbers of updates), and `shown` of them have left. `grant` is where its latent and its
    features are."""

    asked: Encode
    previews: tuple[int, ...] = ()
    done: int = 0
    shown: int = 0
    grant: Grant | None = None

    @property
    def updates(self) -> int:
        return self.asked.updates

    @property
    def items(self) -> int:
        return self.updates + 2

    def next_item(self) -> tuple[str, Encode | Update | DecodePixels]:
        """What comes next, and the name of the interval that it takes."""
        assert self.grant is not None and self.done < self.items
        slot = self.grant.slot
        if self.done == 0:
            return "encode", replace(self.asked, slot=slot)
        if self.shown < len(self.previews) and self.done - 1 == self.previews[self.shown]:
            return "decode_pixels", DecodePixels(slot, preview=True)
        if self.done <= self.updates:
            return "update", Update(slot, self.done - 1, self.updates)
        return "decode_pixels", DecodePixels(slot)


def preview_places(previews: int, updates: int) -> tuple[int, ...]:
    """After which updates previews are due: evenly spread, never after the last, each once."""
    places = ((place + 1) * updates // (previews + 1) for place in range(previews))
    return tuple(dict.fromkeys(place for place in places if place))


class ImagePattern(WithoutTiers):
    """Implements `Pattern` over a pool of bytes, of which an image takes what `size` says. A part is the progress, a
    step's budget counts items: each image puts one into a step, whole."""

    cost_unit: Unit = "updates"
    yields = False
    paced = False
    foreseen = True

    def __init__(self, executor: Executor, pool: BytePool, size: Callable[[Encode], int]) -> None:
        self.space = pool
        self._facts = executor.facts
        self._size = size

    # -- before it is queued ---------------------------------------------------------------------------------

    def check(self, new: ImageRequest) -> None:
        check_image(new, self._facts)

    def worst(self, new: ImageRequest) -> Worst:
        space = self._size(self._asked(new))
        return Worst(seats=1, context=max(len(new.prompt), len(new.negative)), space=space)

    def begin(self, new: ImageRequest, context: int) -> ImageProgress:
        return ImageProgress(self._asked(new), preview_places(new.previews, new.updates))

    def _asked(self, new: ImageRequest) -> Encode:
        """What a request says of its image, before it has a slot."""
        own = self._facts.images
        width, height = (new.width, new.height) if new.width or own is None else (own.width, own.height)
        return Encode(
            slot=0,
            tokens=new.prompt,
            seed=new.seed,
            updates=new.updates,
            negative=new.negative if new.guidance > 1 else (),
            guidance=new.guidance,
            width=width,
            height=height,
            previews=new.previews > 0,
        )

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
            promised=request.promised,
            parts=(progress.items,),
        )

    # -- what it needs ---------------------------------------------------------------------------------------

    def quote(self, request: Request, seats: int) -> Quote:
        progress: ImageProgress = request.progress
        return Quote(Ask(seats=1, space=self._size(progress.asked), revived=0, cost=1, whole=True))

    def admit(self, request: Request, quote: Quote, at: int, step: int) -> Admitted:
        progress: ImageProgress = request.progress
        progress.grant = self.space.take(quote.ask.space)
        resumed = request.preemptions > 0
        return Admitted(
            at=at, step=step, id=request.id, resumed=resumed, indexes=(), tables=(), inherited=(), model=request.model
        )

    def least_work(self, request: Request, new: ImageRequest, answers: AnswerLengths) -> LeastWork:
        progress: ImageProgress = request.progress
        return LeastWork(1, progress.items - 1)

    def runs(self, request: Request) -> tuple[Run, ...]:
        progress: ImageProgress = request.progress
        asked = progress.asked
        rows, size = 1 + asked.guided, (asked.width, asked.height)
        pixels = Run(("decode_pixels", size), 1, 1)
        runs = [] if progress.done else [Run(("encode", ()), rows, 1)]
        done = max(0, progress.done - 1)
        for place in progress.previews[progress.shown :]:
            runs += [Run(("update", size), rows, place - done), pixels]
            done = place
        runs += [Run(("update", size), rows, progress.updates - done), pixels]
        return tuple(run for run in runs if run.times)

    def outlook(self, request: Request, quote: Any = None) -> list[Outlook]:
        """All is taken at admission."""
        return []

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
        match entry.item:
            case Encode():
                return "what the model computed of the prompt"
            case Update(index=index, of=of):
                return f"what the model computed in update {index + 1} of {of}"
        return f"what the model decoded after update {min(entry.part.done - 1, entry.part.updates)}"

    def enter(self, entry: Entry, result: ItemResult, books: Books) -> None:
        request, progress = entry.request, entry.part
        preview: int | None = None
        if isinstance(entry.item, DecodePixels) and entry.item.preview:
            preview = progress.shown
            progress.shown += 1
        else:
            progress.done += 1
        books.moves.append(Moved(request.id, 0, progress.done, progress.items))
        if isinstance(result, Pixels) and request.stage is Stage.RUNNING:
            books.emissions.append(Pictured(request.id, result.data, preview))

    def settle(self, request: Request) -> Settled:
        progress: ImageProgress = request.progress
        return Settled(1) if progress.done < progress.items else Settled(0, "stop")

    # -- the end ---------------------------------------------------------------------------------------------

    def holding(self, request: Request) -> tuple[int, int]:
        progress: ImageProgress = request.progress
        return (progress.grant.size if progress.grant else 0), 0

    def lose(self, request: Request) -> Lost:
        """All of it is gone: an update is fed back into the next one, and nothing else remembers it. Previews that
        have left are not decoded again."""
        progress: ImageProgress = request.progress
        lost, held = progress.done, self.holding(request)[0]
        progress.done = 0
        self.release(request)
        return Lost((0,), (lost,), held)

    def price(self, request: Request, lost: Lost, taken: int) -> Price:
        return Price(sum(lost.units))

    def release(self, request: Request, *, keep: bool = True) -> None:
        progress: ImageProgress = request.progress
        if progress.grant is not None:
            progress.grant.release()
            progress.grant = None

    def check_identities(self, requests: Iterable[Request]) -> None:
        held = [request.progress.grant for request in requests]
        self.space.check({grant.slot: grant.size for grant in held if grant is not None})


def check_image(new: ImageRequest, facts: ModelFacts) -> None:
    """Raises InvalidRequest for what a model cannot take as given."""
    own = facts.images
    most_updates = own.most_updates if own else MOST
    if not 1 <= new.updates <= most_updates:
        raise InvalidRequest("steps", f"steps is {new.updates}; it must be from 1 to {most_updates}")
    if not new.prompt:
        raise InvalidRequest("prompt", "the prompt is empty; at least one token is needed")
    for name, tokens in (("prompt", new.prompt), ("negative_prompt", new.negative)):
        if tokens and not 0 <= min(tokens) <= max(tokens) < facts.vocab:
            ids = f"token ids must be from 0 to {facts.vocab - 1}"
            raise InvalidRequest(name, f"{ids}; {name} has {min(tokens)} to {max(tokens)}")
    if not 0 <= new.guidance < inf:
        raise InvalidRequest("guidance", f"guidance is {new.guidance}; it must be a finite number from 0 on")
    if new.guidance > 1 and not new.negative:
        raise InvalidRequest("guidance", f"guidance {new.guidance} leads away from something, and nothing is given")
    if not 0 <= new.previews <= MOST_PREVIEWS:
        message = f"partial_images is {new.previews}; it must be from 0 to {MOST_PREVIEWS}"
        raise InvalidRequest("partial_images", message)
    if (new.width or new.height) and own and not own.takes(new.width, new.height):
        raise InvalidRequest("size", f"size is {new.width}x{new.height}; {facts.name}: {own.sizes}")


def image_model(
    executor: Executor,
    pool: BytePool,
    size: Callable[[Encode], int],
    options: EngineOptions | None = None,
    *,
    name: str = "",
    weight: float = 1.0,
    durations: Durations | None = None,
) -> ServedModel:
    """A diffusion model as an engine serves it; `size` says how many bytes the state of an image takes, and
    `durations` what parts of its steps took before."""
    pattern = ImagePattern(executor, pool, size)
    return ServedModel(executor, pattern, options, name=name, weight=weight, durations=durations)
