"""`headway why ID`: say why a request is where it is, and where its time went."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import msgspec
from rich.table import Table

from headway.cli.client import fetch_as_sent
from headway.cli.console import make_console
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import HeadwayError, LogError
from headway.story.tell.sentences import tell
from headway.story.tell.views import ListView, RequestView

#: What a server gives or takes as an id; `~` tells the requests of a list of prompts apart.
_ID = re.compile(r"[A-Za-z0-9._:~-]{1,160}")
#: What is asked about: one request, or, by the id of a list of prompts, all of them.
Asked: TypeAlias = RequestView | ListView


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the request's id, with or without OpenAI's prefix")
    parser.add_argument(
        "--log", metavar="FILE", help="read an event log (serve --event-log) instead of a running server"
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises LogError, NoServer, or HeadwayError with the server's own words."""
    options, _ = read_options(ClientOptions, args)
    found, text = from_log(Path(args.log), args.id) if args.log is not None else from_server(options, args.id)
    if args.json:
        print(msgspec.json.format(text, indent=2).decode())
        return 0
    console = make_console()
    for each in found.data if isinstance(found, ListView) else (found,):
        for sentence in tell(each):
            console.print(sentence, soft_wrap=True, markup=False)
        console.print()
        console.print(life(each))
    return 0


def from_server(options: ClientOptions, id: str) -> tuple[Asked, bytes]:
    """The record as it is now, and the JSON that the server sent. Raises NoServer, or HeadwayError with the server's
    own words."""
    if not _ID.fullmatch(id):
        raise HeadwayError(f"{id!r} is not a request id: ids are 1 to 128 of the characters A-Z a-z 0-9 . _ : -")
    path = f"/v1/requests/{quote(id, safe='')}"
    if not id.strip("."):  # `.` and `..` would be taken for steps of the path
        path = f"/v1/requests/{'%2E' * len(id)}"
    return fetch_as_sent(options, path, decode)


def decode(text: bytes) -> Asked:
    """Raises msgspec.ValidationError for what is neither shape."""
    listed = msgspec.json.decode(text, type=_Listed).data is not msgspec.UNSET
    return msgspec.json.decode(text, type=ListView if listed else RequestView)


class _Listed(msgspec.Struct):
    """Tells the two shapes apart."""

    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def from_log(path: Path, id: str) -> tuple[Asked, bytes]:
    """The record as it stood when the log was last written, and as JSON. Raises LogError."""
    from headway.front.ids import plain_ids
    from headway.story.reduce.reducer import Story
    from headway.story.sinks.log import LogFile
    from headway.story.tell.explain import request_view, request_views

    story = Story(remembered=1 << 20, delivers=True)
    last_at = 0
    for event in LogFile.open(path).events():
        story.fold(event)
        last_at = max(last_at, event.at)  # one that was received is told a moment later
    found: Asked
    for plain in plain_ids(id):
        if plain in story.live or plain in story.ended:
            found = request_view(story, story.record(plain), last_at)
            return found, msgspec.json.encode(found)
        members = [known for known in (*story.ended, *story.live) if known.rpartition("~")[0] == plain]
        if members:
            found = ListView(plain, tuple(request_views(story, map(story.record, members), last_at)))
            return found, msgspec.json.encode(found)
    raise LogError(path, f"it has no request {id!r}")


def life(view: RequestView) -> Table:
    """Every interval in order, with its share as a bar."""
    table = Table(box=None, pad_edge=False, show_footer=True, footer_style="dim")
    table.add_column("interval", footer="elapsed")
    table.add_column("waiting for")
    table.add_column("ms", justify="right", footer=f"{view.elapsed_ms:.3f}")
    table.add_column("share")
    elapsed = view.elapsed_ms or 1.0
    for interval in view.intervals:
        share = interval.ms / elapsed
        awaited = "" if interval.on is None else f"{interval.on}: {interval.rule}"
        bar = "█" * round(share * 30) or "▏"
        table.add_row(interval.name, awaited, f"{interval.ms:.3f}", f"[green]{bar}[/] {share:.0%}")
    return table
