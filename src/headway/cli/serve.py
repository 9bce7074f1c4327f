"""`headway serve`: bring the model, start the replica, listen, and say what was started."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys

import uvicorn
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.cli.panel import curl, start_panel
from headway.config import Environment, ServeOptions, read_options, yielding_threads
from headway.config import add_arguments as add_options
from headway.errors import ArtifactError, ConfigError
from headway.replica.messages import LoadFailed, Loading, Ready, ToFront
from headway.replica.options import replica_options
from headway.serve.app import make_app
from headway.serve.front import Front

#: How long answers may still grow after the server was told to stop, and how long their ends may take.
_DRAIN_S = 8
_LAST_WORDS_S = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ServeOptions)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C. Raises ConfigError and ArtifactError before anything is started."""
    yielding_threads()
    options, origins = read_options(ServeOptions, args)
    options.validate()
    environment = Environment.read()
    console = Console(stderr=True, no_color=environment.no_color or None)
    listener = _listen(options)
    cache = Cache.at(environment.cache)
    files = resolve(options.model[0], cache=environment.cache)
    name = options.served_name or options.model[0]
    port = listener.getsockname()[1]
    url = f"http://{options.host if ':' not in options.host else f'[{options.host}]'}:{port}"
    loading = _LoadingBar(console)

    def on_change(message: ToFront) -> None:
        loading.show(message)
        if isinstance(message, Ready):
            console.print(start_panel(options, origins, files, message, name=name, url=url))
            console.print("Try it:", curl(name, url), sep="\n", soft_wrap=True, highlight=False, markup=False)
        elif isinstance(message, LoadFailed):
            server.should_exit = True

    front = Front(
        files,
        replica_options(options, cache.root),
        served_name=name,
        max_waiting=options.max_waiting,
        on_change=on_change,
    )
    server = _Server(
        uvicorn.Config(
            make_app(front),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_DRAIN_S + _LAST_WORDS_S,
            lifespan="on",
        ),
        front,
    )
    logging.getLogger("uvicorn.error").addFilter(lambda record: "Cancel 0 running task" not in record.getMessage())
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the one that ended it again, once all is done
        signal.signal(number, signal.SIG_IGN)
    server.run(sockets=[listener])
    if front.state == "failed":
        raise ArtifactError(front.failure)
    return 0


class _Server(uvicorn.Server):
    """Lets the front cancel what is still alive when its patience ends, so that streams end with an error event."""

    def __init__(self, config: uvicorn.Config, front: Front) -> None:
        super().__init__(config)
        self._front = front

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._front.drain(_DRAIN_S)
        await super().shutdown(sockets)


def _listen(options: ServeOptions) -> socket.socket:
    """Take the port first of all: an address that cannot be had should not cost a minute of loading.

    asyncio turns Nagle's algorithm off only where the protocol is named: without it small answers take 40 ms."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError("--port", f"{options.host}:{options.port} cannot be listened on: {reason}") from error
    return listener


class _LoadingBar:
    """What the replica is doing before it is ready: a bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("loading", total=None)

    def show(self, message: ToFront) -> None:
        """Follow one message from the replica."""
        if isinstance(message, Loading):
            self._progress.start()
            self._progress.update(
                self._task, description=message.what, completed=message.done, total=message.total or None
            )
        else:
            self._progress.stop()
