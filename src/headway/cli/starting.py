"""What `headway serve` does: bring the model, start the replica, listen, and say what was started."""

from __future__ import annotations

import argparse
import ipaddress
import secrets
from pathlib import Path

from rich.console import Console

from headway.api.server import Server, listen, serve
from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.cli.console import make_console
from headway.cli.loading import LoadingBar
from headway.cli.panel import curl, start_panel
from headway.core.choices import choose_models
from headway.core.config import Environment, ServeOptions, read_options, yielding_threads
from headway.core.errors import ArtifactError
from headway.front.guard import Guard
from headway.front.limits import ServeLimits
from headway.front.origins import ANY
from headway.front.state import Front
from headway.replica.messages import LoadFailed, Ready, ToFront
from headway.replica.options import replica_options
from headway.story.sinks.log import EventLog, check_place


def start(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; a second one stops at once, with status 128 + its number. Raises ConfigError and
    ArtifactError before anything is started."""
    yielding_threads()
    options, origins = read_options(ServeOptions, args)
    options.validate()
    choices = choose_models(options)
    environment = Environment.read()
    console = make_console(stderr=True)
    if options.event_log is not None:
        check_place(_log_path(options))
    _warn_of_any_origin(options, console)
    listener = listen(options.host, options.port)
    cache = Cache.at(environment.cache)
    files = {choice.name: resolve(choice.source, cache=environment.cache) for choice in choices}
    patterns = {name: model.pattern for name, model in files.items()}
    replica = replica_options(options, choices, patterns, cache.root)
    port = listener.getsockname()[1]
    url = f"http://{options.host if ':' not in options.host else f'[{options.host}]'}:{port}"
    loading = LoadingBar(console)

    def on_change(message: ToFront) -> None:
        loading.show(message)
        if isinstance(message, Ready):
            console.print(start_panel(options, origins, files, message, url=url))
            console.print(
                "Try it:",
                *(curl(model, url, keyed=options.api_key is not None) for model in message.models),
                sep="\n",
                soft_wrap=True,
                markup=False,
            )
        elif isinstance(message, LoadFailed):
            server.should_exit = True

    log = _event_log(options, choices[0].name, console)
    front = Front(
        files,
        replica,
        limits=_limits(options),
        log=log,
        log_prompts=options.log_prompts,
        on_change=on_change,
        on_alarm=lambda sentence: console.print(sentence, style="yellow", soft_wrap=True, markup=False),
    )
    guard = Guard(
        key=options.api_key,
        origins=options.allow_origin,
        loopback=ipaddress.ip_address(listener.getsockname()[0]).is_loopback,
    )
    server = Server(front, guard, log_prompts=options.log_prompts)
    serve(server, listener)
    if log is not None:
        log.close()
    if front.state == "failed":
        raise ArtifactError(front.failure)
    return 0


def _warn_of_any_origin(options: ServeOptions, console: Console) -> None:
    if ANY in options.allow_origin:
        open_to_all = "" if options.api_key else ", without a key"
        console.print(
            "Warning: --allow-origin * lets every web page use this server from any browser that can reach it"
            f"{open_to_all}. List the origins that need access instead.",
            style="yellow", soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip


def _event_log(options: ServeOptions, model: str, console: Console) -> EventLog | None:
    """Raises ConfigError when the file cannot be written."""
    if options.event_log is None:
        return None
    path = _log_path(options)

    def on_failure(reason: str) -> None:
        console.print(
            f"The event log {path} failed: {reason}. Serving continues without it; "
            "headway_event_log_lost_events_total counts the lost events, and a restart begins a new log.",
            soft_wrap=True,
            markup=False,
        )

    assert options.event_log_bytes.bytes is not None
    return EventLog(
        path,
        epoch=secrets.token_hex(4),
        model=model,
        total_bytes=options.event_log_bytes.bytes,
        on_failure=on_failure,
    )


def _log_path(options: ServeOptions) -> Path:
    assert options.event_log is not None
    return Path(options.event_log).absolute()


def _limits(options: ServeOptions) -> ServeLimits:
    assert options.max_body.bytes is not None
    return ServeLimits(
        max_waiting=options.max_waiting,
        max_waiting_positions=options.max_waiting_positions,
        max_seconds=options.max_seconds,
        max_body_bytes=options.max_body.bytes,
        slow_reader_seconds=options.slow_reader_seconds,
        keep_alive_seconds=options.keep_alive_seconds,
        max_connections=max(ServeLimits.max_connections, 2 * options.max_waiting),
    )
