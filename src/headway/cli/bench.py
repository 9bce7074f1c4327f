"""`headway bench`: how fast the engine is on this machine without HTTP, and what a server gives its callers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headway.cli import bench_serve
from headway.cli.console import make_console, progress
from headway.cli.numbers import whole_numbers
from headway.core.config import NATIVE, WEIGHTS, Environment, yielding_threads
from headway.core.errors import ConfigError

if TYPE_CHECKING:  # numpy comes with them: too slow for --help
    from headway.artifacts.files import ModelFiles
    from headway.compute.executor import Executor, ModelFacts

_BLOCK_TOKENS = 16
_MOST_THREADS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    offline = kinds.add_parser("offline", help="the engine and the model in this process, without HTTP")
    drafts = kinds.add_parser("drafts", help="the same with and without speculative decoding (--draft)")
    serve = kinds.add_parser("serve", help="load a running server, of Headway or any other OpenAI-compatible one")
    _engine_arguments(offline, lengths="64", many="; several are measured with each of --sequences")
    _engine_arguments(drafts, lengths=None)
    drafts.add_argument("--draft", type=int, default=4, metavar="K", help="tokens to guess at a time (default 4)")
    bench_serve.add_arguments(serve)


def _engine_arguments(parser: argparse.ArgumentParser, lengths: str | None, many: str = "") -> None:
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="as for serve (default smollm2-135m)")
    parser.add_argument(
        "--weights", default="auto", choices=WEIGHTS, help="data type of the weights, as for serve (default auto)"
    )
    parser.add_argument("--sequences", default="1,8,32", metavar="N,…", help="concurrent requests (default 1,8,32)")
    if lengths is not None:
        parser.add_argument(
            "--prompt", default=lengths, metavar="N,…", help=f"prompt length in tokens (default {lengths}){many}"
        )
    parser.add_argument("--emits", type=int, default=48, metavar="N", help="output tokens per request (default 48)")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each; the median is reported (default 3)"
    )
    parser.add_argument(
        "--native", default="auto", choices=NATIVE, help="native kernels for attention, as for serve (default auto)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads; default: one per core")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for numbers that cannot work, what loading a model raises, and what `bench_serve` raises."""
    if args.what == "serve":
        return bench_serve.run(args)
    yielding_threads()
    from headway.bench.machine import machine

    for name in ("emits", "rounds", "draft"):
        if getattr(args, name, 1) < 1:
            raise ConfigError(f"--{name}", f"must be at least 1, got {getattr(args, name)}")
    if args.threads is not None and not 1 <= args.threads <= _MOST_THREADS:
        raise ConfigError("--threads", f"must be from 1 to {_MOST_THREADS}, got {args.threads}")
    about = machine()
    counts = whole_numbers("--sequences", args.sequences)
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

    lengths = whole_numbers("--prompt", args.prompt)
    shapes = [Shape(count, length, args.emits) for length in lengths for count in counts]
    blocks = max(shape.blocks(_BLOCK_TOKENS) for shape in shapes) + 1
    with progress(len(shapes) * args.rounds) as tick:
        executor = _load(args, _files(args), blocks)
        return executor.facts, list(measure(executor, blocks, _BLOCK_TOKENS, shapes, args.rounds, tick))


def _drafts(args: argparse.Namespace, counts: list[int]) -> tuple[ModelFacts, list[dict[str, Any]]]:
    from headway.bench.drafts import TEXTS, Case, blocks_needed, measure
    from headway.text.tokenizer import Tokenizer

    cases = [Case(kind, count, args.emits) for kind in TEXTS for count in counts]
    with progress(len(cases) * args.rounds * 2) as tick:
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
    from headway.replica.trials import text_trial
    from headway.text.tokenizer import Tokenizer

    return TextExecutor.load(
        files,
        cache=Cache.at(Environment.read().cache).converted,
        blocks=blocks,
        weights=args.weights,
        threads=args.threads,
        native=args.native,
        trial=text_trial(lambda: Tokenizer(files)),
    )


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
    "prompt": lambda row: str(row["prompt"]),
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
