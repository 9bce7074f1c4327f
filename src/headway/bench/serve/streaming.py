"""One streamed request over a connection of its own, and when each part of the answer arrived.

HTTP/1.1 by hand: at a thousand chunks per second a general client's own time would stand in the figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headway.bench.serve.asks import Ask
from headway.bench.serve.figures import Answer, Failure

_LINE_LIMIT = 16 << 20


@dataclass(frozen=True)
class Target:
    """Where requests go, and what all of them have in common. `url` is the server's, without /v1."""

    url: str
    model: str
    chat: bool
    api_key: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0

    @property
    def path(self) -> str:
        return urlsplit(self.url).path.rstrip("/") + ("/v1/chat/completions" if self.chat else "/v1/completions")

    def body(self, ask: Ask) -> dict[str, Any]:
        """As OpenAI's clients send it."""
        if self.chat:
            words = ask.prompt
            content = {"messages": [{"role": "user", "content": words}] if isinstance(words, str) else words}
        else:
            content = {"prompt": ask.prompt}  # type: ignore[dict-item]
        common = {"max_tokens": ask.max_tokens, "stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model} | content | common | self.fields


class _Refused(Exception):
    """The server's answer is an error, in its own words."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta = msgspec.field(default_factory=_Delta)

    @property
    def says_something(self) -> bool:
        delta = self.delta
        return bool(self.text or delta.content or delta.tool_calls or delta.reasoning_content or delta.reasoning)


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


async def ask_once(target: Target, ask: Ask, due_s: float) -> Answer | Failure:
    """Sends the request and reads its answer to the end; times are of `time.perf_counter`. Raises nothing that a
    server or a network can cause: that is a Failure."""
    sent_s = time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout_s):
            return await _answer(target, ask, due_s, sent_s)
    except TimeoutError:
        why = f"no whole answer within {target.timeout_s:g} s"
    except _Refused as error:
        why = str(error)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:  # a broken answer is a ValueError
        why = f"the connection broke: {error or type(error).__name__}"
    return Failure(due_s, sent_s, time.perf_counter(), why)


async def _answer(target: Target, ask: Ask, due_s: float, sent_s: float) -> Answer:
    parts = urlsplit(target.url)
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if secure else 80), ssl=secure or None, limit=_LINE_LIMIT
    )
    try:
        writer.write(_request(target, parts.netloc, msgspec.json.encode(target.body(ask))))
        await writer.drain()
        status, headers = await _head(reader)
        body = _chunked(reader) if headers.get("transfer-encoding", "").lower() == "chunked" else _plain(reader)
        if status != 200:
            raise _Refused(_words(status, b"".join([part async for part in body])))
        return await _read(body, due_s, sent_s)
    finally:
        writer.close()


def _request(target: Target, host: str, body: bytes) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        "accept: text/event-stream",
        "connection: close",
        f"content-length: {len(body)}",
    ]
    if target.api_key is not None:
        lines.append(f"authorization: Bearer {target.api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"{first[:80]!r} is not HTTP")
    pairs = (line.partition(":") for line in lines if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """RFC 9112, 7.1."""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _plain(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part


async def _read(body: AsyncIterator[bytes], due_s: float, sent_s: float) -> Answer:
    chunks_s: list[float] = []
    ended_s, usage, done, kept = sent_s, _Usage(), False, b""
    async for part in body:
        now_s = time.perf_counter()
        *lines, kept = (kept + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if (data := line[5:].strip()) == b"[DONE]":
                done = True
                continue
            chunk = _decode(data)
            if chunk.error is not None:
                raise _Refused(_said(chunk.error))
            usage = chunk.usage or usage
            if chunk.choices:
                ended_s = now_s
            if any(choice.says_something for choice in chunk.choices):
                chunks_s.append(now_s)
    if not done:
        raise _Refused("the stream ended without [DONE]")
    counted = usage.completion_tokens is not None
    tokens = len(chunks_s) if usage.completion_tokens is None else usage.completion_tokens
    return Answer(due_s, sent_s, tuple(chunks_s), ended_s, tokens, usage.prompt_tokens, counted)


def _words(status: int, body: bytes) -> str:
    try:
        return f"{status}: {_said(msgspec.json.decode(body)['error'])}"
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"{status}: {body[:120].decode(errors='replace')}"


def _said(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)
