"""`headway follow`: two requests, A and B, through one loaded model, told as it happens."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from headway.cli.console import make_console
from headway.cli.output import check_output, write_output
from headway.cli.streams import utf8
from headway.core.config import Environment, Memory, yielding_threads
from headway.core.errors import ConfigError

A_PROMPT = "Name the colours of the rainbow, one after the other, and say a word about each."
B_PROMPT = (
    "A lighthouse keeper writes in his diary every evening. On Monday there was fog, and no ship came. On Tuesday a "
    "sailor knocked at the door and asked for bread. On Wednesday it stormed, and the lamp went dark twice. On "
    "Thursday the sailor came back with two fish. What did the sailor bring, and on which day?"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="as for serve (default smollm2-135m)")
    parser.add_argument("--a", default=A_PROMPT, metavar="TEXT", help="A's prompt")
    parser.add_argument("--b", default=B_PROMPT, metavar="TEXT", help="B's prompt")
    parser.add_argument("--same-prompt", action="store_true", help="give B the same prompt as A")
    parser.add_argument(
        "--a-tokens", type=int, default=40, metavar="N", help="maximum tokens of A's answer (default 40)"
    )
    parser.add_argument(
        "--b-tokens", type=int, default=40, metavar="N", help="maximum tokens of B's answer (default 40)"
    )
    parser.add_argument("--memory", type=_memory, metavar="SIZE", help="memory for state (KV cache), 2GiB or "
                        "40blocks; default: so little that B has to wait for space")  # fmt: skip
    parser.add_argument(
        "--step-tokens", type=int, default=64, metavar="N", help="maximum positions per step (default 64)"
    )
    parser.add_argument(
        "--seats", type=int, default=2, metavar="N", help="maximum number of active sequences (default 2)"
    )
    parser.add_argument(
        "--prefix-cache", action="store_true", help="reuse the state of known prefixes (prefix caching)"
    )
    parser.add_argument("--cancel", type=_cancel, metavar="A@5", help="cancel A (or B) after that many tokens")
    parser.add_argument(
        "--weights", default="auto", choices=["auto", "fp32", "bf16"], help="data type of the weights (default auto)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the steps and both records as JSON instead of the story"
    )
    parser.add_argument("--html", metavar="FILE", help="write the live page of this run to one HTML file")


def _memory(text: str) -> Memory:
    try:
        return Memory.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cancel(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([AB])@([1-9]\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not like A@5 (A or B, and a number of tokens)")
    return match[1], int(match[2])


@dataclass(frozen=True)
class LoadedModel:
    """One model, loaded once: what it is, and the process's memory before and after, in bytes."""

    executor: Any
    files: Any
    before: int
    after: int


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError for what cannot work, and what loading a model raises."""
    yielding_threads()
    from headway.sim.pair import Pair, pair_options

    environment = Environment.read()
    console = make_console(quiet=args.json)
    if args.html is not None:
        check_output("--html", Path(args.html))
    options = pair_options(args.seats, args.step_tokens, args.prefix_cache)
    for name in ("a_tokens", "b_tokens"):
        if getattr(args, name) < 1:
            raise ConfigError("--" + name.replace("_", "-"), f"must be at least 1, got {getattr(args, name)}")
    texts = {"A": utf8("--a", args.a), "B": args.a if args.same_prompt else utf8("--b", args.b)}
    files, prompts = _prompts(args.model, environment, texts)
    pair = Pair(prompts, {"A": args.a_tokens, "B": args.b_tokens}, options, args.cancel)
    loaded = _load(files, environment, args.weights, _blocks(args.memory, pair))
    blocks = loaded.executor.blocks
    for name in "AB":
        if (need := pair.need(name)[1]) > blocks:
            raise ConfigError("--memory", f"{name} needs {need} blocks by its end, and the pool has {blocks}")
    _introduce(console, loaded, pair, blocks)
    answers = pair.run(loaded.executor, blocks, lambda line: console.print("  " + line, soft_wrap=True, markup=False))
    _conclude(console, pair, loaded, answers, _decoder(files))
    if args.json:
        print(json.dumps(_as_json(pair, loaded, answers, _decoder(files)), indent=2))
    if args.html is not None:
        from headway.page.routes import self_contained

        write_output("--html", Path(args.html), self_contained(pair.events, "headway follow").encode())
        console.print(f"\nThe page with this run: {args.html}", soft_wrap=True, markup=False)
    return 0


def _prompts(model: str, environment: Environment, texts: dict[str, str]) -> tuple[Any, dict[str, list[int]]]:
    """The model's files, and token ids of each prompt, by the model's chat template where it has one."""
    from headway.artifacts import resolve
    from headway.text.chat.template import ChatTemplate
    from headway.text.tokenizer import Tokenizer

    files = resolve(model, cache=environment.cache)
    tokenizer = Tokenizer(files)
    if files.chat_template is None:
        return files, {name: tokenizer.encode(text) for name, text in texts.items()}
    template = ChatTemplate(files)
    rendered = {name: template.render([{"role": "user", "content": text}]) for name, text in texts.items()}
    template.close()
    return files, {name: tokenizer.encode(text, add_bos=False) for name, text in rendered.items()}


def _decoder(files: Any) -> Any:
    from headway.text.tokenizer import Tokenizer

    return Tokenizer(files).decode


def _blocks(memory: Memory | None, pair: Any) -> Memory:
    return Memory(blocks=pair.tight_blocks()) if memory is None or memory.auto else memory


def _load(files: Any, environment: Environment, weights: str, memory: Memory) -> LoadedModel:
    import psutil

    from headway.artifacts.cache import Cache
    from headway.compute.text.executor import TextExecutor

    process = psutil.Process()
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("loading", total=None)
        before = process.memory_info().rss
        executor = TextExecutor.load(
            files,
            cache=Cache.at(environment.cache).converted,
            blocks=memory.blocks,
            memory_bytes=memory.bytes,
            weights=weights,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    return LoadedModel(executor, files, before, process.memory_info().rss)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _introduce(console: Console, loaded: LoadedModel, pair: Any, blocks: int) -> None:
    facts = loaded.executor.facts
    console.print(f"[bold]One model, loaded once[/bold]: {facts.name}, {_mib(facts.weights_bytes)} of weights in "
                  f"{facts.weights_format}. This process held {_mib(loaded.before)} before and {_mib(loaded.after)} "
                  "now; both requests use the same weights.", soft_wrap=True)  # fmt: skip
    console.print("\n[bold]What each needs of its own[/bold]: state (KV cache) for its positions, in blocks of "
                  f"{pair.block_tokens} ({_mib(facts.block_bytes * blocks)} reserved: {blocks} blocks).",
                  soft_wrap=True)  # fmt: skip
    for name in "AB":
        first, whole = pair.need(name)
        console.print(f"  {name}: {len(pair.prompts[name])} prompt positions need {first} blocks to begin; with "
                      f"{pair.tokens[name]} tokens of answer, {whole} blocks.", soft_wrap=True)  # fmt: skip
    console.print(f"\n[bold]What happens[/bold] (a step evaluates at most {pair.options.step_tokens} positions)")


def _conclude(console: Console, pair: Any, loaded: LoadedModel, answers: dict[str, list[int]], decode: Any) -> None:
    from headway.story.tell.narration import strip_chart

    console.print("\n[bold]What they answered[/bold]")
    for name in "AB":
        console.print(f"  {name}: {decode(answers[name]).strip() or '(nothing)'}", soft_wrap=True, markup=False)
    console.print("\n[bold]Every step[/bold]  P prefill, d decode, r recompute, w waits, . over", highlight=False)
    for line in strip_chart(pair.narrator.strips):
        console.print("  " + line, markup=False, soft_wrap=True)
    console.print("\n[bold]A question.[/bold] When one of the two had ended, what of it could remain, and what had "
                  "to stay for the other?", soft_wrap=True)  # fmt: skip
    if sys.stdin.isatty() and not console.quiet:
        with contextlib.suppress(EOFError):  # Ctrl-D is as good as Enter
            console.input("  Think, then press Enter … ")
    for line in pair.remains(loaded.executor.facts.weights_bytes):
        console.print("  " + line, soft_wrap=True, markup=False)


def _as_json(pair: Any, loaded: LoadedModel, answers: dict[str, list[int]], decode: Any) -> dict[str, Any]:
    facts = loaded.executor.facts
    return {
        "model": facts.name,
        "weights_bytes": facts.weights_bytes,
        "resident_bytes": {"before": loaded.before, "after": loaded.after},
        "pool": {
            "blocks": loaded.executor.blocks,
            "block_tokens": pair.block_tokens,
            "block_bytes": facts.block_bytes,
        },
        "steps": pair.steps_view(),
        "requests": pair.records_view(),
        "answers": {name: decode(tokens) for name, tokens in answers.items()},
        "remains": pair.remains(facts.weights_bytes),
    }
