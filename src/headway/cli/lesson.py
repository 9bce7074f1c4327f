"""`headway lesson [N]`: predict, see the engine run, read why."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from headway.cli.console import make_console
from headway.core.config import Environment, yielding_threads
from headway.core.errors import ConfigError
from headway.lessons.course import LESSONS, lesson
from headway.lessons.lesson import Answer, ClosingQuestion, Lesson, Measured, Question, Table
from headway.lessons.model import Model
from headway.lessons.pages import MODELLED, check_pages, columns, shown, words, write_pages
from headway.lessons.questions import questions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", type=int, metavar="N", help="which lesson; without it, list them")
    parser.add_argument("--all", action="store_true", help="run all lessons in order, with five questions at the end")
    parser.add_argument("--answer", metavar="VALUE", help="your prediction; otherwise asked for at a terminal")
    parser.add_argument(
        "--json", action="store_true", help="print the question, prediction, numbers and code as JSON"
    )
    parser.add_argument("--pages", metavar="FOLDER", help="write what was measured as pages in this folder")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for options that cannot work together or cannot be written to, or an invalid
    prediction; ArtifactError when
    a lesson's model cannot be obtained."""
    _check(args)
    yielding_threads()
    environment = Environment.read()
    teller = Teller(
        make_console(quiet=args.json),
        asks=sys.stdin.isatty() and not args.json,
    )
    if args.number is None and not args.all:
        return _list(teller.console, args.json)
    chosen = LESSONS if args.all else (lesson(args.number),)
    if args.pages is not None:
        if not args.pages:
            raise ConfigError("--pages", "is empty; give a folder")
        check_pages(Path(args.pages), chosen, with_questions=args.all)
    given = None if args.answer is None else _given(chosen[0].question, args.answer)
    model = Model(environment.cache)
    measured, views = [], []
    for each in chosen:
        prediction = teller.introduce(each, given)
        found = each.measure(model)
        teller.reveal(each, found, prediction)
        measured.append((each, found))
        views.append(_lesson_view(each, found, prediction))
    asked = questions({each.number: found for each, found in measured}) if args.all else []
    ends = [_question_view(each, teller.close(number, each)) for number, each in enumerate(asked, 1)]
    if args.pages is not None:
        _write(teller.console, Path(args.pages), measured, asked)
    if args.json:
        print(json.dumps({"lessons": views, "questions": ends} if args.all else views[0], indent=2))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.all and args.number is not None:
        raise ConfigError("--all", f"runs every lesson; leave out {args.number} or --all")
    for name in ("answer", "pages"):
        if getattr(args, name) is not None and args.number is None and not (args.all and name == "pages"):
            raise ConfigError(f"--{name}", f"requires a lesson: `headway lesson N --{name} …`")


def _given(question: Question, text: str) -> Answer:
    try:
        return question.read(text)
    except ValueError as error:
        raise ConfigError("--answer", str(error)) from error


@dataclass(frozen=True)
class Teller:
    """Speaks on `console`, and waits for predictions only if it `asks`."""

    console: Console
    asks: bool

    def introduce(self, lesson: Lesson, given: Answer | None) -> Answer | None:
        """The lesson and its question. Returns the prediction: what was given, else what is typed, None if none."""
        self._say(f"[bold]Lesson {lesson.number}: {lesson.title}[/bold]", f"[dim]{lesson.runs_on}[/dim]", "")
        self._pose(lesson.question)
        prediction = given if given is not None else self._ask(lesson.question)
        self._say("", "Running …")
        return prediction

    def reveal(self, lesson: Lesson, found: Measured, prediction: Answer | None) -> None:
        """What was measured beside what was predicted, why, and whose code it was."""
        self._plain("", *(f"  {line}" for line in found.story), *[""] * bool(found.story))
        self.console.print(_grid(found.counts))
        if found.observed:
            whose = MODELLED if lesson.modelled else "In this run, on this machine:"
            self._say("", f"[dim]{whose}[/dim]")
            self.console.print(_grid(found.observed))
        self._verdict(lesson.question, found.answer, prediction)
        self._plain("", *found.why, "", "In the code:")
        self._plain(*(f"  src/headway/{code.file}  {code.function}" for code in lesson.code), "")

    def close(self, number: int, asked: ClosingQuestion) -> Answer | None:
        """One of the closing questions, with its answer. Returns the prediction."""
        self._say(f"[bold]Question {number}[/bold]")
        self._pose(asked.question)
        prediction = self._ask(asked.question)
        self._verdict(asked.question, asked.answer, prediction)
        self._plain(asked.why, "")
        return prediction

    def _pose(self, question: Question) -> None:
        self._plain(question.text, *(f"  {letter}: {words}" for letter, words in question.options.items()))

    def _ask(self, question: Question) -> Answer | None:
        """Asks until the answer means something; Enter alone skips, and so does the end of the input."""
        while self.asks:
            try:
                text = self.console.input(f"Your prediction ({question.wants}; Enter skips): ", markup=False)
            except EOFError:
                return None
            if not text.strip():
                return None
            try:
                return question.read(text)
            except ValueError as error:
                self._plain(f"{error}.")
        return None

    def _verdict(self, question: Question, answer: Answer, prediction: Answer | None) -> None:
        self._plain("", f"Measured: {question.words(answer)}.")
        if prediction is not None:
            right = "right" if prediction == answer else "wrong"
            self._plain(f"You predicted: {question.words(prediction)}: {right}.")

    def _say(self, *lines: str) -> None:
        for line in lines:
            self.console.print(line, soft_wrap=True)

    def _plain(self, *lines: str) -> None:
        for line in lines:
            self.console.print(line, soft_wrap=True, markup=False)


def _list(console: Console, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"lessons": [{"lesson": each.number, "title": each.title} for each in LESSONS]}, indent=2))
    for each in LESSONS:
        console.print(f"{each.number}  {each.title}", soft_wrap=True)
    console.print(
        "\nheadway lesson N runs one; headway lesson --all runs all, and ends with five questions.",
        soft_wrap=True,
    )
    return 0


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("")
    names = columns(table)
    for name in names:
        numbers = all(isinstance(row[name], int | float) for row in table.values())
        grid.add_column(words(name), justify="right" if numbers else "left", overflow="fold")
    for row, cells in table.items():
        grid.add_row(words(row), *(shown(cells[name]) for name in names))
    return grid


def _question(question: Question, prediction: Answer | None, answer: Answer) -> dict[str, Any]:
    return {
        "question": question.text,
        "options": question.options,
        "unit": question.unit,
        "prediction": prediction,
        "right": None if prediction is None else prediction == answer,
        "answer": answer,
    }


def _lesson_view(lesson: Lesson, found: Measured, prediction: Answer | None) -> dict[str, Any]:
    return {
        "lesson": lesson.number,
        "title": lesson.title,
        "runs_on": lesson.runs_on,
        **_question(lesson.question, prediction, found.answer),
        "measured": {"counts": found.counts, "observed": found.observed, "story": found.story},
        "why": found.why,
        "code": [{"file": f"src/headway/{code.file}", "function": code.function} for code in lesson.code],
    }


def _question_view(asked: ClosingQuestion, prediction: Answer | None) -> dict[str, Any]:
    return {**_question(asked.question, prediction, asked.answer), "why": asked.why}


def _write(
    console: Console, folder: Path, measured: list[tuple[Lesson, Measured]], asked: list[ClosingQuestion]
) -> None:
    from headway.bench.machine import machine

    told = machine()
    name = f"{told['cpu']}, {told['cores']} cores, at a load of {told['load_1min']}, {told['date']}"
    for path in write_pages(folder, measured, asked, name):
        console.print(f"Written: {path}", soft_wrap=True, markup=False)
