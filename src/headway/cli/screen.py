"""One screen of `headway top`, drawn from the board's view alone. Every kind has its own glyph besides its colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.text import Text

View: TypeAlias = dict[str, Any]
#: kind of position: glyph and style of its part of a step's bar
_STEP_PARTS = {
    "prefilled": ("█", "cyan"),
    "decoded": ("▓", "green"),
    "recomputed": ("▒", "yellow"),
    "rejected": ("░", "red"),
    "evaluated": ("▚", "magenta"),
    "left": ("·", "dim"),
}
_POOL_PARTS = {"live": ("█", "green"), "reusable": ("▒", "cyan"), "free": ("·", "dim")}
_STAGES = {"running": "green", "waiting": "yellow", "received": "cyan", "failed": "red", "refused": "red"}
_HEIGHTS = "▁▂▃▄▅▆▇█"
#: Below these there is nothing to read.
_LEAST_WIDTH, _LEAST_HEIGHT = 40, 10
_ROOMY_HEIGHT, _ROOMY_WIDTH = 20, 100


@dataclass(frozen=True)
class Room:
    """How many rows of steps and of requests fit a height."""

    steps: int
    requests: int
    spaced: bool

    @classmethod
    def of(cls, height: int) -> Room:
        height = max(height, _LEAST_HEIGHT)
        spaced = height >= _ROOMY_HEIGHT
        rest = height - 9 - 3 * spaced  # what is on the screen in any case
        steps = max(0, min(8, rest // 3))
        return cls(steps, rest - steps, spaced)


def screen(view: View, width: int, height: int, where: str, note: str) -> list[Text]:
    """Lines, at most `height` of at most `width` cells. `where` names the source, `note` says how it is followed."""
    width, room = max(width, _LEAST_WIDTH), Room.of(height)
    gap = [Text()] if room.spaced else []
    lines = [
        _title(view, where),
        _pool(view["pool"], width),
        _seats(view, width),
        _rates(view["rates"]),
        *gap,
        _steps_head(view["steps"], width),
        *(_step(step, width) for step in view["steps"][-room.steps :] if room.steps),
        *gap,
        _requests_head(view),
        *(_request(request, width) for request in view["requests"][: room.requests]),
    ]
    foot = [*gap, _owners(view["pool"]), _counters(view), Text(note, style="dim")]
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
    for (_, glyph, style), count in zip(parts, cells, strict=True):
        text.append(glyph * count, style=style)
    return text


def sparkline(values: Sequence[float], top: float) -> str:
    """One column per value, `top` the full height; 0 is blank."""
    return "".join(_HEIGHTS[min(7, int(value / top * 7.999))] if value > 0 and top > 0 else " " for value in values)


# -- lines ----------------------------------------------------------------------------------------------------


def _title(view: View, where: str) -> Text:
    step = view["steps"][-1]["step"] if view["steps"] else 0
    return Text.assemble(
        ("Headway", "bold green"), "  ", (view["model"] or "no model yet", "bold"), f"  step {step}  ", (where, "dim")
    )


def _pool(pool: View, width: int) -> Text:
    blocks = pool["blocks"]
    parts = [(blocks[name], *part) for name, part in _POOL_PARTS.items()]
    words = "  ".join(f"{blocks[name]:,} {name}" for name in _POOL_PARTS)
    return _label("pool") + bar(parts, _bar_width(width)) + f"  {words} of {blocks['total']:,}"


def _seats(view: View, width: int) -> Text:
    used, total = view["seats"]["used"], view["seats"]["total"]
    waits = view["stages"]["waiting"]
    reasons = ", ".join(f"{count} for {'a turn' if on == 'turn' else on}" for on, count in waits.items() if count)
    waiting = f"  waiting {sum(waits.values()):,}" + (f": {reasons}" if reasons else "")
    if total is None:
        return _label("seats") + f"{used} used" + waiting
    parts = [(used, "█", "green"), (max(0, total - used), "·", "dim")]
    return _label("seats") + bar(parts, _bar_width(width)) + f"  {used} of {total}" + waiting


def _rates(rates: View) -> Text:
    words = [f"{rates['steps_per_s']:,.1f} steps/s"]
    words += [f"{name} {rates[f'{kind}_per_s']:,.0f}/s" for name, kind in _RATES.items()]
    if evaluated := rates["evaluated_per_s"]:
        words.append(f"evaluated {evaluated:,.0f}/s")
    return _label("rates") + "  ".join(words)


_RATES = {"prefill": "prefilled", "decode": "decoded", "recompute": "recomputed", "emitted": "emitted_tokens"}


def _steps_head(steps: list[View], width: int) -> Text:
    """What the bars mean, and how full the last steps were."""
    head = _label("steps")
    for kind, (glyph, style) in _STEP_PARTS.items():
        head.append(glyph, style=style)
        head.append(f" {kind}  ")
    recent = steps[-max(0, width - len(head)) :]
    return head + sparkline(
        [step["budget"] - step["left"] for step in recent], max([1, *(s["budget"] for s in steps)])
    )


def _step(step: View, width: int) -> Text:
    parts = [(step[kind], *part) for kind, part in _STEP_PARTS.items()]
    spent = step["budget"] - step["left"]
    state = "failed" if step["failed"] else "runs" if step["ms"] is None else f"{step['ms']:,.1f} ms"
    of_text = (step[kind] for kind in ("prefilled", "decoded", "recomputed", "rejected"))
    kinds = f"{step['evaluated']} evaluated" if step["evaluated"] else " + ".join(map(str, of_text))
    return (
        Text(f"{step['step']:>6} ")
        + bar(parts, _bar_width(width))
        + f"  {spent} of {step['budget']}: {kinds}  {state}"
    )


def _requests_head(view: View) -> Text:
    stages = view["stages"]
    waiting = sum(stages["waiting"].values())
    head = Text.assemble(
        ("requests", "bold"), f"  {stages['running']:,} running, {waiting:,} waiting, {stages['received']:,} received"
    )
    if view["unknown"]:
        head.append(f", {view['unknown']:,} from before event {view['events']['first']}", style="dim")
    return head


def _request(request: View, width: int) -> Text:
    """Its words are what a narrow screen has room for first: the rest is on other lines too."""
    roomy = width >= _ROOMY_WIDTH
    stage = request["stage"]
    id = Text(request["id"], style="bold" if stage == "running" else "")
    id.truncate(20 if roomy else 11, overflow="ellipsis", pad=True)
    held = sum(sequence["blocks"]["held"] for sequence in request["sequences"])
    blocks = f"{held:>5} blocks " if roomy else ""
    return Text.assemble(
        id, " ",
        (f"{stage:<9} ", _STAGES.get(stage, "dim")),
        (f"{blocks}{_age(request['elapsed_ms']):>7}  ", "dim"),
        request["words"].replace("\n", " "),
    )  # fmt: skip


def _owners(pool: View) -> Text:
    shown = [
        f"{owner['id']} {owner['blocks']}" + (f" +{owner['shared']} shared" if owner["shared"] else "")
        for owner in pool["owners"]
    ]
    if pool["unowned"]:
        shown.append(f"being given back {pool['unowned']}")
    return _label("owners") + (" · ".join(shown) or "nobody holds a block")


def _counters(view: View) -> Text:
    counts = view["counters"]
    drafts = counts["drafts_accepted"] + counts["drafts_rejected"]
    words = [
        f"{counts['preemptions']:,} preempted",
        f"{counts['evicted_blocks']:,} evicted",
        f"{counts['recomputed_positions']:,} recomputed",
        f"drafts {counts['drafts_accepted']:,}/{drafts:,}",
        f"{counts['slow_readers']:,} slow readers",
    ]
    return _label("so far") + " · ".join(words)


def _label(name: str) -> Text:
    return Text.assemble((f"{name:<7}", "bold"))


def _bar_width(width: int) -> int:
    return max(10, min(60, width - 52))


def _age(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s" if ms < 600_000 else f"{ms / 60_000:.0f} min"
