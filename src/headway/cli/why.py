"""`headway why ID`: say why a request is where it is, and where its time went."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.table import Table

from headway.cli.client import NotHeadway, fetch
from headway.cli.console import make_console
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import HeadwayError, LogError
from headway.story.tell.sentences import tell

#: What a server gives or takes as an id; `~` tells the requests of a list of prompts apart.
_ID = re.compile(r"[A-Za-z0-9._:~-]{1,160}")


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
    view = from_log(Path(args.log), args.id) if args.log is not None else from_server(options, args.id)
    if args.json:
        print(json.dumps(view, indent=2))
        return 0
    console = make_console()
    for each in view.get("data", [view]):  # the id of a list of prompts stands for all of them
        for sentence in tell(each):
            console.print(sentence, soft_wrap=True, markup=False)
        console.print()
        console.print(life(each))
    return 0


def from_server(options: ClientOptions, id: str) -> dict[str, Any]:
    """The record as it is now. Raises NoServer, or HeadwayError with the server's own words."""
    if not _ID.fullmatch(id):
        raise HeadwayError(f"{id!r} is not a request id: ids are 1 to 128 of the characters A-Z a-z 0-9 . _ : -")
    path = f"/v1/requests/{quote(id, safe='')}"
    if not id.strip("."):  # `.` and `..` would be taken for steps of the path
        path = f"/v1/requests/{'%2E' * len(id)}"
    view = fetch(options, path, dict[str, Any])
    records = view.get("data", [view])
    if not isinstance(records, list) or not records or not all("intervals" in each for each in records):
        raise NotHeadway(options.url + path, "gives an unexpected answer")
    return view


def from_log(path: Path, id: str) -> dict[str, Any]:
    """The record as it stood when the log was last written. Raises LogError."""
    from headway.front.ids import plain_ids
    from headway.story.reduce.reducer import Story
    from headway.story.sinks.log import LogFile
    from headway.story.tell.explain import request_view, request_views

    story = Story(remembered=1 << 20, delivers=True)
    last_at = 0
    for event in LogFile.open(path).events():
        story.fold(event)
        last_at = max(last_at, event.at)  # one that was received is told a moment later
    for plain in plain_ids(id):
        if plain in story.live or plain in story.ended:
            return request_view(story, story.record(plain), last_at)
        members = [known for known in (*story.ended, *story.live) if known.rpartition("~")[0] == plain]
        if members:
            views = request_views(story, map(story.record, members), last_at)
            return {"id": plain, "data": views}
    raise LogError(path, f"it has no request {id!r}")


def life(view: dict[str, Any]) -> Table:
    """Every interval in order, with its share as a bar."""
    table = Table(box=None, pad_edge=False, show_footer=True, footer_style="dim")
    table.add_column("interval", footer="elapsed")
    table.add_column("waiting for")
    table.add_column("ms", justify="right", footer=f"{view['elapsed_ms']:.3f}")
    table.add_column("share")
    elapsed = view["elapsed_ms"] or 1.0
    for interval in view["intervals"]:
        share = interval["ms"] / elapsed
        awaited = f"{interval['on']}: {interval['rule']}" if "on" in interval else ""
        bar = "█" * round(share * 30) or "▏"
        table.add_row(interval["name"], awaited, f"{interval['ms']:.3f}", f"[green]{bar}[/] {share:.0%}")
    return table
