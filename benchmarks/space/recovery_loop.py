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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from benchmarks.space.kept import described

from headway.compute.fake import FakeExecutor, linear_cost
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Loaded, Recovery
from headway.core.recovery import NO_DEMAND, NO_RATES, Demand, Rates
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model
from headway.story.diagnose.doctor import diagnose
from headway.story.diagnose.findings import Finding
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


@dataclass
class Run:
    """What came of a load."""

    blocks: int
    recovery: str
    rates: Rates = NO_RATES
    rejected: Demand = NO_DEMAND
    waiting: int = 0
    told: list[Recovery] = field(default_factory=list)
    seconds: dict[int, Rates] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)


def serve(load: Load, blocks: int, recovery: str, *, since: int = 22, until: int = 32, calm: bool = False) -> Run:
    """Serve a load for `until` modelled seconds; rates are means from `since` on. With `calm` it comes all the time
    as before the loop."""
    clock, run, work = ModelledClock(), Run(blocks, recovery), Work()
    executor = FakeExecutor(
        blocks=blocks, block_tokens=BLOCK, clock=clock,
        cost_ns=linear_cost(step_ns=load.step_ns, position_ns=load.position_ns),
    )  # fmt: skip
    facts, options = executor.facts, EngineOptions(step_tokens=4096, admit="optimistic", recovery=recovery)
    model = text_model(executor, StateMemory(BlockPool(blocks, BLOCK), prefix_cache=False), options)

    def emit(event: AnyEvent) -> None:
        work.fold(event)
        run.events.append(event)
        if isinstance(event, Recovery):
            run.told.append(event)

    emit(
        Loaded(
            at=0, model=facts.name, blocks=blocks, block_tokens=BLOCK, block_bytes=facts.block_bytes, threads=1,
            seats=options.seats, step_tokens=options.step_tokens, weights="fp32", state="fp32",
        )
    )  # fmt: skip
    engine = Engine([model], clock, emit=emit)
    callers = _pairs(load, engine, calm) if load.short else _steady(load, engine, calm)
    while clock.now_ns() < until * S:
        next(callers)
        if engine.busy:
            engine.step()
        else:
            clock.advance(S // 1000)
    run.seconds = {each.second: _rates([each]) for each in work.seconds(facts.name)}
    run.rates = _rates([each for each in work.seconds(facts.name) if since <= each.second < until])
    run.waiting = len(model.queues.waiting)
    run.rejected = run.told[-1].rejected if run.told else NO_DEMAND
    return run


def _pairs(load: Load, engine: Engine, calm: bool) -> Iterator[None]:
    """Between steps: the next two, once both are over; the long one as soon as the short one runs."""
    for number in count():
        if not calm and engine.clock.now_ns() >= load.calm_s * S:
            engine.add(_request(f"s{number}", 15, 4))
            yield
        engine.add(_request(f"v{number}", load.prompt, load.answer))
        yield
        while engine.busy:
            yield


def _steady(load: Load, engine: Engine, calm: bool) -> Iterator[None]:
    """Between steps: whoever is due."""
    due = 0.0
    for number in count():
        while engine.clock.now_ns() < due:
            yield
        engine.add(_request(f"v{number}", load.prompt, load.answer))
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


def rows(load: Load, blocks: int, more: int, **how: int) -> dict[str, Run]:
    """Before, in the loop, with admission cut, and the same load again with what the doctor advises and with `more`
    blocks."""
    cut = serve(load, blocks, "auto", **how)
    needed = finding(cut).evidence.get("blocks_needed")
    return {
        "before": serve(load, blocks, "warn", calm=True, **how),
        "in the loop": serve(load, blocks, "warn", **how),
        "admission cut": cut,
        **({"as advised": serve(load, needed, "auto", **how)} if needed else {}),
        "more memory": serve(load, more, "auto", **how),
    }


def table(measured: dict[str, Run]) -> str:
    """Markdown."""
    lines = ["| | blocks | preempted/s | recomputed/s | prompt work/s | goodput, tokens/s | kept out/s | waiting |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, run in measured.items():
        r = run.rates
        lines.append(f"| {name} | {run.blocks} | {r.preempted:.1f} | {r.recomputed:,.0f} | {r.prompt:,.0f} | "
                     f"{r.goodput:,.0f} | {run.rejected.requests:.1f} | {run.waiting} |")  # fmt: skip
    return "\n".join(lines)


def plot(measured: dict[str, dict[str, Run]], path: str) -> None:
    """Goodput and recomputed positions by second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(measured), figsize=(6 * len(measured), 7), sharex=True, squeeze=False)
    shown: tuple[tuple[str, Callable[[Rates], float]], ...] = (
        ("goodput, tokens/s", lambda r: r.goodput), ("recomputed positions/s", lambda r: r.recomputed),
    )  # fmt: skip
    for column, (load, runs) in enumerate(measured.items()):
        for row, (label, value) in enumerate(shown):
            for name, run in runs.items():
                axes[row][column].plot([*run.seconds], [value(rates) for rates in run.seconds.values()], label=name)
            axes[row][column].set(ylabel=label, ylim=(0, None), title=load if not row else "")
        axes[1][column].set(xlabel="modelled seconds")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    measured, said = {}, {}
    for name, load, blocks, more in (
        ("eager", EAGER, EAGER.blocks(1, 1), EAGER.blocks(1, 2)),
        ("short", SHORT, SHORT.blocks(2, 1), SHORT.blocks(4, 16)),
    ):
        measured[name] = rows(load, blocks, more)
        said[name] = {how: advised(measured[name][how]) for how in ("in the loop", "admission cut")}
        print(f"\n{name}\n\n{table(measured[name])}\n", *said[name].values(), sep="\n", flush=True)
    if args.out:
        kept = {load: {name: {"blocks": run.blocks, **asdict(Shown.of(run))} for name, run in runs.items()}
                for load, runs in measured.items()}  # fmt: skip
        document = {**described(), "runs": kept, "doctor": said}
        Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(measured, args.plot)


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
