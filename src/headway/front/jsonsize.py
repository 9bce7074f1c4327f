"""How much there is to decode in a body of JSON, counted while it arrives.

Decoding holds the event loop from the first byte to the last, in whichever thread it is done. A text of megabytes
takes a few hundredths of a second; as many numbers, lists or names take most of one. So these are bounded, far beyond
what a request that can be served has.
"""

from __future__ import annotations

import re

from starlette.types import Message, Receive

from headway.front.limits import ServeLimits
from headway.front.refusals import Refusal

#: Besides token ids, of which no more than --max-waiting-positions can be served.
_OTHER_VALUES = 1 << 16
#: A conversation may have tens of thousands of messages, each an object of two or three members.
_MOST_NESTED = 1 << 17
_MOST_NAMES = 1 << 18
#: Numbers of more digits than these are slow to read (it takes the square of their length), and nobody needs many.
_DIGITS = 32
_MOST_DIGITS_BEYOND = 1 << 16
#: So many bytes of a body are never too much, whatever they are.
_FEW_BYTES = min(_OTHER_VALUES, _MOST_NESTED, _MOST_NAMES, _MOST_DIGITS_BEYOND)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{%d,}" % (_DIGITS + 1))


class JsonSize:
    """Counts what stands outside of strings. Right for JSON; in what is none, up to the first byte that is wrong, and
    decoding ends there."""

    def __init__(self, most_values: int) -> None:
        self._most = {
            "values": most_values,
            "lists and objects": _MOST_NESTED,
            "members of objects": _MOST_NAMES,
            f"digits in numbers of more than {_DIGITS}": _MOST_DIGITS_BEYOND,
        }
        self.counts = dict.fromkeys(self._most, 0)
        self._in_string = False
        self._escape = b""
        self._tail = b""

    def add(self, data: bytes) -> None:
        """The next bytes of the body. Raises Refusal (413) once there is too much."""
        outside = self._outside(data)
        nested = outside.count(b"[") + outside.count(b"{")
        found = (outside.count(b",") + nested, nested, outside.count(b":"), self._long_digits(outside))
        for (what, most), more in zip(self._most.items(), found, strict=True):
            self.counts[what] += more
            if self.counts[what] > most:
                raise _too_much(f"the body has more than {most} {what}")

    def _long_digits(self, outside: bytes) -> int:
        """Digits after the first `_DIGITS` of their number, which may have begun before."""
        joined = self._tail + outside
        self._tail = joined[-_DIGITS:]
        return sum(len(number) - _DIGITS for number in _LONG_NUMBER.findall(joined))

    def _outside(self, data: bytes) -> bytes:
        data = self._escape + data
        self._escape = b""
        if b"\\" in data:
            data = _ESCAPED.sub(b"", data)
            if data.endswith(b"\\"):  # what it escapes comes with the next bytes
                data, self._escape = data[:-1], b"\\"
        parts = data.split(b'"')
        outside = b'"'.join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        return outside


class MeasuredBody:
    """An exchange's `receive`: raises Refusal (413) when its body is too much to decode."""

    def __init__(self, receive: Receive, limits: ServeLimits) -> None:
        self._receive = receive
        self._most_values = limits.max_waiting_positions + _OTHER_VALUES
        self._beginning = bytearray()
        self._size: JsonSize | None = None  # none yet where it is short

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._measure(message.get("body", b""))
        return message

    def _measure(self, data: bytes) -> None:
        if self._size is not None:
            self._size.add(data)
            return
        self._beginning += data
        if len(self._beginning) > _FEW_BYTES:
            self._size = JsonSize(self._most_values)
            self._size.add(bytes(self._beginning))
            self._beginning.clear()


def _too_much(text: str) -> Refusal:
    return Refusal(413, f"{text}, which is the limit", code="body_too_large", param="body")
