"""What the page says of requests, in the words of `story/tell/sentences.py`: told for the records that it draws, or
put into a page with a recorded log, for every event of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from headway.core.events import AnyEvent
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import request_views
from headway.story.tell.sentences import line, tell
from headway.story.tell.views import RequestView

#: Rows that one question may be about.
MOST_ROWS = 200


class Question(msgspec.Struct, frozen=True):
    """Records as the page has them: those of its rows, and the chosen one."""

    rows: Annotated[tuple[RequestView, ...], msgspec.Meta(max_length=MOST_ROWS)]
    chosen: RequestView | None = None


class Answer(msgspec.Struct, frozen=True):
    """A line for each row, and the sentences of the chosen record."""

    rows: tuple[str, ...]
    chosen: tuple[str, ...]


def answer(question: Question) -> Answer:
    chosen = tell(question.chosen) if question.chosen is not None else ()
    return Answer(tuple(map(line, question.rows)), tuple(chosen))


#: From which event on (counted from 1) a line, and sentences, are true; both by their places in `Recorded.sentences`.
Since: TypeAlias = tuple[int, int, tuple[int, ...]]


class Recorded(msgspec.Struct, frozen=True):
    """All that is said in the course of a log, each sentence once, and of each request what is true of it when."""

    sentences: tuple[str, ...]
    lives: dict[str, list[Since]]


def recorded(events: Iterable[AnyEvent], *, delivers: bool) -> Recorded:
    """The words of everyone alive just after each event, so that what an event begins is named. `delivers` as in
    `Story`."""
    story = Story(remembered=1 << 20, delivers=delivers)
    places: dict[str, int] = {}
    lives: dict[str, list[Since]] = {}
    for number, event in enumerate(events, 1):
        story.fold(event)
        about: str = getattr(event, "id", "")  # only an event about a request itself ends it
        ended = [story.ended[about]] if about in story.ended and about not in story.live else []
        for view in request_views(story, [*story.live.values(), *ended], event.at + 1):
            first, *rest = (places.setdefault(text, len(places)) for text in (line(view), *tell(view)))
            told = lives.setdefault(view.id, [])
            if not told or told[-1][1:] != (first, tuple(rest)):
                told.append((number, first, tuple(rest)))
    return Recorded(tuple(places), lives)
