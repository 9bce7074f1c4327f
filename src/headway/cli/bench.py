"""`headway bench offline`: how fast the engine is on this machine, without HTTP."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.config import Environment, yielding_threads
from headway.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["offline"], help="offline: the engine and the model in this process")
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="as for serve (default smollm2-135m)")
    parser.add_argument("--weights", default="auto", choices=["auto", "fp32", "bf16"], help="default auto")
    parser.add_argument("--sequences", default="1,8,32", metavar="N,…", help="requests at once (default 1,8,32)")
    parser.add_argument("--prompt", type=int, default=64, metavar="N", help="positions of each prompt (default 64)")
    parser.add_argument("--emits", type=int, default=48, metavar="N", help="tokens each emits (default 48)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each; medians count (default 3)")
    parser.add_argument("--threads", type=int, metavar="N", help="default: one per core")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for numbers that cannot work, and what loading a model raises."""
    yielding_threads()
    from headway.artifacts import resolve
    from headway.artifacts.cache import Cache
    from headway.bench.machine import machine
    from headway.bench.offline import Shape, measure
    from headway.compute.text.executor import TextExecutor

    environment = Environment.read()
    shapes = [Shape(count, args.prompt, args.emits) for count in _counts(args.sequences)]
    for name in ("prompt", "emits", "rounds"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name}", f"needs at least 1, got {getattr(args, name)}")
    about = machine()
    blocks = max(shape.blocks(16) for shape in shapes) + 1
    console = Console(stderr=True, no_color=environment.no_color or None)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("loading", total=len(shapes) * args.rounds)
        executor = TextExecutor.load(
            resolve(args.model, cache=environment.cache),
            cache=Cache.at(environment.cache).converted,
            blocks=blocks,
            weights=args.weights,
            threads=args.threads,
        )
        progress.update(task, description="measuring")
        rows = list(measure(executor, blocks, 16, shapes, args.rounds, lambda: progress.advance(task)))
    facts = executor.facts
    result = {"machine": about, "model": facts.name, "weights": facts.weights_format, "kernels": facts.kernels,
              "rows": rows}  # fmt: skip
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        _show(result)
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError("--sequences", f"{text!r} is not a list of whole numbers like 1,8,32") from None
    if min(counts) < 1:
        raise ConfigError("--sequences", f"needs at least 1, got {min(counts)}")
    return counts


def _show(result: dict[str, Any]) -> None:
    console = Console(no_color=Environment.read().no_color or None, highlight=False)
    about = result["machine"]
    console.print(
        f"{result['model']} in {result['weights']} on {about['cpu']}, {about['cores']} cores, {about['capability']}, "
        f"torch {about['torch']}, load {about['load_1min']}, {about['date']}",
        soft_wrap=True,
    )
    console.print(result["kernels"]["products"], style="dim", soft_wrap=True)
    table = Table(box=None)
    for title in ("sequences", "prefill tok/s", "decode tok/s", "ms a step", "of it the engine's"):
        table.add_column(title, justify="right")
    for row in result["rows"]:
        table.add_row(str(row["sequences"]), f"{row['prefill_tok_s']:.0f}", f"{row['decode_tok_s']:.1f}",
                      f"{row['step_ms']:.1f}", f"{row['engine_us'] / 1000:.2f} ms")  # fmt: skip
    console.print(table)
