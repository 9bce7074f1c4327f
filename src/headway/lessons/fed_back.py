"""Lesson 2: what is fed back. Three patterns: a chosen token, an updated latent, nothing.

The text runs on the real engine over the fake executor. The image and the embedding below are stand-ins: they have
the rhythm of such models, what goes in, what comes out and what goes back, and nothing of their quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from headway.clock import ModelledClock
from headway.compute.fake import FakeExecutor
from headway.lessons.lesson import Code, Lesson, Measured, Question
from headway.lessons.model import Model
from headway.lessons.runs import prompt
from headway.plan import StepPlan, StepResult
from headway.sim.pair import Pair
from headway.story.sentences import count

PROMPT, TOKENS, UPDATES, LATENT, VALUES = 12, 5, 8, 16, 768


@dataclass
class Turns:
    """The evaluations of one request, in order: by which part of the model, how many values went in, and how many of
    them that part had put out itself in the evaluation before."""

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


class WatchedExecutor(FakeExecutor):
    """The fake executor, noting the tokens that go in and come out."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(blocks=8, block_tokens=16, clock=ModelledClock())
        self._turns = turns

    def run(self, plan: StepPlan) -> StepResult:
        result = super().run(plan)
        self._turns.note("model", plan.items[0].tokens, result.results[0].tokens)
        return result


def text() -> Turns:
    turns = Turns()
    Pair({"text": prompt(PROMPT)}, {"text": TOKENS}).run(WatchedExecutor(turns), 8, lambda line: None)
    return turns


def image() -> Turns:
    """A latent that starts as noise and moves towards a picture a fixed number of times; then it becomes pixels."""
    turns = Turns()
    latent = _values(b"noise", LATENT)
    picture = _values(b"picture", LATENT)
    for left in range(UPDATES, 0, -1):
        updated = [value + (wanted - value) / left for value, wanted in zip(latent, picture, strict=True)]
        turns.note("update", latent, updated)
        latent = updated
    turns.note("decode to pixels", latent, [round(255 * value) for value in latent for _ in range(4)])
    return turns


def embedding() -> Turns:
    """One vector for all tokens of a text, at once."""
    turns = Turns()
    tokens = prompt(PROMPT)
    turns.note("model", tokens, _values(repr(tokens).encode(), VALUES))
    return turns


def _values(seed: bytes, count: int) -> list[float]:
    """Numbers from 0 to 1 that depend on `seed` alone."""
    return [blake2b(seed + bytes(divmod(i, 256)), digest_size=1).digest()[0] / 255 for i in range(count)]


def measure(model: Model) -> Measured:
    """Runs one request of each pattern."""
    ran = {"text": text(), "image": image(), "embed": embedding()}
    units = {"text": "token", "image": "latent value", "embed": "token"}
    return Measured(
        answer=len(ran["embed"].went_in),
        counts={name: turns.row() for name, turns in ran.items()},
        story=tuple(line for name, turns in ran.items() for line in turns.lines(name, units[name])),
        why=(
            f"Text: the first evaluation takes all {PROMPT} prompt positions, and a token is chosen. That one token "
            f"is fed back, and the state of the earlier positions is kept, so each later evaluation has one "
            f"position: {len(ran['text'].went_in)} evaluations for {TOKENS} tokens.",
            f"Image: the whole latent, {LATENT} values, is fed back from update to update, "
            f"{sum(back > 0 for back in ran['image'].fed_back)} times. Nothing is chosen, and the number of "
            f"updates, {UPDATES}, is fixed beforehand. Then another part of the model decodes the latent to pixels, "
            f"and nothing returns: {len(ran['image'].went_in)} evaluations in all.",
            f"Embedding: {VALUES} values leave one evaluation together, and nothing goes back. How many values come "
            "out says nothing about how many evaluations it took.",
        ),
    )


LESSON = Lesson(
    number=2,
    slug="what-is-fed-back",
    title="What is fed back",
    runs_on="Text: the real engine over the fake executor. Image and embedding: small stand-ins written for this "
    "lesson, with the rhythm of such models and no picture or meaning in them.",
    question=Question(
        f"A text of {PROMPT} tokens is turned into an embedding of {VALUES} values. How many evaluations of the "
        "model does that take?",
        unit="evaluations",
    ),
    measure=measure,
    code=(
        Code("engine/loop.py", "Engine.step"),
        Code("patterns/text/enter.py", "enter"),
        Code("patterns/text/sequence.py", "Sequence.advance"),
        Code("lessons/fed_back.py", "image"),
        Code("lessons/fed_back.py", "embedding"),
    ),
)
