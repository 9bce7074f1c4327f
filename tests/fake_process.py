"""A server process over fake replica processes, and a client that can leave whenever it likes."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from fake_replica import VOCABULARY
from headway.compute.fake import expected_tokens
from headway.core.plan import Draw, Sampling
from headway.text.tokenizer import Tokenizer
from serving import MODEL, Server

_PROGRAM = Path(__file__).with_name("fake_replica.py")


@contextlib.contextmanager
def fake_process(folder: Path, *options: str, step_ms: int = 0, kind: str = "serve") -> Iterator[Server]:
    """A whole server on a free port, ended with the block. `step_ms` is how long a step takes; the `kind` "restless"
    replaces a replica at once."""
    log = folder / "serve.log"
    pace = ("--threads", f"{step_ms}") if step_ms else ()
    words = [sys.executable, str(_PROGRAM), kind, "--port", "0", *pace, *options]
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as running:
        try:
            server = Server(running, log)
            yield server
            server.http.close()
        finally:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed
                running.wait(20)
            running.kill()


class Client:
    """One request on a socket of its own: it is sent when this returns, and nothing of its answer is read yet."""

    def __init__(
        self, url: str, prompt: str | list[Any], *, id: str | None = None, receive_bytes: int = 0, **fields: Any
    ) -> None:
        to = httpx.URL(url)
        self._connection = socket.socket()
        weakref.finalize(self, self._connection.close)
        if receive_bytes:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._connection.connect((to.host, to.port))
        self._data = b""
        body = json.dumps(
            {"model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": None} | fields
        )
        name = "" if id is None else f"x-request-id: {id}\r\n"
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{name}"
        self._connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def leave(self) -> None:
        self._connection.close()

    def end(self) -> Client:
        """Itself, once everything is read."""
        if self._connection.fileno() < 0:
            return self
        self._connection.settimeout(30)
        with contextlib.suppress(ConnectionResetError):  # the server gave up on us: what came before it counts
            while piece := self._connection.recv(1 << 16):
                self._data += piece
        self._connection.close()
        return self

    @property
    def status(self) -> int:
        """0 when no answer came at all."""
        return int(self._data.split(b" ", 2)[1]) if self._data else 0

    @property
    def headers(self) -> dict[str, str]:
        lines = self._data.partition(b"\r\n\r\n")[0].decode().lower().splitlines()[1:]
        return dict(line.split(": ", 1) for line in lines)

    @property
    def events(self) -> list[Any]:
        """A stream's data."""
        data = re.findall(rb"^data: (.*)\n$", self._data.replace(b"\r", b""), re.MULTILINE)
        return [one.decode() if one == b"[DONE]" else json.loads(one) for one in data]

    @property
    def json(self) -> Any:
        """What is not streamed."""
        return json.loads(self._data.partition(b"\r\n\r\n")[2])

    @property
    def error(self) -> str | None:
        """The error's code, of a stream or not; None: there is none, and the answer is complete."""
        if self.status != 200:
            return None if not self.status else str(self.json["error"]["code"]) if b"{" in self._data else "none"
        if b"text/event-stream" not in self._data:
            return None
        last = self.events[-1]
        return None if last == "[DONE]" else str(last["error"]["code"])

    @property
    def texts(self) -> dict[int, str]:
        """The answers by the index of their choice."""
        texts: dict[int, str] = {}
        streamed = b"text/event-stream" in self._data
        for row in self.events if streamed else [self.json]:
            for choice in row["choices"] if isinstance(row, dict) and "choices" in row else ():
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        return texts


def said(tokenizer: Tokenizer, prompt: str | list[Any], /, *, max_tokens: int, **fields: Any) -> dict[int, str]:
    """What each choice of an answer must say, by the fake executor's own rule; `fields` are a body's, with a seed."""
    prompts = [tokenizer.encode(prompt)] if isinstance(prompt, str) else prompt
    texts: list[str] = []
    for place, tokens in enumerate(prompts if isinstance(prompts[0], list) else [prompts]):
        sampling = Sampling(temperature=float(fields.get("temperature", 0)), seed=fields["seed"] + place)
        draws = [Draw(index, 0, sampling) for index in range(fields.get("n", 1))]
        texts += [tokenizer.decode(expected_tokens(tokens, draw, max_tokens, VOCABULARY)) for draw in draws]
    return dict(enumerate(texts))
