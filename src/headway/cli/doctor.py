"""`headway doctor`: why is this slow? What cost time, by how much, and the one thing to do about each."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from headway.cli.client import served_models
from headway.cli.console import make_console
from headway.cli.events import Missed, connected
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import ConfigError
from headway.core.events import AnyEvent, Loaded
from headway.story.diagnose.apart import Apart
from headway.story.diagnose.doctor import diagnose, tell, view
from headway.story.diagnose.observations import Machine
from headway.story.sinks.log import LogFile

#: For so long the processors are watched, to see what another virtual machine takes of them.
_WATCH_S = 0.3
_LOCAL = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log", metavar="FILE", help="read an event log (serve --event-log) instead of a running server"
    )
    parser.add_argument("--last", metavar="SECONDS", help="look only at the last SECONDS")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises NoServer, LogError, ConfigError."""
    options, _ = read_options(ClientOptions, args)
    last_s = _last(args.last)
    if args.log is not None:
        models = look(LogFile.open(Path(args.log)).events, last_s).models
    else:
        held = held_events(options)
        models = look(lambda: held, last_s, loaded(options), machine(options.url)).models
    findings = diagnose(*models)
    if args.json:
        print(json.dumps(view(findings, *models), indent=2))
        return 0
    console = make_console()
    for sentence in tell(findings, *models):
        console.print(sentence, soft_wrap=True, markup=False)
    return 0


def held_events(options: ClientOptions) -> list[AnyEvent]:
    """All events that the server still holds, in order. Raises NoServer, HeadwayError."""
    with connected(options, until_now=True) as connection:
        return [item for _, item in connection.items() if not isinstance(item, Missed)]


def look(
    events: Callable[[], Iterable[AnyEvent]],
    last_s: float | None = None,
    loaded: Iterable[Loaded] = (),
    machine: Machine | None = None,
) -> Apart:
    """Fold what `events` gives (twice, where only the last `last_s` seconds of it count)."""
    since_ns = None
    if last_s is not None:
        last_at = max((event.at for event in events() if not isinstance(event, Loaded)), default=0)
        since_ns = last_at - round(last_s * 1e9)
    return Apart(loaded, machine, since_ns).fold_all(events())


def loaded(options: ClientOptions) -> list[Loaded]:
    """What the server's replica has to give each model; the events that say so may be gone from the ring."""
    return [model.headway for model in served_models(options) if model.headway is not None]


def machine(url: str) -> Machine | None:
    """This machine, if the server runs on it."""
    if urlsplit(url).hostname not in _LOCAL:
        return None
    steal = getattr(psutil.cpu_times_percent(_WATCH_S), "steal", None)
    load = os.getloadavg()[0] / (psutil.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0
    return Machine(None if steal is None else steal / 100, load, psutil.virtual_memory().available)


def _last(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigError("--last", f"{text!r} is not a number of seconds") from None
    if not 0 < seconds < 1e9:
        raise ConfigError("--last", f"must be more than 0 and less than 1e9 seconds, got {text}")
    return seconds
