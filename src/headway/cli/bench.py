"""`headway bench offline`: how fast the engine is on this machine, without HTTP."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.progress import Progress
from rich.table import Table

from headway.cli.console import make_console
from headway.core.config import NATIVE, Environment, yielding_threads
from headway.core.errors import ConfigError

if TYPE_CHECKING:  # numpy comes with them: too slow for --help
    from headway.artifacts.files import ModelFiles
    from headway.compute.executor import Executor, ModelFacts

_BLOCK_TOKENS = 16
_MOST_THREADS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "offline: the engine and the model in this process, without HTTP; drafts: the same with and without "
    what += "speculative decoding (--draft)"
    parser.add_argument("what", choices=["offline", "drafts"], help=what)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="as for serve (default smollm2-135m)")
    parser.add_argument(
        "--weights", default="auto", choices=["auto", "fp32", "bf16"], help="data type of the weights (default auto)"
    )
    parser.add_argument("--sequences", default="1,8,32", metavar="N,…", help="concurrent requests (default 1,8,32)")
    parser.add_argument("--prompt", type=int, default=64, metavar="N", help="prompt length in tokens (default 64)")
    parser.add_argument("--emits", type=int, default=48, metavar="N", help="output tokens per request (default 48)")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each; the median is reported (default 3)"
    )
    parser.add_argument(
        "--draft", type=int, default=4, metavar="K", help="drafts only: tokens to guess at a time (default 4)"
    )
    parser.add_argument(
        "--native", default="auto", choices=NATIVE, help="native kernels for attention, as for serve (default auto)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads; default: one per core")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for numbers that cannot work, and what loading a model raises."""
    yielding_threads()
    from headway.bench.machine import machine

    for name in ("prompt", "emits", "rounds", "draft"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name}", f"must be at least 1, got {getattr(args, name)}")
    if args.threads is not None and not 1 <= args.threads <= _MOST_THREADS:
        raise ConfigError("--threads", f"must be from 1 to {_MOST_THREADS}, got {args.threads}")
    about = machine()
    counts = _counts(args.sequences)
    facts, rows = _drafts(args, counts) if args.what == "drafts" else _offline(args, counts)
    result = {"machine": about, "model": facts.name, "weights": facts.weights_format, "kernels": facts.kernels,
              "rows": rows}  # fmt: skip
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        _show(result, _DRAFTS if args.what == "drafts" else _OFFLINE)
    return 0


def _offline(args: argparse.Namespace, counts: list[int]) -> tuple[ModelFacts, list[dict[str, Any]]]:
    from headway.bench.offline import Shape, measure

    shapes = [Shape(count, args.prompt, args.emits) for count in counts]
    blocks = max(shape.blocks(_BLOCK_TOKENS) for shape in shapes) + 1
    with _progress(len(shapes) * args.rounds) as tick:
        executor = _load(args, _files(args), blocks)
        return executor.facts, list(measure(executor, blocks, _BLOCK_TOKENS, shapes, args.rounds, tick))


def _drafts(args: argparse.Namespace, counts: list[int]) -> tuple[ModelFacts, list[dict[str, Any]]]:
    from headway.bench.drafts import TEXTS, Case, blocks_needed, measure
    from headway.text.tokenizer import Tokenizer

    cases = [Case(kind, count, args.emits) for kind in TEXTS for count in counts]
    with _progress(len(cases) * args.rounds * 2) as tick:
        files = _files(args)
        encode = Tokenizer(files).encode
        executor = _load(args, files, blocks_needed(encode, cases, _BLOCK_TOKENS))
        rows = measure(executor, encode, cases, args.draft, args.rounds, _BLOCK_TOKENS, tick)
        return executor.facts, list(rows)


def _files(args: argparse.Namespace) -> ModelFiles:
    from headway.artifacts import resolve

    return resolve(args.model, cache=Environment.read().cache)


def _load(args: argparse.Namespace, files: ModelFiles, blocks: int) -> Executor:
    from headway.artifacts.cache import Cache
    from headway.compute.text.executor import TextExecutor

    return TextExecutor.load(
        files,
        cache=Cache.at(Environment.read().cache).converted,
        blocks=blocks,
        weights=args.weights,
        threads=args.threads,
        native=args.native,
    )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on the terminal's error stream; yields what moves it on."""
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring", total=total)
        yield lambda: progress.advance(task)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError("--sequences", f"{text!r} is not a list of whole numbers like 1,8,32") from None
    if min(counts) < 1:
        raise ConfigError("--sequences", f"must be at least 1, got {min(counts)}")
    return counts


def _show(result: dict[str, Any], columns: dict[str, Callable[[dict[str, Any]], str]]) -> None:
    console = make_console()
    about = result["machine"]
    console.print(
        f"{result['model']} in {result['weights']} on {about['cpu']}, {about['cores']} cores, {about['capability']}, "
        f"torch {about['torch']}, load {about['load_1min']}, {about['date']}",
        soft_wrap=True,
    )
    console.print(result["kernels"]["products"], style="dim", soft_wrap=True)
    table = Table(box=None)
    for title in columns:
        table.add_column(title, justify="right")
    for row in result["rows"]:
        table.add_row(*(shown(row) for shown in columns.values()))
    console.print(table)


_OFFLINE: dict[str, Callable[[dict[str, Any]], str]] = {
    "sequences": lambda row: str(row["sequences"]),
    "prefill tok/s": lambda row: f"{row['prefill_tok_s']:.0f}",
    "decode tok/s": lambda row: f"{row['decode_tok_s']:.1f}",
    "ms per step": lambda row: f"{row['step_ms']:.1f}",
    "engine": lambda row: f"{row['engine_us'] / 1000:.2f} ms",
    "events": lambda row: f"{row['events_us']:.0f} µs",
    "front": lambda row: f"{row['front_us']:.0f} µs",
}
_DRAFTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "text": lambda row: str(row["kind"]),
    "sequences": lambda row: str(row["sequences"]),
    "tok/s without drafts": lambda row: f"{row['without_tok_s']:.1f}",
    "with drafts": lambda row: f"{row['with_tok_s']:.1f}",
    "ratio": lambda row: f"{row['ratio']:.2f}",
    "drafts accepted": lambda row: f"{row['accepted']} of {row['accepted'] + row['rejected']}",
}
