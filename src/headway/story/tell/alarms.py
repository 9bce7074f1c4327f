"""What the engine tells of a whole model rather than of one request, in plain sentences with numbers: a recovery
loop, admission that is cut because of it, a decision that is no progress. The console, `/health` and `top` say it."""

from __future__ import annotations

from headway.core import events as ev
from headway.core.recovery import Demand
from headway.core.tiers import Backlog
from headway.story.tell.sentences import AWAITED, count, shortage


def recovery(event: ev.Recovery) -> str:
    """A recovery loop, and what is done about it."""
    now, best = event.now, event.best
    if event.phase == "over":
        lifted = f"Admission is no longer cut{_kept(event.rejected, 'kept')}. " if event.needed <= event.clean else ""
        return f"{lifted}The recovery loop of {event.model} is over: goodput is {now.goodput:,.1f} tokens a second."
    loop = (
        f"{event.model} is in a recovery loop: {now.preempted:,.1f} sequences a second are preempted and "
        f"{now.recomputed:,.0f} positions a second computed again, {now.share:.0%} of all prompt work "
    )
    if best.goodput:
        loop += f"({best.share:.0%} at its best); goodput fell from {best.goodput:,.1f} to"
    else:
        loop += "(and no less since the start); goodput is"
    loop += f" {now.goodput:,.1f} tokens a second."
    if not event.cut:
        return loop
    if event.phase == "began":
        return f"{loop} Admission is cut until {count(event.needed, 'window')} of 10 s had no preemption."
    return (
        f"Admission to {event.model} is cut{_kept_out(event.rejected)}; {event.clean} of {event.needed} windows "
        f"without a preemption, goodput is {now.goodput:,.1f} tokens a second"
        f"{f' (before the loop {best.goodput:,.1f})' if best.goodput else ''}."
    )


def brief(event: ev.Recovery) -> str:
    """The same in half a line."""
    now, best = event.now, f" of {event.best.goodput:,.1f}" if event.best.goodput else ""
    rates = (
        f"{now.preempted:,.1f} preempted/s  {now.recomputed:,.0f} recomputed/s ({now.share:.0%} of prompt work)  "
        f"goodput {now.goodput:,.1f}{best} tokens/s"
    )
    if not event.cut:
        return rates
    return f"admission cut, {event.rejected.requests:,.1f} requests/s kept out, {rates}"


def no_progress(event: ev.NoProgress) -> str:
    """What was decided again and again, and why."""
    if event.writes is not None:
        return _unwritten(event.model, event.writes)
    wait = event.wait
    assert wait is not None
    if wait.on == "input":
        tried = f"was looked for {event.times} times in a row, and nothing of it came"
        got = f"{wait.have} of {wait.need} {wait.unit}"
        return f"No progress: what {event.id} waits for ({wait.rule}) {tried}: {got}."
    return (
        f"No progress: {event.id} waits for {AWAITED[wait.on]} by the rule {wait.rule}, nothing of {event.model} "
        f"runs, and nothing changed {event.times} times in a row: {shortage(wait)}"
    )


def _unwritten(model: str, writes: Backlog) -> str:
    """Why nothing that is to be written to a tier gets there."""
    behind = f"{count(writes.queued, 'block')} of {model}"
    slots = f"all {writes.slots} host slots are in use by what is on its way"
    if writes.writing:
        first = f"none of {count(writes.writing, 'write')} to the disk tier of {model} ended"
        rest = f", and {slots}" if writes.pinned == writes.slots else ""
        held = f"; {behind} wait behind them{rest}" if writes.queued else ""
        return f"No progress: {first} for a minute or longer{held}."
    return f"No progress: {behind} wait to be written to the {writes.tier} tier, for a minute or longer: {slots}."


def alarm(event: ev.AnyEvent) -> str | None:
    """What whoever runs the server is told at once; None of everything else."""
    match event:
        case ev.Recovery(phase="began" | "over"):
            return recovery(event)
        case ev.NoProgress():
            return no_progress(event)
    return None


def _kept_out(rejected: Demand) -> str:
    """What a cut keeps out."""
    return _kept(rejected, "keeps") or ", which keeps nothing out"


def _kept(rejected: Demand, keeps: str) -> str:
    if not rejected.requests:
        return ""
    demand = f"{rejected.requests:,.2f} requests and {rejected.positions:,.0f} prompt positions a second"
    return f", which {keeps} out {demand}"
