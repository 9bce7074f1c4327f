"""One JSON object in a text that arrives in pieces: where it ends, or ceases to be one."""

from __future__ import annotations

from typing import Literal

JsonProgress = Literal["more", "done", "wrong"]

_SPACE = " \t\n\r"
_WORDS = {"t": "true", "f": "false", "n": "null"}
_DIGITS = "0123456789"
#: State of a number → (what may follow, the state then) …
_NUMBER: dict[str, tuple[tuple[str, str], ...]] = {
    "-": (("0", "0"), ("123456789", "int")),
    "0": ((".", "."), ("eE", "e")),
    "int": ((_DIGITS, "int"), (".", "."), ("eE", "e")),
    ".": ((_DIGITS, "fraction"),),
    "fraction": ((_DIGITS, "fraction"), ("eE", "e")),
    "e": (("+-", "sign"), (_DIGITS, "exponent")),
    "sign": ((_DIGITS, "exponent"),),
    "exponent": ((_DIGITS, "exponent"),),
}
#: … and the states at which it may end.
_WHOLE_NUMBER = frozenset({"0", "int", "fraction", "exponent"})


class JsonObject:
    """Follows RFC 8259 character by character, in a stack as deep as the value is nested.

    One liberty: control characters may stand in strings as they are, since models write line breaks so.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._state = "object"
        self._rest = ""

    def push(self, character: str) -> JsonProgress:
        """Add a character: whether more must follow, the object is complete with it, or it cannot be part of one.
        After "done" and "wrong" nothing may be added."""
        if not self._accepts(character):
            return "wrong"
        return "more" if self._stack else "done"

    def _accepts(self, c: str) -> bool:
        if self._state in _NUMBER:
            for characters, state in _NUMBER[self._state]:
                if c in characters:
                    self._state = state
                    return True
            if self._state not in _WHOLE_NUMBER:
                return False
            self._state = "after"
        if self._rest:
            return self._word(c)
        if self._state.startswith("string"):
            return self._string(c)
        return (c in _SPACE and bool(self._stack)) or self._structure(c)

    def _structure(self, c: str) -> bool:
        """A character between values."""
        state = self._state
        if c == "}" and self._stack[-1:] == ["{"] and state in ("first key", "after"):
            return self._close()
        if c == "]" and self._stack[-1:] == ["["] and state in ("first item", "after"):
            return self._close()
        if state == "object":
            return c == "{" and self._open(c)
        if state in ("first key", "key"):
            self._state = "string of key"
            return c == '"'
        if state == "colon":
            self._state = "value"
            return c == ":"
        if state == "after":
            self._state = "key" if self._stack[-1] == "{" else "value"
            return c == ","
        return self._value(c)

    def _value(self, c: str) -> bool:
        if c in "{[":
            return self._open(c)
        if c == '"':
            self._state = "string"
        elif c in _WORDS:
            self._rest = _WORDS[c][1:]
        elif c == "-" or c == "0":
            self._state = c
        elif c in _DIGITS:
            self._state = "int"
        else:
            return False
        return True

    def _open(self, c: str) -> bool:
        self._stack.append(c)
        self._state = "first key" if c == "{" else "first item"
        return True

    def _close(self) -> bool:
        self._stack.pop()
        self._state = "after"
        return True

    def _word(self, c: str) -> bool:
        """`true`, `false`, `null`, and the four digits of an escaped character."""
        fits = c in "0123456789abcdefABCDEF" if self._rest[0] == "h" else c == self._rest[0]
        self._rest = self._rest[1:]
        if not self._rest and not self._state.startswith("string"):
            self._state = "after"
        return fits

    def _string(self, c: str) -> bool:
        if self._state.endswith("\\"):
            self._state = self._state[:-1]
            self._rest = "hhhh" if c == "u" else ""
            return c in '"\\/bfnrtu'
        if c == "\\":
            self._state += "\\"
        elif c == '"':
            self._state = "colon" if self._state == "string of key" else "after"
        return True
