"""What a lesson is: a question that asks for a prediction, a run that answers it, the code that is responsible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headway.lessons.model import Model

#: A whole number, or the letter of a choice.
Answer: TypeAlias = int | str
#: A table: row to column to value. Its names are JSON keys, and words when shown (`first_token_ms`: first token ms).
Table: TypeAlias = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Question:
    """`options` are choices by letter; without any, the answer is a whole number of `unit`."""

    text: str
    unit: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def wants(self) -> str:
        """What an answer looks like."""
        return "one of " + ", ".join(self.options) if self.options else f"a whole number of {self.unit}"

    def read(self, text: str) -> Answer:
        """The prediction that `text` says. Raises ValueError, which names what is needed."""
        said = text.strip().lower()
        if said in self.options:
            return said
        if not self.options and said.replace(",", "").isdecimal():
            return int(said.replace(",", ""))
        raise ValueError(f"{text!r} is not {self.wants}")

    def words(self, answer: Answer) -> str:
        """`answer` spelled out: the number with its unit, or the letter with what it stands for."""
        if self.options:
            return f"{answer}, {self.options[str(answer)]}"
        return f"{answer:,} {self.unit.removesuffix('s') if answer == 1 else self.unit}"


@dataclass(frozen=True)
class Code:
    """A function that is responsible for what was seen. `file` is relative to the package, `function` dotted."""

    file: str
    function: str


@dataclass(frozen=True)
class Measured:
    """What a run showed.

    answer     the right answer to the lesson's question
    counts     the same on every machine
    why        plain sentences, with counts only
    observed   milliseconds and resident memory: of this run on this machine, or where a lesson's time is `modelled`
               the same everywhere
    story      what happened, line by line
    """

    answer: Answer
    counts: Table
    why: tuple[str, ...]
    observed: Table = field(default_factory=dict)
    story: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """`runs_on` says in a sentence what is real and what is a stand-in, and what `modelled` time costs. `measure`
    runs it; only lessons of the real model touch the `Model` that they are given, and only then is it loaded."""

    number: int
    slug: str
    title: str
    runs_on: str
    question: Question
    measure: Callable[[Model], Measured]
    code: tuple[Code, ...]
    modelled: bool = True


@dataclass(frozen=True)
class ClosingQuestion:
    """A closing question with its right answer, and why, in sentences with numbers that the lessons measured."""

    question: Question
    answer: Answer
    why: str
