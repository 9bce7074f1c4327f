"""What two requests with the same prompt share when their state must not be mixed: two salts, two adapters, two
revisions of the model, two state formats.

    python -m benchmarks.space.origins [--out FILE.json] [--plot FILE.png]

Run it at the root of the repository. The same prompts are sent three times: by a first, by a second, and by the first
again. Salts and adapters meet in one replica, the second while the first still answers. A replica has one revision
and one format, so these meet in the folder of a disk tier (real files, made for the run): the replica is started
again with the other, and then as it was. Time is modelled, and the executor computes hashes of prefixes, so the
numbers are the same everywhere. Adapters are not served yet: theirs are put on the sequences by hand. The plot needs
matplotlib.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Any

from benchmarks.space.kept import described

from headway.compute.executor import ModelFacts
from headway.compute.fake import FakeExecutor, expected_tokens, linear_cost
from headway.core.clock import ModelledClock
from headway.core.events import Admitted, AnyEvent, Finished, Reloaded
from headway.core.miss import Miss
from headway.core.plan import Draw, Sampling
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.keys import KeyChain
from headway.patterns.text.ports import no_watcher
from headway.replica.loading import hosted_text
from headway.replica.options import ModelOptions
from headway.replica.tiers import open_tiers

BLOCK_TOKENS, BLOCKS, VOCAB = 16, 400, 997
_ANSWER = 24
#: A position is so dear that reading a block is never slower than computing it, however slow this disk is.
_COST = linear_cost(step_ns=1_000_000, position_ns=10_000_000)
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Sender:
    """Whose prompts they are: what shapes their state, beside the prompts."""

    salt: str = ""
    adapter: str = ""
    revision: str = "r1"
    state: str = "bf16"


@dataclass(frozen=True)
class Meeting:
    """Two senders of the same prompts. Where `restarted`, the replica starts again between them."""

    name: str
    first: Sender
    second: Sender
    restarted: bool = False


MEETINGS = (
    Meeting("one salt", Sender(), Sender()),
    Meeting("two salts", Sender(salt="a"), Sender(salt="b")),
    Meeting("two adapters", Sender(adapter="digest a"), Sender(adapter="digest b")),
    Meeting("restarted", Sender(), Sender(), restarted=True),
    Meeting("restarted, two salts", Sender(salt="a"), Sender(salt="b"), restarted=True),
    Meeting("restarted, two revisions", Sender(), Sender(revision="r2"), restarted=True),
    Meeting("restarted, two state formats", Sender(), Sender(state="int8"), restarted=True),
)

#: Positions of each prompt; none begins like another.
LENGTHS = (24, 50, 96, 150, 200, 250, 304, 350)


class HostBytes:
    """Slots of host memory for the fake executor's blocks: eight bytes for each position."""

    _FORM = Struct(f"<{BLOCK_TOKENS}Q")

    def __init__(self, slots: int) -> None:
        self._bytes = bytearray(slots * self._FORM.size)

    def bytes(self, slot: int) -> memoryview:
        return memoryview(self._bytes)[slot * self._FORM.size : (slot + 1) * self._FORM.size]

    def __setitem__(self, slot: int, content: list[int]) -> None:
        self._FORM.pack_into(self._bytes, slot * self._FORM.size, *content)

    def __getitem__(self, slot: int) -> list[int]:
        return list(self._FORM.unpack_from(self._bytes, slot * self._FORM.size))


class Revision(FakeExecutor):
    """Implements `TieredExecutor`: the fake executor, of one sender's revision and format."""

    def __init__(self, sender: Sender, clock: ModelledClock) -> None:
        super().__init__(blocks=BLOCKS, block_tokens=BLOCK_TOKENS, vocab=VOCAB, clock=clock, cost_ns=_COST)
        self._own = replace(super().facts, name="m", revision=sender.revision, state_format=sender.state)

    @property
    def facts(self) -> ModelFacts:
        return self._own

    def keep_outside(self, slots: int) -> HostBytes:
        self.host = HostBytes(slots)
        return self.host


class Replica:
    """A replica of one sender's revision, in this process, with a disk tier in `folder`, if there is one."""

    def __init__(self, sender: Sender, folder: Path | None) -> None:
        self.clock, self.events = ModelledClock(), list[AnyEvent]()
        self._said: dict[str, list[int]] = {}
        options = ModelOptions(
            model="m", block_tokens=BLOCK_TOKENS, engine=EngineOptions(seats=32, step_tokens=512),
            disk_tier=None if folder is None else str(folder), disk_tier_bytes=None if folder is None else 1 << 20,
        )  # fmt: skip
        executor = Revision(sender, self.clock)
        self._tiers = open_tiers(executor, options)
        model = hosted_text(executor, BLOCKS, options, no_watcher, None, self._tiers)
        self._engine = Engine([model.served], self.clock, emit=self.events.append)

    def send(self, by: str, sender: Sender, prompts: Sequence[tuple[int, ...]]) -> None:
        """All prompts at once."""
        for number, prompt in enumerate(prompts):
            new = TextRequest(id=f"{by} {number}", prompt=prompt, max_tokens=_ANSWER, cache_salt=sender.salt)
            self._said[new.id] = []
            for sequence in self._engine.add(new).progress.sequences:
                assert sequence.keys.origin is not None
                sequence.keys = KeyChain(replace(sequence.keys.origin, adapter=sender.adapter), BLOCK_TOKENS)

    def answer(self, tokens: int = _ANSWER) -> None:
        """Until everyone was told so many tokens, and what they computed lies where it should."""
        until = time.monotonic() + _PATIENCE_S
        while any(len(said) < tokens for said in self._said.values()) or (tokens == _ANSWER and self._moves()):
            assert time.monotonic() < until, "the replica does not come to rest"
            steps = self._engine.steps
            for emission in self._engine.step():
                self._said[emission.id] += emission.tokens
            self._engine.check()
            if self._engine.steps == steps:
                time.sleep(0.001)  # for the disk

    def _moves(self) -> bool:
        return bool(self._engine.requests) or not self._engine.idle or self._engine.awaiting

    def check(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Raise AssertionError unless every answer is what its prompt must give, whatever state it was given."""
        for id, said in self._said.items():
            prompt = prompts[int(id.rpartition(" ")[2])]
            assert said == expected_tokens(prompt, Draw(0, 0, Sampling()), _ANSWER, VOCAB), id

    def close(self) -> None:
        if self._tiers is not None:
            self._tiers.close(_PATIENCE_S)


@dataclass
class Found:
    """What one sender found, over all prompts: positions reused, blocks shared with requests that hold them as well,
    blocks reloaded from disk, and how often each reason was recorded for why it was no more."""

    positions: int = 0
    reused: int = 0
    shared: int = 0
    reloaded: int = 0
    why: dict[str, int] = field(default_factory=dict)


def found(events: Sequence[AnyEvent], by: str, positions: int) -> Found:
    """Of the sender whose requests are called so."""
    result, held, why = Found(positions), dict[str, set[int]](), Counter[str]()
    for event in events:
        match event:
            case Admitted(miss=miss) if miss is not None:
                blocks = {block for table in event.tables for block in table}
                if event.id.startswith(by):
                    result.reused += event.inherited[0]
                    result.shared += len(blocks & set[int]().union(*held.values()))
                    why[_said(miss)] += 1
                held[event.id] = blocks
            case Reloaded() if event.id.startswith(by):
                result.reloaded += sum(event.blocks.values())
            case Finished():
                held.pop(event.id, None)
    result.why = dict(sorted(why.items()))
    return result


def _said(miss: Miss) -> str:
    return f"{miss.why} ({miss.what})" if miss.what else miss.why


def prompts_of(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """A prompt of each length, none of which begins like another."""
    return [tuple((131 * number + 7 * i) % VOCAB for i in range(length)) for number, length in enumerate(lengths)]


def meet(meeting: Meeting, lengths: Sequence[int] = LENGTHS) -> tuple[Found, Found]:
    """What the second found, and what the first again."""
    prompts, positions = prompts_of(lengths), sum(lengths)
    senders = {"first": meeting.first, "second": meeting.second, "again": meeting.first}
    if not meeting.restarted:
        replica = Replica(meeting.first, None)
        for by, sender in senders.items():
            replica.send(by, sender, prompts)
            replica.answer(1 if by == "first" else _ANSWER)
        replica.check(prompts)
        return found(replica.events, "second", positions), found(replica.events, "again", positions)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for by, sender in senders.items():
            replica = Replica(sender, Path(folder))
            replica.send(by, sender, prompts)
            replica.answer()
            replica.close()
            replica.check(prompts)
            results.append(found(replica.events, by, positions))
    return results[1], results[2]


def table(rows: dict[str, tuple[Found, Found]]) -> str:
    """Markdown: a line for each meeting."""
    lines = [
        "| who sends the same prompts | reused | blocks shared | reloaded | why no more | the first again: reused |",
        "|---|---|---|---|---|---|",
    ]
    for name, (second, again) in rows.items():
        why = ", ".join(f"{count} × `{said}`" for said, count in second.why.items())
        reused = f"{second.reused:,} of {second.positions:,}"
        cells = [reused, second.shared, second.reloaded, why, f"{again.reused:,}"]
        lines.append(f"| {' | '.join(map(str, [name, *cells]))} |")
    return "\n".join(lines)


def plot(rows: dict[str, tuple[Found, Found]], path: str) -> None:
    """Reused and computed positions of the second sender, and of the first again."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 3.8), sharey=True, width_ratios=(1.5, 1))
    for axis, place, title in zip(axes, (0, 1), ("The second sender", "The first again"), strict=True):
        each = [pair[place] for pair in rows.values()]
        reused = [one.reused for one in each]
        axis.barh(list(rows), reused, color="#2a9d8f", label="reused")
        axis.barh(list(rows), [one.positions - one.reused for one in each], left=reused, color="#d9d9d9",
                  label="computed")  # fmt: skip
        for y, one in enumerate(each):
            axis.text(one.positions * 1.02, y, ", ".join(one.why), va="center", fontsize=8)
        axis.set_xlim(0, max(one.positions for one in each) * 1.3)
        axis.set_title(f"{title}, and why no more", loc="left", fontweight="bold", fontsize=10)
        axis.set_xlabel("positions of its prompts")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[0].legend(loc="lower center", fontsize=8, frameon=False, ncols=2, bbox_to_anchor=(0.4, 1.08))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _kept(meeting: Meeting, pair: tuple[Found, Found]) -> dict[str, Any]:
    return {**asdict(meeting), "second_found": asdict(pair[0]), "first_found_again": asdict(pair[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    rows = {meeting.name: meet(meeting) for meeting in MEETINGS}
    print(table(rows))
    if args.out:
        kept = [_kept(meeting, rows[meeting.name]) for meeting in MEETINGS]
        document = {**described(), "block_tokens": BLOCK_TOKENS, "prompts": LENGTHS, "meetings": kept}
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
