"""`headway bench serve`: load any OpenAI-compatible server, and say what its callers see."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headway.cli.client import NotHeadway, served_models
from headway.cli.console import make_console, progress
from headway.cli.numbers import at_least, rates, span, whole_numbers
from headway.cli.output import check_output, write_output
from headway.core.config import ClientOptions, read_options
from headway.core.config import add_arguments as add_options
from headway.core.errors import ConfigError, HeadwayError

if TYPE_CHECKING:  # asyncio's streams and TLS come with them: too slow for --help
    from headway.bench.serve.asks import Ask
    from headway.bench.serve.drive import Ends
    from headway.bench.serve.figures import Limits
    from headway.bench.serve.streaming import Target

_LIMITS = {"ttft": "time to first token", "tpot": "time per output token after the first",
           "gap": "longest gap between tokens", "e2el": "time to the end of the answer"}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ClientOptions)
    parser.add_argument("--model", metavar="NAME", help="which of the server's models; default: its first")
    parser.add_argument(
        "--endpoint",
        choices=("chat", "completions"),
        help="default: chat, and completions for prompts of random words (--input, --trace)",
    )
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrent",
        default="8",
        metavar="N,…",
        help="closed loop: N requests at any time, each followed by another (default 8)",
    )
    load.add_argument(
        "--rate", metavar="R,…", help="open loop: R requests per second arrive at random (Poisson); inf: all at once"
    )
    load.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="open loop: arrivals and lengths of a trace, Azure's LLM traces (CSV) or Mooncake's (JSON lines)",
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="have a trace's requests arrive X times as fast"
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts, one per line; .jsonl: strings, or objects with messages, prompt, text or turns",
    )
    asked.add_argument(
        "--input", metavar="N", help="random words, about N tokens, or a range like 64-512, per prompt"
    )
    parser.add_argument(
        "--output", default="64", metavar="N", help="maximum tokens of an answer, or a range like 16-128 (default 64)"
    )
    parser.add_argument("--requests", type=int, default=64, metavar="N", help="requests of each load (default 64)")
    parser.add_argument(
        "--max-input", type=int, default=1 << 20, metavar="N", help="cut a trace's prompts to N tokens"
    )
    parser.add_argument(
        "--max-output", type=int, default=1 << 20, metavar="N", help="cut a trace's answers to N tokens"
    )
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="generate all --output tokens; default: with random words and traces. Not every server knows this field",
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default 0 (greedy decoding)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of lengths, words and arrivals (default 0)")
    parser.add_argument(
        "--warmup", type=int, default=1, metavar="N", help="requests before, not measured (default 1)"
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds per request (default 600)")
    for name, what in _LIMITS.items():
        parser.add_argument(
            f"--limit-{name}-ms", type=float, metavar="MS", help=f"goodput counts answers up to this: {what}"
        )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the result (png, svg, pdf); needs matplotlib")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for what cannot work, NoServer, and HeadwayError if no request got an answer."""
    from headway.bench.machine import host

    options, _ = read_options(ClientOptions, args)
    _check(args)
    limits = _limits(args)
    loads = list(_loads(args))
    target = _target(args, options, chat=loads[0].chat)
    about = host()
    with progress(sum(len(load.asks) for load in loads) + args.warmup) as tick:
        ends = asyncio.run(_measure(target, loads, args.warmup, tick))
    rows = [_row(load, found, limits) for load, found in zip(loads, ends, strict=True)]
    result = {
        "machine": about, "url": options.url, "model": target.model, "endpoint": target.path.rpartition("/v1/")[2],
        "fields": target.fields, "limits": {name: getattr(args, f"limit_{name}_ms") for name in _LIMITS},
        "rows": rows,
    }  # fmt: skip
    if args.plot:
        _plot(args.plot, result, ends)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        _show(result)
    return 0


@dataclass(frozen=True)
class _Load:
    """`concurrent` None: each ask has its time."""

    name: str
    asks: list[Ask]
    concurrent: int | None
    chat: bool


def _check(args: argparse.Namespace) -> None:
    for name, least in (("requests", 1), ("max_input", 1), ("max_output", 1), ("warmup", 0), ("temperature", 0),
                        ("speed", 1e-6), ("timeout", 1e-3)):  # fmt: skip
        at_least(f"--{name.replace('_', '-')}", getattr(args, name), least)
    for name in _LIMITS:
        at_least(f"--limit-{name}-ms", getattr(args, f"limit_{name}_ms"), 0)
    if args.trace and (args.prompts or args.input):
        given = "--prompts" if args.prompts else "--input"
        raise ConfigError(given, "a trace says how long prompts are; leave out this option or --trace")
    if args.plot:
        from headway.bench.serve.plot import require_matplotlib

        check_output("--plot", args.plot)
        require_matplotlib()


def _limits(args: argparse.Namespace) -> Limits:
    from headway.bench.serve.figures import Limits

    return Limits(**{f"{name}_ms": getattr(args, f"limit_{name}_ms") for name in _LIMITS})


def _loads(args: argparse.Namespace) -> Iterator[_Load]:
    from headway.bench.serve.arrivals import poisson, read_trace, trace_asks

    chat = args.endpoint == "chat" if args.endpoint else not (args.input or args.trace)
    if args.trace:
        rows = read_trace(args.trace, args.requests)
        asks = trace_asks(rows, args.speed, args.max_input, args.max_output)
        yield _Load(f"{args.trace.stem} × {args.speed:g}", asks, None, chat)
        return
    source = _source(args, chat)
    if args.rate:
        for rate in rates("--rate", args.rate):
            asks = list(itertools.islice(source, args.requests))
            yield _Load(f"{rate:g}/s", list(poisson(asks, rate, args.seed)), None, chat)
        return
    for count in whole_numbers("--concurrent", args.concurrent):
        yield _Load(f"{count} at once", list(itertools.islice(source, args.requests)), count, chat)


def _source(args: argparse.Namespace, chat: bool) -> Iterator[Ask]:
    """Requests without end: one load goes on where another stopped, so that nothing random repeats."""
    from headway.bench.serve.asks import QUESTIONS, Lengths, random_asks, read_prompts, repeated_asks

    outputs = Lengths(*span("--output", args.output))
    if args.input:
        return random_asks(Lengths(*span("--input", args.input)), outputs, args.seed)
    prompts = read_prompts(args.prompts) if args.prompts else list(QUESTIONS)
    if not chat and not all(isinstance(prompt, str) for prompt in prompts):
        raise ConfigError("--endpoint", f"{args.prompts} holds messages, which completions does not take")
    return repeated_asks(prompts, outputs, args.seed)


def _target(args: argparse.Namespace, options: ClientOptions, chat: bool) -> Target:
    from headway.bench.serve.streaming import Target

    exact = args.ignore_eos if args.ignore_eos is not None else bool(args.input or args.trace)
    fields = {"temperature": args.temperature} | ({"ignore_eos": True} if exact else {})
    model = args.model or _first_model(options)
    return Target(options.url, model, chat, options.api_key, fields, args.timeout)


def _first_model(options: ClientOptions) -> str:
    try:
        return served_models(options)[0].id
    except NotHeadway as error:
        raise HeadwayError(
            f"{options.url}/v1/models does not list models as OpenAI's API does; give the server's URL with --url, "
            "or the model with --model"
        ) from error


async def _measure(target: Target, loads: list[_Load], warmup: int, tick: Callable[[], None]) -> list[Ends]:
    from headway.bench.serve.asks import Ask, random_words
    from headway.bench.serve.drive import closed_loop, open_loop

    if warmup:
        first = [Ask(random_words(16, f"warm-up {number}"), 4) for number in range(warmup)]
        _some_answer(target, await closed_loop(target, first, 1, tick))
    found = []
    for load in loads:
        if load.concurrent is None:
            found.append(await open_loop(target, load.asks, tick))
        else:
            found.append(await closed_loop(target, load.asks, load.concurrent, tick))
        _some_answer(target, found[-1])
    return found


def _some_answer(target: Target, ends: Ends) -> None:
    """Raises HeadwayError, in the words of the first failure, if all of them failed."""
    from headway.bench.serve.figures import Failure

    failures = [end for end in ends if isinstance(end, Failure)]
    if len(failures) == len(ends):
        raise HeadwayError(f"{target.url}: {failures[0].why}")


def _row(load: _Load, ends: Ends, limits: Limits) -> dict[str, Any]:
    from headway.bench.serve.figures import summary

    return {"load": load.name, "concurrent": load.concurrent} | summary(ends, limits)


def _plot(path: Path, result: dict[str, Any], ends: list[Ends]) -> None:
    from headway.bench.serve.plot import picture

    about = result["machine"]
    title = f"{result['model']} at {result['url']}, {about['cpu']}, {about['cores']} cores, {about['date']}"
    write_output("--plot", path, picture(result["rows"], ends, title, path.suffix.removeprefix(".") or "png"))


def _show(result: dict[str, Any]) -> None:
    console = make_console()
    about = result["machine"]
    console.print(
        f"{result['model']} at {result['url']} ({result['endpoint']}), from {about['cpu']}, {about['cores']} cores, "
        f"load {about['load_1min']}, {about['date']}; times in ms, p50 / p99 (ITL: the gap between tokens)",
        soft_wrap=True,
    )
    table = Table(box=None)
    columns = _COLUMNS | (_GOODPUT if result["rows"][0]["goodput"] else {})
    for title in columns:
        table.add_column(title, justify="right")
    for row in result["rows"]:
        table.add_row(*(shown(row) for shown in columns.values()))
    console.print(table)
    for row in result["rows"]:
        for told in _remarks(row):
            console.print(f"{row['load']}: {told}", soft_wrap=True)


def _remarks(row: dict[str, Any]) -> Iterator[str]:
    """What would mislead if it were not said."""
    for why, count in row["errors"].items():
        yield f"{count} failed: {why}"
    if row["one_token"]:
        yield f"{row['one_token']} of {row['finished']} answers have one token and no TPOT"
    if row["empty"]:
        yield f"{row['empty']} of {row['finished']} answers have no text, and neither TTFT nor TPOT"
    if row["tokens_from"] == "chunks":
        yield "the server counts no tokens: chunks are counted instead"
    if row["late_ms"]["p99"] > _LATE_MS:
        yield f"this client sent requests up to {row['late_ms']['max']:.0f} ms late: it is short of processor time"


_LATE_MS = 20.0


def _pair(name: str) -> Callable[[dict[str, Any]], str]:
    def shown(row: dict[str, Any]) -> str:
        found = row[name]
        return f"{found['p50']:.0f} / {found['p99']:.0f}" if found else "–"

    return shown


def _longest_gap(row: dict[str, Any]) -> str:
    return f"{row['itl_ms']['max']:.0f}" if row["itl_ms"] else "–"


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "load": lambda row: str(row["load"]),
    "done": lambda row: f"{row['finished']}/{row['requests']}",
    "req/s": lambda row: f"{row['requests_per_s']:.2f}",
    "tok/s": lambda row: f"{row['output_tok_s']:.1f}",
    "TTFT": _pair("ttft_ms"),
    "TPOT": _pair("tpot_ms"),
    "ITL": _pair("itl_ms"),
    "longest": _longest_gap,
}
_GOODPUT: dict[str, Callable[[dict[str, Any]], str]] = {
    "goodput": lambda row: f"{row['goodput']['requests_per_s']:.2f}/s ({100 * row['goodput']['share']:.0f}%)",
}
