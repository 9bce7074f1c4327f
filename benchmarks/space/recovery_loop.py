"""A recovery loop: the same load before it, in it, with admission cut, and after more memory, as advised.

    python -m benchmarks.space.recovery_loop [--out FILE.json] [--plot FILE.png]

Run it at the root of the repository. Time is modelled, so the numbers are the same everywhere; the plot needs
matplotlib. There is no prefix cache: what is lost is computed again.

eager   a request of 15 positions comes, and right behind it one of 2,000. Both fit, until the short one needs its
        second block: then the other loses all it had. As soon as both are answered, the next two come: ten such pairs
        a second in the loop. Before it only the long ones came. Memory is not short; admission is too eager.
short   seven times a second a request of 2,000 positions comes, and its answer takes so long that two are there at a
        time, on a pool for two prompts and one block. Before the loop fewer came. Memory is short.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path

from benchmarks.space.kept import described

from headway.compute.fake import FakeExecutor, linear_cost
from headway.core.clock import ModelledClock
from headway.core.events import Admitted, AnyEvent, Finished, Loaded, Recovery
from headway.core.recovery import NO_DEMAND, NO_RATES, Demand, Rates
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model
from headway.story.diagnose.doctor import diagnose
from headway.story.diagnose.findings import Finding
from headway.story.diagnose.findings.smaller_state import SMALLER
from headway.story.diagnose.observations import Observations
from headway.story.reduce.recovery import Recovery as Work
from headway.story.reduce.recovery import Second

BLOCK, S = 16, 10**9


@dataclass(frozen=True)
class Load:
    """Requests of `prompt` positions whose answers have `answer` tokens.

    short        right before each comes one of 15 positions and 4 tokens, and the next two when both are over
    per_second   without the short ones: how many come; `calm` is how many before the loop
    calm_s       for so many seconds there is no loop
    """

    prompt: int = 2000
    answer: int = 10
    short: bool = True
    per_second: float = 0.0
    calm: float = 0.0
    calm_s: int = 10
    step_ns: int = 1_000_000
    position_ns: int = 20_000

    def blocks(self, prompts: int, spare: int) -> int:
        """A pool for so many prompts, each with its first token, and `spare` blocks more."""
        return prompts * -(-(self.prompt + 1) // BLOCK) + spare


EAGER = Load(step_ns=1_496_923)  # with which a pair takes 100 ms in the loop
SHORT = Load(answer=50, short=False, per_second=7, calm=5, position_ns=60_000)
#: So many may wait where others are turned away; and when a story's server is started again as advised.
PLACES, RESTART_S = 20, 80


@dataclass(frozen=True)
class Setting:
    """How a load is served.

    places   so many requests may wait; who comes when as many do is turned away
    then     (second, setting): from then on it is served so, after a restart; what was alive is sent again
    """

    blocks: int
    recovery: str = "warn"
    admit: str = "optimistic"
    places: int | None = None
    then: tuple[int, Setting] | None = None


@dataclass
class Run:
    """What came of a load; `admitted` and `came` count requests by second."""

    setting: Setting
    rates: Rates = NO_RATES
    rejected: Demand = NO_DEMAND
    waiting: int = 0
    told: list[Recovery] = field(default_factory=list)
    seconds: dict[int, Rates] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)
    came: Counter[int] = field(default_factory=Counter)
    admitted: Counter[int] = field(default_factory=Counter)

    @property
    def blocks(self) -> int:
        return self.setting.blocks


class Server:
    """A modelled server, and what is told of it."""

    def __init__(self, load: Load, setting: Setting) -> None:
        self.clock, self.work, self.run = ModelledClock(), Work(), Run(setting)
        self._load = load
        self._live: dict[str, TextRequest] = {}
        self.start(setting)

    def start(self, setting: Setting) -> None:
        """Serve so from now on, and first what is alive."""
        self.setting, load = setting, self._load
        executor = FakeExecutor(
            blocks=setting.blocks, block_tokens=BLOCK, clock=self.clock,
            cost_ns=linear_cost(step_ns=load.step_ns, position_ns=load.position_ns),
        )  # fmt: skip
        facts = executor.facts
        options = EngineOptions(step_tokens=4096, admit=setting.admit, recovery=setting.recovery)
        memory = StateMemory(BlockPool(setting.blocks, BLOCK), prefix_cache=False)
        self.model = text_model(executor, memory, options)
        self.engine = Engine([self.model], self.clock, emit=self._emit)
        self._emit(
            Loaded(
                at=self.clock.now_ns(), model=facts.name, blocks=setting.blocks, block_tokens=BLOCK,
                block_bytes=facts.block_bytes, threads=1, seats=options.seats, step_tokens=options.step_tokens,
                weights="fp32", state="fp32",
            )
        )  # fmt: skip
        for request in self._live.values():
            self.engine.add(request)

    def add(self, request: TextRequest) -> None:
        """A request comes."""
        self.run.came[self.clock.now_ns() // S] += 1
        if self.setting.places is not None and len(self.model.queues.waiting) >= self.setting.places:
            self.engine.turned_away(self.model.name, 1)
            return
        self._live[request.id] = request
        self.engine.add(request)

    def step(self) -> None:
        """One step, or a millisecond without work."""
        if self.setting.then is not None and self.clock.now_ns() >= self.setting.then[0] * S:
            self.start(self.setting.then[1])
        if self.engine.busy:
            self.engine.step()
        else:
            self.clock.advance(S // 1000)

    def _emit(self, event: AnyEvent) -> None:
        self.work.fold(event)
        self.run.events.append(event)
        match event:
            case Recovery():
                self.run.told.append(event)
            case Admitted(resumed=False):
                self.run.admitted[event.at // S] += 1
            case Finished():
                del self._live[event.id]


def serve(load: Load, setting: Setting, *, since: int = 22, until: int = 32, calm: bool = False) -> Run:
    """Serve a load for `until` modelled seconds; rates are means from `since` on. With `calm` it comes all the time
    as before the loop."""
    server = Server(load, setting)
    callers = _pairs(load, server, calm) if load.short else _steady(load, server, calm)
    while server.clock.now_ns() < until * S:
        next(callers)
        server.step()
    run, seconds = server.run, server.work.seconds(server.model.name)
    run.seconds = {each.second: _rates([each]) for each in seconds}
    run.rates = _rates([each for each in seconds if since <= each.second < until])
    run.waiting = len(server.model.queues.waiting)
    run.rejected = run.told[-1].rejected if run.told else NO_DEMAND
    return run


def _pairs(load: Load, server: Server, calm: bool) -> Iterator[None]:
    """Between steps: the next two, once both are over; the long one as soon as the short one runs."""
    for number in count():
        if not calm and server.clock.now_ns() >= load.calm_s * S:
            server.add(_request(f"s{number}", 15, 4))
            yield
        server.add(_request(f"v{number}", load.prompt, load.answer))
        yield
        while server.engine.busy:
            yield


def _steady(load: Load, server: Server, calm: bool) -> Iterator[None]:
    """Between steps: whoever is due."""
    due = 0.0
    for number in count():
        while server.clock.now_ns() < due:
            yield
        server.add(_request(f"v{number}", load.prompt, load.answer))
        due += S / (load.calm if calm or due < load.calm_s * S else load.per_second)


def _request(id: str, prompt: int, tokens: int) -> TextRequest:
    first = sum(map(ord, id)) * 131
    return TextRequest(
        id=id, prompt=tuple((first + 7 * i) % 997 for i in range(prompt)), max_tokens=tokens, ignore_eos=True
    )


def _rates(seconds: Sequence[Second]) -> Rates:
    over = max(1, len(seconds))
    recomputed = sum(each.recomputed for each in seconds)
    return Rates(
        preempted=sum(each.preempted for each in seconds) / over,
        recomputed=recomputed / over,
        prompt=(sum(each.prefilled for each in seconds) + recomputed) / over,
        goodput=sum(each.emitted for each in seconds) / over,
    )


def finding(run: Run) -> Finding:
    """What the doctor says of a run's recovery loop."""
    return next(each for each in diagnose(Observations().fold_all(run.events)) if each.name == "recovery_loop")


def advised(run: Run) -> str:
    """The same in sentences."""
    found = finding(run)
    return f"{found.says} Next: {found.next}. {found.but}".strip()


def as_advised(setting: Setting, found: Finding) -> dict[str, Setting]:
    """What the doctor advises, as settings, by its words: the first is the best."""
    if found.evidence["cause"] == "admission":
        return {"serve with --admit reserve": replace(setting, recovery="warn", admit="reserve")}
    needed = found.evidence["blocks_needed"]
    assert isinstance(needed, int)
    smaller = {
        f"serve with --state {each.name} ({each.times:g} times the blocks)": int(each.times * setting.blocks)
        for each in SMALLER["fp32"]
    }
    return {
        words: replace(setting, blocks=blocks)
        for words, blocks in {f"serve with --memory {needed}blocks": needed, **smaller}.items()
    }


def rows(load: Load, blocks: int, **how: int) -> dict[str, Run]:
    """Before, in the loop, with admission cut, and the same load again with each thing that the doctor advises."""
    cut = Setting(blocks, "auto")
    measured = {
        "before": serve(load, Setting(blocks), calm=True, **how),
        "in the loop": serve(load, Setting(blocks), **how),
        "admission cut": serve(load, cut, **how),
    }
    found = finding(measured["admission cut"])
    if found.evidence["cause"] == "memory":
        measured[f"admission cut, {PLACES} may wait"] = serve(load, replace(cut, places=PLACES), **how)
    advised = as_advised(cut, found)
    return measured | {f"as advised: {words}": serve(load, setting, **how) for words, setting in advised.items()}


def story(load: Load, blocks: int, advised: Setting, until: int = 100) -> Run:
    """All of it one after the other: calm, a loop, a cut and its lift, the loop again and a longer cut, and from
    `RESTART_S` on what is advised."""
    return serve(load, Setting(blocks, "auto", then=(RESTART_S, advised)), until=until)


def table(measured: dict[str, Run]) -> str:
    """Markdown."""
    lines = ["| | blocks | preempted/s | recomputed/s | prompt work/s | goodput, tokens/s | kept out/s | waiting |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, run in measured.items():
        r, kept_out = run.rates, f"{run.rejected.requests:.1f}" if name.startswith("admission cut") else ""
        lines.append(f"| {name} | {run.blocks} | {r.preempted:.1f} | {r.recomputed:,.0f} | {r.prompt:,.0f} | "
                     f"{r.goodput:,.0f} | {kept_out} | {run.waiting} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    document: dict[str, object] = {**described(), "calm_s": EAGER.calm_s, "restart_s": RESTART_S}
    runs, said, stories = {}, {}, {}
    for name, load, blocks in (("eager", EAGER, EAGER.blocks(1, 1)), ("short", SHORT, SHORT.blocks(2, 1))):
        measured = rows(load, blocks)
        said[name] = {how: advised(measured[how]) for how in ("in the loop", "admission cut")}
        print(f"\n{name}\n\n{table(measured)}\n", *said[name].values(), sep="\n", flush=True)
        runs[name] = {how: {"blocks": run.blocks, **asdict(Shown.of(run))} for how, run in measured.items()}
        words, best = next(iter(as_advised(Setting(blocks, "auto"), finding(measured["admission cut"])).items()))
        stories[name] = {"advised": words, **_kept(story(load, blocks, best))}
    document |= {"runs": runs, "doctor": said, "stories": stories}
    if args.out:
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        from benchmarks.space.recovery_plot import plot

        plot(document, args.plot)


def _kept(run: Run) -> dict[str, object]:
    """A story as it is kept: numbers by second, and what was told."""
    last = max(run.seconds)
    seconds = [
        {"second": second, "came": run.came[second], "admitted": run.admitted[second],
         "recomputed": run.seconds[second].recomputed, "goodput": run.seconds[second].goodput}
        for second in range(last) if second in run.seconds
    ]  # fmt: skip
    told = [
        {"at_s": round(event.at / S, 1), "phase": event.phase, "cut": event.cut, "needed": event.needed,
         "kept_out_per_s": round(event.rejected.requests, 2)}
        for event in run.told
    ]  # fmt: skip
    return {"seconds": seconds, "told": told}


@dataclass(frozen=True)
class Shown:
    """A run as it is kept."""

    preempted_per_s: float
    recomputed_per_s: float
    prompt_per_s: float
    goodput_per_s: float
    kept_out_per_s: float
    waiting: int

    @classmethod
    def of(cls, run: Run) -> Shown:
        rates = run.rates
        numbers = (rates.preempted, rates.recomputed, rates.prompt, rates.goodput, run.rejected.requests)
        return cls(*(round(number, 2) for number in numbers), run.waiting)


if __name__ == "__main__":
    main()
