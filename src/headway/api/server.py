"""The HTTP server under the application: its socket, its log, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import traceback
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn

from headway.api.app import make_app
from headway.core.collecting import spare_what_is_loaded
from headway.core.errors import ConfigError
from headway.front.connection import connections
from headway.front.guard import Guard
from headway.front.limits import ServeLimits
from headway.front.state import Front

if sys.platform != "win32":
    import resource

#: How long answers may still grow after the server was told to stop, and how long their ends may take.
_DRAIN_S = 8
_LAST_WORDS_S = 2
#: What the kernel holds for a client that does not read (Linux doubles it); without a bound it would be megabytes.
_SEND_BUFFER_BYTES = 128 << 10
_LOOK_S = 0.05
#: Files that a server opens besides connections: its log, its replica's sockets, models while they load.
_OTHER_FILES = 64


def listen(host: str, port: int) -> socket.socket:
    """Take the port first of all: an address that cannot be had should not cost a minute of loading. Raises
    ConfigError.

    asyncio turns Nagle's algorithm off only where the protocol is named: without it small answers take 40 ms."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(
            "--host", f"{host}: this kind of address is not supported on this machine: {error.strerror}"
        ) from error
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)  # connections inherit it
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (TypeError, ValueError) as error:  # a name that no name service can be asked for
        listener.close()
        raise ConfigError("--host", f"{host!r} is not an address or a host name: {error}") from error
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            text = f"{host} is not an address of this machine: {reason}; give 127.0.0.1, or 0.0.0.0 for all of them"
            raise ConfigError("--host", text) from error
        raise ConfigError("--port", f"cannot listen on {host}:{port}: {reason}") from error
    return listener


class Server(uvicorn.Server):
    """Serves `front` until a signal: then answers may end within a bound (see `shutdown`), and a second signal stops
    at once."""

    def __init__(self, front: Front, guard: Guard, *, log_prompts: bool = False) -> None:
        config = uvicorn.Config(
            make_app(front, guard),
            http=connections(_within_open_files(front.limits)),  # type: ignore[arg-type]
            timeout_keep_alive=front.limits.keep_alive_seconds,  # type: ignore[arg-type]
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_DRAIN_S + _LAST_WORDS_S,
            lifespan="on",
        )
        super().__init__(config)
        self._front = front
        self._log_prompts = log_prompts
        self._second: int | None = None
        log = logging.getLogger("uvicorn.error")
        log.addFilter(lambda record: "Cancel 0 running task" not in record.getMessage())
        if not log_prompts:
            log.addFilter(_without_words)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not self._log_prompts:
            asyncio.get_running_loop().set_exception_handler(_unobserved)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._captured_signals:
            self._second = sig
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The front cancels what is still alive when its patience ends, so that streams end with an error event."""
        self._front.drain(_DRAIN_S)
        ending = asyncio.create_task(super().shutdown(sockets))
        watching = asyncio.create_task(self._second_signal())
        await asyncio.wait({ending, watching}, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        if not ending.done():
            await self._stop_at_once()
        await ending

    async def _second_signal(self) -> None:
        while self._second is None:
            await asyncio.sleep(_LOOK_S)

    async def _stop_at_once(self) -> None:
        """No replica and no folder is left; the exit status is 128 and the signal's number, as a shell would say.
        Leaving in the ordinary way would wait for threads that still tokenise."""
        assert self._second is not None
        await self._front.link.stop(patience_s=0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
        os._exit(128 + self._second)


def _within_open_files(limits: ServeLimits) -> ServeLimits:
    """Each connection is an open file; some are left for what the server itself opens."""
    if sys.platform == "win32":
        return limits
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.max_connections if soft == resource.RLIM_INFINITY else max(1, soft - _OTHER_FILES)
    return replace(limits, max_connections=min(limits.max_connections, most))


def serve(server: Server, listener: socket.socket) -> None:
    """Serve on `listener` until told to stop. Call it in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the one that ended it again, once all is done
        signal.signal(number, signal.SIG_IGN)
    spare_what_is_loaded()
    server.run(sockets=[listener])


def _without_words(record: logging.LogRecord) -> bool:
    """An exception's words may quote a prompt: the log keeps its class and where it arose."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        record.exc_info, record.exc_text = None, _places(error)
    return True


def _places(error: BaseException) -> str:
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    told = f"{_places(before)}\n\nthen\n\n" if before is not None else ""
    kind = f"{type(error).__module__}.{type(error).__qualname__} (its words are shown with --log-prompts)"
    return told + "".join(traceback.format_tb(error.__traceback__)) + kind


def _unobserved(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler would show the whole task, and with it what the exception says."""
    logging.getLogger("uvicorn.error").error(context["message"], exc_info=context.get("exception"))
