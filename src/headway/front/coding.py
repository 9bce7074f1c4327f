"""Bodies that come compressed (`content-encoding: gzip` or `deflate`), inflated piece by piece within their bound."""

from __future__ import annotations

import asyncio
import zlib

from starlette.types import Message, Receive, Scope

from headway.core.errors import InvalidRequest
from headway.front.limits import ServeLimits, too_large
from headway.front.refusals import Refusal

#: What zlib is told of each coding; `x-gzip` is an old name that RFC 9110 keeps.
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": zlib.MAX_WBITS}
_RAW = -zlib.MAX_WBITS
#: So much is inflated at a time: a millisecond, then others have their turn.
_PIECE_BYTES = 256 << 10


def body_coding(scope: Scope) -> str | Refusal | None:
    """How the body is compressed; None if it is not, or there is none. A Refusal (415) for what is not understood."""
    names = [name for key, value in scope["headers"] if key == b"content-encoding" for name in _names(value)]
    if not names or not _has_body(scope):
        return None
    if len(names) > 1:
        text = f"content-encoding is {', '.join(names)}; a body may be compressed once, with gzip or deflate"
        return Refusal(400, text, code="invalid_value", param="content-encoding")
    if names[0] not in _WINDOW:
        text = f"content-encoding is {names[0]!r}; gzip, deflate and identity are supported"
        headers = {"accept-encoding": "gzip, deflate"}
        return Refusal(415, text, code="unsupported_content_encoding", param="content-encoding", headers=headers)
    return names[0]


def _names(value: bytes) -> list[str]:
    names = (name.strip().lower() for name in value.decode("latin-1").split(","))
    return [name for name in names if name not in ("", "identity")]


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""


class InflatedBody:
    """An exchange's `receive` for a compressed body. Raises Refusal (413) as soon as more has come out than a body
    may have, and InvalidRequest for a stream that is corrupt, cut off, or followed by something else."""

    def __init__(self, receive: Receive, coding: str, limits: ServeLimits) -> None:
        self._receive = receive
        self._coding = coding
        self._limits = limits
        self._stream = zlib.decompressobj(_WINDOW[coding])
        self._begun = self._complete = False
        self._more = True
        self._left = b""  # came, and was not inflated yet
        self._full = False  # the last piece was as long as may be, so more may lie ready
        self._bytes = 0

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._begun and (self._left or self._full):
            await asyncio.sleep(0)
        else:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._left, self._more = self._left + message.get("body", b""), message.get("more_body", False)
        piece = self._inflated() if self._begun or self._begin() else b""
        self._bytes += len(piece)
        if self._bytes > self._limits.max_body_bytes:
            raise too_large(f"at least {self._bytes}", self._limits, "once inflated")
        self._complete = not (self._more or self._left or self._full)
        if self._complete and self._begun and not self._stream.eof:
            raise self._wrong("it is cut off")
        return {"type": "http.request", "body": piece, "more_body": not self._complete}

    def _begin(self) -> bool:
        """Whether there is enough to begin with: two bytes tell the format that `deflate` stands for from the bare
        stream that some send under that name."""
        if len(self._left) < 2 and (self._more or not self._left):
            return False
        zlib_format = self._left[0] & 15 == 8 and int.from_bytes(self._left[:2]) % 31 == 0
        if self._coding == "deflate" and not zlib_format:
            self._stream = zlib.decompressobj(_RAW)
        self._begun = True
        return True

    def _inflated(self) -> bytes:
        """The next piece."""
        if self._stream.eof and self._left:
            raise self._wrong("something follows its end")
        try:
            piece = self._stream.decompress(self._left, _PIECE_BYTES)
        except zlib.error as error:
            raise self._wrong(str(error)) from error
        self._left = self._stream.unconsumed_tail or self._stream.unused_data
        self._full = len(piece) == _PIECE_BYTES
        return piece

    def _wrong(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            "body", f"the body cannot be decompressed as {self._coding}, its content-encoding: {what}"
        )
