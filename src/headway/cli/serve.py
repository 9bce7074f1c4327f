"""`headway serve`: serve a model over HTTP (see `starting.py`)."""

from __future__ import annotations

import argparse

from headway.core.collecting import importing
from headway.core.config import ServeOptions
from headway.core.config import add_arguments as add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ServeOptions)


def run(args: argparse.Namespace) -> int:
    """As `starting.start`, which is imported only now: the help should not wait for a web server."""
    with importing():
        from headway.cli.starting import start

    return start(args)
