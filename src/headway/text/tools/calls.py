"""Tool calls in an answer that arrives in pieces: which of it is text, and which are calls.

Every decision is made at one character, from what stands before it, so the pieces' borders do not matter. Whatever
could still be the beginning of a call is held back, and no more than that. A call begins when the function's name and
the opening brace of its arguments are there; what breaks off before is text. From then on it remains a call: its
arguments come as they are written, as far as they are JSON, and what cannot belong to them is text again. So nothing
is lost but the format's own markers, and whitespace around calls.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from headway.text.grammar.jsontext import JsonObject
from headway.text.tools.format import ToolFormat, bare
from headway.text.tools.reading import Head, Mismatch, Reading, call, end_of_object, ending, opening


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of the answer's content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of the function `name`; `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """More of the arguments' JSON text."""

    index: int
    text: str


T = TypeVar("T")
ToolEvent = TextPiece | CallBegun | ArgumentsPiece


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Follows one answer. Only functions in `names` are called; a call of another is text. At most `most` calls are
    taken, further ones are text; None means any number. `forced` calls are all that the answer may hold (its grammar
    says so), so nothing of it is content."""

    def __init__(
        self,
        format: ToolFormat,
        names: Collection[str],
        most: int | None = None,
        new_id: Callable[[], str] = _new_id,
        *,
        forced: bool = False,
    ) -> None:
        self._format = format
        self._names = tuple(names)
        self._most = most
        self._forced = forced
        self._new_id = new_id
        beginning = bare(format.before) + ("{" if format.keys else "")
        self._begins = beginning[0]
        # Punctuation alone is no marker: such a call must be the first thing that an answer says.
        self._only_first = not any(character.isalpha() for character in beginning)
        self.calls = 0
        self._events: list[ToolEvent] = []
        self._reading: Reading[Any] | None = None
        self._read = ""  # what `_reading` was given
        self._then: Callable[[Any], None] = self._begin
        self._opens = False  # `_reading` began in the midst of text, not behind a call
        self._space = ""  # held back: it is dropped if a call follows or precedes it
        self._said = False  # content since the last call, or since the beginning
        self._arguments: JsonObject | None = None
        self._broken = False

    @property
    def whole(self) -> bool:
        """Whether the arguments of every call so far are complete."""
        return self._arguments is None and not self._broken

    def push(self, text: str) -> list[ToolEvent]:
        """Add a piece; what is certain now."""
        for character in text:
            self._add(character)
        return self._taken()

    def finish(self, *, cut: bool = False) -> list[ToolEvent]:
        """The answer is over: what was held back. A marker that was to close a call and is cut off belongs to it.
        `cut`: the model would have gone on."""
        while self._reading is not None and not (self._closes or (cut and self._calls)):
            self._abandon()
        if self._reading is not None:
            self._space = ""
        if self._space and (self._said or not self.calls):
            self._say(self._space)
        self._space, self._read, self._reading = "", "", None
        return self._taken()

    @property
    def _closes(self) -> bool:
        """What is read can only end a call, or part it from the next one."""
        return self._then in (self._object_closed, self._closed)

    @property
    def _calls(self) -> bool:
        """What is read is a call as far as it goes: its marker is whole, or it follows another call."""
        marked = not self._only_first and bare(self._read).startswith(bare(self._format.before))
        return marked or not self._opens or bool(self.calls and not self._said)

    # -- one character ---------------------------------------------------------------------------------------

    def _add(self, character: str) -> None:
        if self._arguments is not None:
            self._argue(character)
        elif self._reading is not None:
            self._read_on(character)
        elif character.isspace():
            self._space += character
        elif character == self._begins and self._may_begin():
            self._look_for(opening(self._format, self._names), self._begin)
            self._opens = True
            self._read_on(character)
        else:
            self._speak(character)

    def _may_go_on(self) -> bool:
        return self._most is None or self.calls < self._most

    def _may_begin(self) -> bool:
        return self._may_go_on() and not (self._only_first and (self._said or self.calls))

    def _look_for(self, reading: Reading[T], then: Callable[[T], None]) -> None:
        """Read on with `reading`; then do `then` with what it found. If it differs, all of it is text."""
        self._reading, self._then, self._read, self._opens = reading, then, "", False
        try:
            next(reading)
        except StopIteration as found:
            self._reading = None
            then(found.value)

    def _read_on(self, character: str) -> None:
        assert self._reading is not None
        self._read += character
        try:
            self._reading.send(character)
        except StopIteration as found:
            self._reading, self._read = None, ""
            self._then(found.value)
        except Mismatch:
            self._abandon()

    def _abandon(self) -> None:
        """It was not what was looked for: what was read is looked at anew. In the midst of text its first character
        is no beginning, so it is text."""
        read, self._read, self._reading = self._read, "", None
        if self._opens:
            self._speak(read[0])
            read = read[1:]
        for character in read:
            self._add(character)

    def _argue(self, character: str) -> None:
        """One character of a call's arguments."""
        assert self._arguments is not None
        follows = self._arguments.push(character)
        if follows == "wrong":
            self._arguments, self._broken = None, True
            self._add(character)
            return
        self._tell(ArgumentsPiece(self.calls - 1, character))
        if follows == "done":
            self._arguments = None
            if self._format.keys is None:
                self._look_for(ending(self._format, more=self._may_go_on()), self._closed)
            else:
                self._look_for(end_of_object(), self._object_closed)

    # -- what was found --------------------------------------------------------------------------------------

    def _begin(self, head: Head) -> None:
        self._space, self._said = "", False
        self._tell(CallBegun(self.calls, self._new_id(), head.name))
        self._tell(ArgumentsPiece(self.calls, head.arguments))
        self.calls += 1
        if head.arguments == "{":
            self._arguments = JsonObject()
            self._arguments.push("{")
        else:  # they stood before the name, and the object is closed
            self._object_closed("")

    def _object_closed(self, found: str) -> None:
        self._look_for(ending(self._format, more=self._may_go_on()), self._closed)

    def _closed(self, found: str) -> None:
        """A call is over; `found` is the literal that said so."""
        if (
            self._format.between is not None
            and not self._format.each_enclosed
            and found == bare(self._format.between)
        ):
            self._look_for(call(self._format, self._names), self._begin)

    def _speak(self, character: str) -> None:
        self._say(self._space + character)
        self._space, self._said = "", True

    def _say(self, text: str) -> None:
        if not self._forced:
            self._tell(TextPiece(text))

    def _tell(self, event: ToolEvent) -> None:
        """Neighbours of one kind are one event."""
        last = self._events[-1] if self._events else None
        if isinstance(event, TextPiece) and isinstance(last, TextPiece):
            self._events[-1] = TextPiece(last.text + event.text)
        elif isinstance(event, ArgumentsPiece) and isinstance(last, ArgumentsPiece) and last.index == event.index:
            self._events[-1] = ArgumentsPiece(last.index, last.text + event.text)
        else:
            self._events.append(event)

    def _taken(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events
