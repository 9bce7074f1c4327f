"""One screen of `headway top`, drawn from the board's view alone. Every kind has its own glyph besides its colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.text import Text

from headway.story.tell.boardview import (
    BoardView,
    ModelShown,
    PoolShown,
    Rates,
    RequestShown,
    SeatsShown,
    Stages,
    StepShown,
)
from headway.story.tell.sentences import AWAITED, count

#: kind of position: glyph and style of its part of a step's bar
_STEP_PARTS = {
    "prefilled": ("█", "cyan"),
    "decoded": ("▓", "green"),
    "recomputed": ("▒", "yellow"),
    "rejected": ("░", "red"),
    "evaluated": ("▚", "magenta"),
    "left": ("·", "dim"),
}
_TEXT_PARTS = ("prefilled", "decoded", "recomputed", "rejected")
_POOL_PARTS = {"live": ("█", "green"), "reusable": ("▒", "cyan"), "free": ("·", "dim")}
_STAGES = {"running": "green", "waiting": "yellow", "received": "cyan", "failed": "red", "refused": "red"}
_HEIGHTS = "▁▂▃▄▅▆▇█"
#: Below these there is nothing to read.
_LEAST_WIDTH, _LEAST_HEIGHT = 40, 10
_ROOMY_HEIGHT, _ROOMY_WIDTH = 20, 100
#: What a step of each pattern is measured in, beside text.
_UNITS = {"embed": "positions", "image": "updates"}
_LONGEST_NAME = 16
_LABEL = 7


@dataclass(frozen=True)
class Room:
    """How many rows of steps and of requests fit a height."""

    steps: int
    requests: int
    spaced: bool

    @classmethod
    def of(cls, height: int, model_lines: int = 2) -> Room:
        """`model_lines` are taken by what each model has: its pool and its seats."""
        height = max(height, _LEAST_HEIGHT)
        spaced = height >= _ROOMY_HEIGHT
        rest = max(0, height - 7 - model_lines - 3 * spaced)  # what is on the screen in any case
        steps = max(0, min(8, rest // 3))
        return cls(steps, rest - steps, spaced)


def screen(view: BoardView, width: int, height: int, where: str, note: str) -> list[Text]:
    """Lines, at most `height` of at most `width` cells. `where` names the source, `note` says how it is followed.
    Several models are shown apart, each by its name; one alone needs none."""
    width = max(width, _LEAST_WIDTH)
    spoken = 2 if height >= _ROOMY_HEIGHT else 1  # lines of each model
    models = [line for model in view.models for line in _apart(model, view.models, width)[:spoken]]
    if len(view.models) < 2:
        models = [_space(view, width), _label("seats") + _seats(view.seats, view.stages, _bar_width(width))]
    models += _tiers(view.models)
    alarms = [line for loop in view.loops for line in _alarm("loop", f"{loop.model}: {loop.words}", width)]
    alarms += [line for words in view.stuck for line in _alarm("stuck", words, width)]
    room = Room.of(height, len(models) + len(alarms))
    gap = [Text()] if room.spaced else []
    patterns = {model.pattern for model in view.models} or {"text"}
    lines = [
        _title(view, where),
        *models,
        _rates(view.rates, patterns),
        *alarms,
        *gap,
        _steps_head(view.steps, _kinds(patterns), width),
        *(_step(step, view, width) for step in view.steps[-room.steps :] if room.steps),
        *gap,
        _requests_head(view),
        *(_request(request, view, width) for request in view.requests[: room.requests]),
    ]
    foot = [*gap, _owners([model.pool for model in view.models]), _counters(view.counters), Text(note, style="dim")]
    if note:  # a screen that is followed keeps its last lines where they are
        lines += [Text()] * (max(height, _LEAST_HEIGHT) - len(lines) - len(foot))
    lines = [*lines, *foot][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def bar(parts: Sequence[tuple[int, str, str]], width: int) -> Text:
    """(amount, glyph, style) side by side, `width` cells in all; what is there at all has at least one cell, as far
    as there are cells."""
    total = sum(amount for amount, _, _ in parts)
    if not total:
        return Text(" " * width)
    cells = [max(1, round(amount / total * width)) if amount else 0 for amount, _, _ in parts]
    while sum(cells) != width:
        cells[cells.index(max(cells))] += 1 if sum(cells) < width else -1
    text = Text()
    for (_, glyph, style), taken in zip(parts, cells, strict=True):
        text.append(glyph * taken, style=style)
    return text


def sparkline(values: Sequence[float], top: float) -> str:
    """One column per value, `top` the full height; 0 is blank."""
    return "".join(_HEIGHTS[min(7, int(value / top * 7.999))] if value > 0 and top > 0 else " " for value in values)


# -- lines ----------------------------------------------------------------------------------------------------


def _title(view: BoardView, where: str) -> Text:
    step = view.steps[-1].step if view.steps else 0
    names = ", ".join(model.model for model in view.models) if len(view.models) > 1 else view.model
    return Text.assemble(
        ("Headway", "bold green"), "  ", (names or "no model yet", "bold"), f"  step {step}  ", (where, "dim")
    )


def _apart(model: ModelShown, models: Sequence[ModelShown], width: int) -> tuple[Text, Text]:
    """Two lines of one of several models: its pool, or what goes through it; its seats, and who waits."""
    longest = min(_LONGEST_NAME, max(len(each.model) for each in models))
    name = Text(model.model, style="bold")
    name.truncate(longest, overflow="ellipsis", pad=True)
    bars = max(8, min(40, width - longest - 60))
    second = _seats(model.seats, model.stages, bars, model.passed)
    return (
        Text.assemble(name, (f" {model.pattern:<6}", "cyan")) + _pool(model, bars),
        Text(" " * (longest + 1)) + Text("seats ", style="dim") + second,
    )


def _space(view: BoardView, width: int) -> Text:
    """The pool of the only model; of an encoder, which keeps nothing, what goes through it."""
    if view.models and view.models[0].pattern == "embed":
        return _label("batch") + _through(view.models[0])
    if view.models:
        return _label("pool") + _pool(view.models[0], _bar_width(width))
    return _label("pool") + " " * _bar_width(width) + "  0 live  0 reusable  0 free of 0"


def _pool(model: ModelShown, bars: int) -> Text:
    blocks = model.pool.blocks
    if model.pattern == "embed":
        return _through(model)
    amounts = {name: getattr(blocks, name) for name in (*_POOL_PARTS, "total")}
    shown = {name: _amount(amounts[name], model.unit) for name in amounts}
    parts = [(amounts[name], *part) for name, part in _POOL_PARTS.items()]
    words = "  ".join(f"{shown[name]} {name}" for name in _POOL_PARTS)
    return bar(parts, bars) + f"  {words} of {shown['total']}"


def _tiers(models: Sequence[ModelShown]) -> list[Text]:
    """A line of what lies outside the pools, where there are tiers."""
    told = [
        f"{f'{model.model} ' if len(models) > 1 else ''}{tier.name} {tier.blocks:,} of {tier.total:,} blocks"
        for model in models
        for tier in model.tiers
    ]
    return [_label("tiers") + " · ".join(told)] if told else []


def _through(model: ModelShown) -> Text:
    waiting = sum(model.stages.waiting.values())
    return Text(
        f"{count(model.batch, 'input')} in the latest step  {model.rates.evaluated_per_s:,.0f} positions/s  "
        f"queue {waiting:,}"
    )


def _amount(number: int, unit: str) -> str:
    if unit != "bytes":
        return f"{number:,}"
    for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << power:
            return f"{number / (1 << power):,.1f} {name}"
    return f"{number:,} B"


def _seats(seats: SeatsShown, stages: Stages, bars: int, passed: int = 0) -> Text:
    waits = [f"{number} for {AWAITED[on]}" for on, number in stages.waiting.items() if number]
    waiting = f"  waiting {sum(stages.waiting.values()):,}" + (f": {', '.join(waits)}" if waits else "")
    if passed:
        waiting += f"  {passed:,} for another model's step"
    if seats.total is None:
        return Text(f"{seats.used} used") + waiting
    parts = [(seats.used, "█", "green"), (max(0, seats.total - seats.used), "·", "dim")]
    return bar(parts, bars) + f"  {seats.used} of {seats.total}" + waiting


def _rates(rates: Rates, patterns: set[str]) -> Text:
    words = [f"{rates.steps_per_s:,.1f} steps/s"]
    if "text" in patterns:
        words += [f"prefill {rates.prefilled_per_s:,.0f}/s", f"decode {rates.decoded_per_s:,.0f}/s"]
        words += [f"recompute {rates.recomputed_per_s:,.0f}/s", f"emitted {rates.emitted_tokens_per_s:,.0f}/s"]
    if patterns != {"text"}:
        words.append(f"{'updates' if patterns == {'image'} else 'evaluated'} {rates.evaluated_per_s:,.0f}/s")
    return _label("rates") + "  ".join(words)


def _alarm(label: str, words: str, width: int) -> list[Text]:
    """A recovery loop as it happens, or what makes no progress: all of it, on as many lines as it takes."""
    first, *rest = wrap(words, width - _LABEL)
    lines = [_label(label) + first, *(Text(" " * _LABEL + words) for words in rest)]
    for line in lines:
        line.stylize("yellow", _LABEL)
    return lines


def _kinds(patterns: set[str]) -> tuple[str, ...]:
    """Kinds of work that the served models can do."""
    texts = _TEXT_PARTS if "text" in patterns else ()
    return (*texts, *(("evaluated",) if patterns != {"text"} else ()), "left")


def _steps_head(steps: Sequence[StepShown], kinds: Iterable[str], width: int) -> Text:
    """What the bars mean, and how full the last steps were."""
    head = _label("steps")
    for kind in kinds:
        glyph, style = _STEP_PARTS[kind]
        head.append(glyph, style=style)
        head.append(f" {kind}  ")
    recent = steps[-max(0, width - len(head)) :]
    return head + sparkline([step.spent / step.budget for step in recent], 1.0)


def _step(step: StepShown, view: BoardView, width: int) -> Text:
    several = len(view.models) > 1
    pattern = next((model.pattern for model in view.models if model.model == step.model), "text")
    parts = [(getattr(step, kind), *part) for kind, part in _STEP_PARTS.items()]
    state = "failed" if step.failed else "runs" if step.ms is None else f"{step.ms:,.1f} ms"
    kinds = " + ".join(f"{getattr(step, kind)}" for kind in _TEXT_PARTS)
    spent = f"{step.spent} of {step.budget}"
    spent += f": {kinds}" if pattern == "text" else f" {_UNITS[pattern]}"
    bars = _bar_width(width) - (6 if several else 0)
    whose = f"  {step.model}" if several else ""
    return Text(f"{step.step:>6} ") + bar(parts, bars) + f"  {spent}  {state}{whose}"


def _requests_head(view: BoardView) -> Text:
    stages = view.stages
    waiting = sum(stages.waiting.values())
    head = Text.assemble(
        ("requests", "bold"), f"  {stages.running:,} running, {waiting:,} waiting, {stages.received:,} received"
    )
    if view.unknown:
        head.append(f", {view.unknown:,} from before event {view.events.first}", style="dim")
    return head


def _request(request: RequestShown, view: BoardView, width: int) -> Text:
    """Its words are what a narrow screen has room for first: the rest is on other lines too."""
    roomy = width >= _ROOMY_WIDTH
    stage = request.stage
    id = Text(request.id, style="bold" if stage == "running" else "")
    id.truncate(20 if roomy else 11, overflow="ellipsis", pad=True)
    held = sum(sequence.blocks.held for sequence in request.sequences)
    blocks = f"{held:>5} blocks " if roomy else ""
    if len(view.models) > 1:
        model = Text(f"{request.model:<{_LONGEST_NAME if roomy else 8}}")
        model.truncate(_LONGEST_NAME if roomy else 8, overflow="ellipsis")
        id += Text(" ") + model
    return Text.assemble(
        id, " ",
        (f"{stage:<9} ", _STAGES.get(stage, "dim")),
        (f"{blocks}{_age(request.elapsed_ms):>7}  ", "dim"),
        request.words.replace("\n", " "),
    )  # fmt: skip


def _owners(pools: Sequence[PoolShown]) -> Text:
    shown = [
        f"{owner.id} {owner.blocks}" + (f" +{owner.shared} shared" if owner.shared else "")
        for pool in pools
        for owner in pool.owners
    ]
    if unowned := sum(pool.unowned for pool in pools):
        shown.append(f"being given back {unowned}")
    return _label("owners") + (" · ".join(shown) or "no blocks held")


def _counters(counts: dict[str, int]) -> Text:
    drafts = counts["drafts_accepted"] + counts["drafts_rejected"]
    words = [
        f"{counts['preemptions']:,} preempted",
        f"{counts['evicted_blocks']:,} evicted",
        f"{counts['recomputed_positions']:,} recomputed",
        f"drafts {counts['drafts_accepted']:,}/{drafts:,}",
        f"{counts['slow_readers']:,} slow readers",
    ]
    if counts["offloaded_blocks"]:
        words.append(f"{counts['offloaded_blocks']:,} offloaded, {counts['reloaded_blocks']:,} reloaded")
    return _label("so far") + " · ".join(words)


def _label(name: str) -> Text:
    return Text.assemble((f"{name:<{_LABEL}}", "bold"))


def _bar_width(width: int) -> int:
    return max(10, min(60, width - 52))


def _age(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 600_000 else f"{ms / 60_000:.0f} min"
