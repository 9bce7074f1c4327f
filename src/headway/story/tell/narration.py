"""The story of a few requests told while it happens: events in, sentences out (`headway follow`, the lessons)."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core import events as ev
from headway.core.request import Stage
from headway.core.verdict import Wait
from headway.story.reduce.reducer import Story
from headway.story.tell.sentences import AWAITED, count, shortage

#: What a request did in one step, as a letter of its strip.
STRIP = {"prefill": "P", "decode": "d", "recompute": "r", "evaluate": "e", "wait": "w", "over": ".", "away": " "}
_OF = {
    "prefill": "of its prompt", "decode": "of its answer", "recompute": "recomputed, whose state was lost",
    "evaluate": "of its input",
}  # fmt: skip


@dataclass
class Narrator:
    """Folds events into a story of its own and says what is new. `strips` has a letter per step for each request."""

    story: Story = field(default_factory=Story)
    strips: dict[str, list[str]] = field(default_factory=dict)
    steps: int = 0
    _run: tuple[str, ...] = ()
    _run_from: int = 0
    _run_to: int = 0
    _waits: dict[str, str] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)

    def tell(self, event: ev.AnyEvent) -> list[str]:
        """The sentences that `event` adds. Steps that do the same are told as one, once something else happens."""
        before = {id: self._emitted(id) for id in self.story.live}
        self.story.fold(event)
        match event:
            case ev.Committed():
                firsts = [id for id in self.story.live if self._emitted(id) and not before.get(id)]
                return [line for id in firsts for line in (*self.flush(), self._first(id, event.at))]
            case ev.Arrived():
                told = [f"{event.id} arrives: {_brings(event)}."]
            case ev.Admitted():
                told = [self._admitted(event)]
            case ev.Preempted():
                account = f"so that {event.by} can go on" if event.by != event.id else "since it cannot grow"
                lost = count(sum(event.lost), "position")
                told = [f"{event.id} is preempted {account}: {lost} lost, {count(event.blocks, 'block')} free again."]
            case ev.ReloadStarted():
                blocks = len({block for table in event.tables for block in table})
                gets = f"{event.id} gets {count(blocks, 'block')}"
                told = [f"{gets}; {event.wait.need} of them are reloaded from tiers first."]
            case ev.Reloaded():
                told = [f"{event.id} has {count(sum(event.blocks.values()), 'block')} back from tiers."]
            case ev.ReloadDropped():
                told = [f"{event.id} loses its blocks before it has a seat, so that {event.by} can go on."]
            case ev.Stepped():
                return self._stepped(event)
            case ev.Finished():
                told = [f"{event.id} finishes ({event.reason}): {self._released(event.id)}"]
            case ev.Cancelled():
                told = [f"{event.id} is cancelled: {self._released(event.id)}"]
            case ev.Failed():
                told = [f"{event.id} fails: {event.message}."]
            case _:
                return []
        return [*self.flush(), *told]

    def flush(self) -> list[str]:
        """The steps that were not told yet."""
        if not self._run:
            return []
        first, last, doing = self._run_from, self._run_to, "; ".join(self._run)
        self._run = ()
        return [f"step {first}: {doing}." if first == last else f"steps {first} to {last}, each: {doing}."]

    def _stepped(self, event: ev.Stepped) -> list[str]:
        self.steps = event.step
        for id, record in self.story.live.items():
            self._held[id] = len({block for sequence in record.sequences for block in sequence.blocks})
        doing: dict[str, str] = {}
        for member in event.members:
            doing[member.id] = f"{member.id} {count(member.positions, 'position')}{self._does(member)}"
        told = self._waiting(event)
        pattern = tuple(doing[id] for id in sorted(doing))
        if pattern != self._run:
            told = [*self.flush(), *told]
            self._run, self._run_from = pattern, event.step
        self._run_to = event.step
        self._mark(event)
        return told

    def _does(self, member: ev.Member) -> str:
        """What a request does with its positions in a step. The last step that recomputes may go beyond what was
        lost."""
        if member.doing == "recompute":
            counts = self.story.live[member.id].sequences[member.index].counts
            lost = counts.reused + counts.prefilled + counts.decoded - member.start
            if lost < member.positions:
                return f", {lost} of them {_OF[member.doing]}"
        return f" {_OF[member.doing]}"

    def _waiting(self, event: ev.Stepped) -> list[str]:
        """Whoever waits for something that it did not wait for before."""
        told = []
        for id in [id for id, record in self.story.live.items() if record.stage is Stage.WAITING]:
            verdict = self.story.live[id].verdict
            if isinstance(verdict, Wait) and self._waits.get(id) != verdict.rule:
                self._waits[id] = verdict.rule
                told.append(f"{id} waits for {AWAITED[verdict.on]}: {shortage(verdict)}")
        for id in [id for id in self._waits if id not in event.waits]:
            del self._waits[id]
        return [*self.flush(), *told] if told else []

    def _mark(self, event: ev.Stepped) -> None:
        doing = {member.id: member.doing for member in event.members}
        for id in (*self.story.ended, *self.story.live):
            strip = self.strips.setdefault(id, [STRIP["away"]] * (event.step - 1))
            over = id not in self.story.live
            strip.append(STRIP["over"] if over else STRIP[doing.get(id, "wait")])

    def _admitted(self, event: ev.Admitted) -> str:
        blocks = len({block for table in event.tables for block in table})
        text = f"{event.id} {'resumes' if event.resumed else 'is admitted'} with {count(blocks, 'block')}"
        found = sum(event.inherited)
        if found:
            text += f", {count(found, 'position')} of them {'still there' if event.resumed else 'reused'}"
        return text + "."

    def _first(self, id: str, at: int) -> str:
        waited_ms = (at - self.story.live[id].received_at) / 1e6
        return f"{id} emits its first token, {waited_ms:.0f} ms after it arrived."

    def _emitted(self, id: str) -> int:
        return sum(sequence.emitted for sequence in self.story.live[id].sequences)

    def _released(self, id: str) -> str:
        levels = self.story.levels
        kept = f", {levels.reusable} stay reusable" if levels.reusable else ""
        return f"its {count(self._held.pop(id, 0), 'block')} are released{kept}; {levels.free} are free now."


def _brings(event: ev.Arrived) -> str:
    if event.positions:
        windows = f" in {len(event.positions)} windows" if len(event.positions) > 1 else ""
        return f"{count(sum(event.positions), 'position')} to be evaluated{windows}"
    return f"{event.prompt} prompt positions, at most {event.max_tokens} tokens to emit"


def strip_chart(strips: dict[str, list[str]], width: int = 100) -> list[str]:
    """What each request did in every step, a line each under a ruler; wrapped at `width` steps."""
    steps = max((len(strip) for strip in strips.values()), default=0)
    names = max((len(id) for id in strips), default=0)
    lines = []
    for first in range(0, steps, width):
        part = range(first, min(first + width, steps))
        ruler = "".join(f"{step + 1:<10}" for step in part if step % 10 == 0)
        lines.append(f"{'step':<{max(names, 4)}}  {ruler}".rstrip())
        for id, strip in strips.items():
            lines.append(f"{id:<{max(names, 4)}}  {''.join(strip[first : first + width])}".rstrip())
    return lines
