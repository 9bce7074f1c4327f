"""The commands: each in a module of its own, which is imported only when it is chosen."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from headway import __version__
from headway.cli import streams
from headway.core.errors import HeadwayError

#: What the list of commands says about each. A module has `add_arguments(parser)` and `run(args) -> int`.
COMMANDS: dict[str, str] = {
    "serve": "serve a model over HTTP",
    "follow": "follow two requests through one loaded model, step by step",
    "chat": "talk to a running server",
    "top": "watch a running server: its steps, its KV cache pool, and what each request waits for",
    "why": "explain why a request is where it is, and where its time went",
    "timeline": "write a trace of steps and requests for Perfetto",
    "doctor": "find what costs time on a server, and what to do about it",
    "lesson": "predict, see the engine run, read why: nine lessons",
    "models": "list the models with short names, or fetch one",
    "bench": "measure throughput and latency",
    "completion": "print a shell completion script",
}
FAILED = 2
INTERRUPTED = 130
_STATUSES = (
    "Exit status: 0 on success, or when the reader of its output closes the pipe; 2 after an error, explained in one "
    "line on stderr; 130 after Ctrl-C."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the process's exit status: what the command says, 2 after an error that Headway
    explains in one line on stderr, 130 after Ctrl-C. Wrong usage leaves through argparse (SystemExit 2)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    try:
        return _run(argv)
    except HeadwayError as error:
        streams.complain(str(error))
        streams.leave()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        streams.drop_output()
        return 0
    except OSError as error:  # of a file or a stream that nothing more specific was said about
        place = error.filename or "the output cannot be written"
        streams.complain(f"{place}: {error.strerror or error}")
        streams.drop_output()
        return FAILED


def _run(argv: list[str]) -> int:
    try:
        status = _chosen(argv)
    except SystemExit:  # after a help text, or wrong usage
        streams.finish()
        raise
    streams.finish()
    return status


def _chosen(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        overview = _overview()
        overview.parse_args(argv)
        overview.print_help()
        return 0
    command = importlib.import_module(f"headway.cli.{argv[0]}")
    parser = argparse.ArgumentParser(f"headway {argv[0]}", description=_sentence(COMMANDS[argv[0]]), epilog=_STATUSES)
    command.add_arguments(parser)
    status: int = command.run(parser.parse_args(argv[1:]))
    return status


def _overview() -> argparse.ArgumentParser:
    """Lists the commands without importing them."""
    parser = argparse.ArgumentParser(
        "headway", description="An inference serving engine that explains itself.", epilog=_STATUSES
    )
    parser.add_argument("--version", action="version", version=f"headway {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, help in COMMANDS.items():
        commands.add_parser(name, help=help)
    return parser


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
