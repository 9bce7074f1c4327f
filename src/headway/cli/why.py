"""`headway why ID`: say why a request is where it is, and where its time went."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from headway.cli.client import fetch
from headway.config import ClientOptions, Environment, read_options
from headway.config import add_arguments as add_options
from headway.story.sentences import tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the request's id, with or without OpenAI's prefix")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    add_options(parser, ClientOptions)


def run(args: argparse.Namespace) -> int:
    """Raises UnknownRequest, NoServer."""
    options, _ = read_options(ClientOptions, args)
    view = fetch(options.url, f"/v1/requests/{quote(args.id, safe='')}")
    if args.json:
        print(json.dumps(view, indent=2))
        return 0
    console = Console(no_color=Environment.read().no_color or None, highlight=False)
    for sentence in tell(view):
        console.print(sentence, soft_wrap=True, markup=False)
    console.print()
    console.print(life(view))
    return 0


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
