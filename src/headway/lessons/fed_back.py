"""Lesson 2: what is fed back. Three patterns: a chosen token, an updated latent, nothing.

All three run on the real engine, each with its own pattern: the image by the real model, text and embedding over fake
executors, which take the steps of such models, what goes in, what comes out and what goes back, and nothing of their
quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from headway.compute.executor import Executor
from headway.compute.fake import FakeExecutor
from headway.compute.fake_patterns import FakeDiffusion, FakeEncoder
from headway.core.plan import (
    DecodePixels,
    Encode,
    Evaluate,
    Item,
    Span,
    SpanResult,
    StepPlan,
    StepResult,
    Update,
    Vector,
)
from headway.core.request import EmbedRequest, NewRequest, TextRequest
from headway.engine.served import ServedModel
from headway.lessons.drawing import Drawing, drawing
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import prompt, serve
from headway.memory.bytes import BytePool
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.embed.pattern import embed_model
from headway.patterns.image.pattern import image_model
from headway.patterns.text.pattern import text_model
from headway.story.tell.sentences import count

PROMPT, TOKENS, UPDATES, VALUES = 12, 5, 8, 768


@dataclass
class Evaluations:
    """The evaluations of one request, in order: by which part of the model, how many values went in, and how many of
    them that part had itself output in the evaluation before."""

    parts: list[str] = field(default_factory=list)
    went_in: list[int] = field(default_factory=list)
    fed_back: list[int] = field(default_factory=list)
    _out: Sequence[object] = ()

    def note(self, part: str, inputs: Sequence[object], outputs: Sequence[object]) -> None:
        """One evaluation."""
        again = bool(self.parts) and part == self.parts[-1] and inputs == self._out
        self.parts.append(part)
        self.went_in.append(len(inputs))
        self.fed_back.append(len(inputs) if again else 0)
        self._out = outputs

    def lines(self, name: str, noun: str) -> list[str]:
        rows = zip(self.parts, self.went_in, self.fed_back, strict=True)
        return [
            f"{name}, evaluation {turn} ({part}): {count(size, noun)} in, {back or 'none'} of them fed back"
            for turn, (part, size, back) in enumerate(rows, 1)
        ]

    def row(self) -> dict[str, int]:
        return {
            "evaluations": len(self.went_in),
            "evaluations_of_fed_back_input": sum(back > 0 for back in self.fed_back),
            "values_fed_back_each_time": max(self.fed_back),
        }


class RecordingExecutor:
    """An executor, noting what goes in and comes out of each item."""

    def __init__(self, executor: Executor, evaluations: Evaluations) -> None:
        self._executor, self._evaluations = executor, evaluations
        self.facts = executor.facts

    def run(self, plan: StepPlan) -> StepResult:
        (item,) = plan.items
        before = self._latent(item)
        result = self._executor.run(plan)
        match item, result.results[0]:
            case Span(tokens=tokens), SpanResult(tokens=chosen):
                self._evaluations.note("model", tokens, chosen)
            case Evaluate(tokens=tokens), Vector(values=values):
                self._evaluations.note("model", tokens, memoryview(values).cast("f"))
            case Encode(tokens=tokens), _:
                self._evaluations.note("encode", tokens, self._latent(item))
            case Update(), _:
                self._evaluations.note("update", before, self._latent(item))
            case DecodePixels(), pixels:
                self._evaluations.note("decode to pixels", before, repr(pixels))
        return result

    def _latent(self, item: Item) -> Sequence[object]:
        """The values of the item's latent: none before its first item."""
        if not _has_slot(item):
            return ()
        executor = self._executor
        if isinstance(executor, FakeDiffusion):
            return executor.latent(item.slot)
        return executor.values(item.slot)  # type: ignore[attr-defined, no-any-return]


def _has_slot(item: Item) -> TypeGuard[Encode | Update | DecodePixels]:
    return isinstance(item, Encode | Update | DecodePixels)


def run(executor: Executor, make: Callable[[Executor], ServedModel], new: NewRequest) -> Evaluations:
    """The evaluations of one request, alone on the engine."""
    evaluations = Evaluations()
    serve(make(RecordingExecutor(executor, evaluations)), [new])
    return evaluations


def text() -> Evaluations:
    """A token is chosen after each evaluation, and goes into the next."""
    new = TextRequest(id="text", prompt=tuple(prompt(PROMPT)), max_tokens=TOKENS)
    executor = FakeExecutor(blocks=8, block_tokens=16)
    return run(executor, lambda watched: text_model(watched, StateMemory(BlockPool(8, 16), prefix_cache=False)), new)


def image(drawn: Drawing) -> Evaluations:
    """A latent that starts as noise is updated a fixed number of times; then it becomes pixels."""
    executor = drawn.executor
    pool = BytePool(executor.most_state_bytes, executor.forget)
    return run(executor, lambda watched: image_model(watched, pool, executor.state_bytes), drawn.news[0])


def embedding() -> Evaluations:
    """One vector for all tokens of a text, at once."""
    new = EmbedRequest(id="embed", inputs=(Evaluate(tuple(prompt(PROMPT))),))
    return run(FakeEncoder(values=VALUES), embed_model, new)


def measure(model: Model) -> Measured:
    """Runs one request of each pattern."""
    drawn = drawing(model, UPDATES, ["image"])
    ran = {"text": text(), "image": image(drawn), "embed": embedding()}
    latent, again = max(ran["image"].fed_back), sum(back > 0 for back in ran["image"].fed_back)
    units = {"text": "token", "image": "value", "embed": "token"}
    return Measured(
        answer=len(ran["embed"].went_in),
        counts={name: evaluations.row() for name, evaluations in ran.items()},
        story=drawn.note
        + tuple(line for name, evaluations in ran.items() for line in evaluations.lines(name, units[name])),
        why=(
            f"Text: the first evaluation takes all {PROMPT} prompt positions, and a token is chosen. That one token "
            f"is fed back, and the state of the earlier positions is kept, so each later evaluation has one "
            f"position: {len(ran['text'].went_in)} evaluations for {TOKENS} tokens.",
            f"Image: one part of the model encodes the prompt. Then the whole latent, {latent:,} values here, is fed "
            f"back from update to update, {again} times. Nothing is chosen, and the number of updates, {UPDATES}, is "
            f"fixed beforehand. Another part decodes the latent to pixels, and nothing is fed back: "
            f"{len(ran['image'].went_in)} evaluations in all.",
            f"Embedding: {VALUES} values leave one evaluation together, and nothing goes back. How many values come "
            "out says nothing about how many evaluations it took.",
        ),
    )


LESSON = Lesson(
    number=2,
    slug="what-is-fed-back",
    title="What is fed back",
    runs_on="The real engine and the three patterns that it serves. The image is drawn by the real model emoji-64 "
    "(where diffusers is not installed a fake one stands in, and the lesson says so); text and embedding run over "
    "fake executors, which take the same steps as such models and produce no meaning.",
    question=Question(
        f"A text of {PROMPT} tokens is turned into an embedding of {VALUES} values. How many evaluations of the "
        "model (forward passes) does that take?",
        unit="evaluations",
    ),
    measure=measure,
    code=(
        Code("engine/loop.py", "Engine.step"),
        Code("patterns/text/enter.py", "enter"),
        Code("patterns/image/pattern.py", "ImageProgress.next_item"),
        Code("patterns/embed/pattern.py", "EmbedPattern.works"),
    ),
)
