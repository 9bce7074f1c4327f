"""`headway timeline [ID…] -o trace.json`: steps, requests, pool and preemptions as a trace that Perfetto opens."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headway.cli.client import served_model
from headway.cli.events import Item, Missed, connected, logged
from headway.cli.output import check_output, write_output
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import HeadwayError
from headway.story.reduce.record import Record
from headway.story.sinks.log import LogFile
from headway.story.sinks.timeline import Timeline

VIEWER = "https://ui.perfetto.dev"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="*", help="only these requests, and the steps of their lifetime")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="trace.json", help="output file (default trace.json); - is stdout"
    )
    parser.add_argument(
        "--log", metavar="FILE", help="read an event log (serve --event-log) instead of a running server"
    )
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises NoServer, LogError, ConfigError for an output that cannot be written, HeadwayError for an unknown id."""
    options, _ = read_options(ClientOptions, args)
    if args.output != "-":
        check_output("--output", Path(args.output))
    reading = from_log(Path(args.log)) if args.log is not None else from_server(options)
    lives = reading.chosen(args.id)
    trace = msgspec.json.encode(reading.timeline.trace(reading.now_ns, lives))
    if args.output == "-":
        sys.stdout.buffer.write(trace + b"\n")
    else:
        write_output("--output", Path(args.output), trace)
    for line in reading.told(lives, args.output):
        print(line, file=sys.stderr)
    return 0


class Reading:
    """A timeline as far as its source goes. `where` names the source, `now_ns` is its clock when it was read.

    first   number of the first event of the story; 0 while there is none
    """

    def __init__(self, where: str, model: str) -> None:
        self.where, self._model = where, model
        self.timeline = Timeline(model=model)
        self.first = 0
        self.now_ns = 0

    def read(self, items: Iterable[tuple[int, Item]]) -> Reading:
        """Fold what there is; itself. Where events are missing the story begins anew behind them."""
        for number, item in items:
            if isinstance(item, Missed):
                self.timeline, self.first = Timeline(model=self._model), 0
                continue
            self.first = self.first or number
            self.timeline.fold(item)
        self.now_ns = max(self.now_ns, self.timeline.newest_at)
        return self

    def chosen(self, ids: list[str]) -> list[Record] | None:
        """The lives that were asked for; None for all. Raises HeadwayError for an id that it does not tell of."""
        if not ids:
            return None
        from headway.front.ids import plain_ids

        found = []
        for asked in ids:
            named = [life for plain in plain_ids(asked) for life in self.timeline.named(plain)]
            if not named:
                raise HeadwayError(f"{self.where} has no request {asked!r}{self._since()}")
            found += named
        return list(dict.fromkeys(found))

    def told(self, lives: list[Record] | None, output: str) -> list[str]:
        """What was written, what is missing, and what to do with it."""
        count = len(self.timeline.lives if lives is None else lives)
        lines = [f"{count} request{'' if count == 1 else 's'} of {self.where} in {output}: open it at {VIEWER}"]
        unknown = len(self.timeline.unknown())
        if unknown:
            lines.append(f"{unknown} more have no track: they arrived before the events that are kept{self._since()}")
        return lines

    def _since(self) -> str:
        return f" (from number {self.first} on)" if self.first > 1 else ""


def from_log(path: Path) -> Reading:
    """All that a log tells, as of its last event. Raises LogError."""
    log = LogFile.open(path)
    return Reading(str(path), log.head.model).read(logged(log))


def from_server(options: ClientOptions) -> Reading:
    """All that a server's ring tells, as of now. Raises NoServer, HeadwayError."""
    model = served_model(options).id
    with connected(options, until_now=True) as connection:
        reading = Reading(options.url, model)
        reading.now_ns = connection.now_ns()
        return reading.read(connection.items())
