"""The lessons as pages to read (docs/lessons/). What is above `ONCE` is the same on every machine."""

from __future__ import annotations

import os
from pathlib import Path

from headway.core.errors import ConfigError
from headway.lessons.lesson import ClosingQuestion, Lesson, Measured, Question, Table

#: The heading under which stands what another run would show differently.
ONCE = "## Measured once"
MODELLED = "Time is modelled here, at the costs stated above:"
NOTE = "Measured once, on {machine}. Another machine shows other numbers; no test compares these."
QUESTIONS = "questions.md"
_QUESTIONS_TITLE = "# Five questions"


def page_name(lesson: Lesson) -> str:
    return f"{lesson.number}-{lesson.slug}.md"


def _title(lesson: Lesson) -> str:
    return f"# Lesson {lesson.number}"


def check_pages(folder: Path, lessons: tuple[Lesson, ...], *, with_questions: bool) -> None:
    """Raises ConfigError, before anything is measured, if the pages could not be written into `folder`, or would
    replace files that are not such pages."""
    titles = {page_name(lesson): _title(lesson) for lesson in lessons}
    if with_questions:
        titles[QUESTIONS] = _QUESTIONS_TITLE
    above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not above.is_dir():
        raise ConfigError("--pages", f"{above} is not a folder")
    if not os.access(above, os.W_OK):
        raise ConfigError("--pages", f"the folder {above} is not writable")
    for name, title in titles.items():
        page = folder / name
        if page.exists() and not (page.is_file() and page.read_bytes().startswith(title.encode())):
            raise ConfigError("--pages", f"{page} is not a lesson page and is left as it is; choose another folder")


def lesson_page(lesson: Lesson, measured: Measured, machine: str) -> str:
    """The page of one lesson, in Markdown. `machine` names where `measured` was measured."""
    parts = [
        f"{_title(lesson)}: {lesson.title}",
        f"{lesson.runs_on} `headway lesson {lesson.number}` asks you first and runs it in front of you.",
        "## Predict",
        *_question(lesson.question),
        "## What happened",
        *(["\n".join(["```", *measured.story, "```"])] if measured.story else []),
        markdown_table(measured.counts),
        *([MODELLED, markdown_table(measured.observed)] if lesson.modelled and measured.observed else []),
        f"The answer: **{lesson.question.words(measured.answer)}**.",
        "## Why",
        *measured.why,
        "## In the code",
        "\n".join(f"- [`{c.file}`](../../src/headway/{c.file}), `{c.function}`" for c in lesson.code),
    ]
    if measured.observed and not lesson.modelled:
        parts += [ONCE, NOTE.format(machine=machine), markdown_table(measured.observed)]
    return "\n\n".join(parts) + "\n"


def questions_page(asked: list[ClosingQuestion]) -> str:
    """The five questions, answered."""
    parts = [
        _QUESTIONS_TITLE,
        "`headway lesson --all` runs all lessons and ends with these. Answer each before you read on.",
    ]
    for number, each in enumerate(asked, 1):
        parts += [f"## {number}. {each.question.text}"]
        parts += ["\n".join(f"- {letter}: {words}" for letter, words in each.question.options.items())]
        parts += [f"**{each.question.words(each.answer)}**. {each.why}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_pages(
    folder: Path, measured: list[tuple[Lesson, Measured]], asked: list[ClosingQuestion], machine: str
) -> list[Path]:
    """Writes the pages of these lessons, and of the questions if there are any, into `folder`. Returns the files.
    Raises ConfigError if they cannot be written."""
    pages = {page_name(lesson): lesson_page(lesson, found, machine) for lesson, found in measured}
    if asked:
        pages[QUESTIONS] = questions_page(asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--pages", f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return [folder / name for name in pages]


def words(key: str) -> str:
    """A table's name as words."""
    return key.replace("_", " ").replace(" ms", ", ms").replace(" mib", ", MiB")


def shown(value: object) -> str:
    """A table's value: numbers with separators, lists with commas."""
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def columns(table: Table) -> list[str]:
    return list(next(iter(table.values())))


def markdown_table(table: Table) -> str:
    names = columns(table)
    lines = [
        "| | " + " | ".join(map(words, names)) + " |",
        "|---" * (len(names) + 1) + "|",
        *(f"| {words(row)} | " + " | ".join(shown(cells[name]) for name in names) + " |"
          for row, cells in table.items()),
    ]  # fmt: skip
    return "\n".join(lines)


def _question(question: Question) -> list[str]:
    options = "\n".join(f"- {letter}: {text}" for letter, text in question.options.items())
    return [question.text, options] if options else [question.text]
