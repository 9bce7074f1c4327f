"""Why is this slow? All findings over what was seen, the most costly first, or plainly that there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from headway.story.diagnose.findings import Finding, callers, duration, pace, space, work
from headway.story.diagnose.observations import Observations
from headway.story.tell.sentences import count

FINDINGS: tuple[Callable[[Observations], Finding | None], ...] = (
    callers.refused, callers.not_finite, callers.failures, callers.grammars, callers.before_the_replica,
    callers.front_queue, callers.slow_clients, callers.slow_delivery, space.seats_full, space.memory_full,
    space.recomputed,
    pace.step_budget, pace.prefill_interference, pace.host_gaps, pace.slower_steps, pace.fallback_kernels,
    work.prefix_off, work.prefix_evicted, work.prefix_differs, work.prefix_salts, work.drafts,
)  # fmt: skip


def diagnose(observed: Observations) -> list[Finding]:
    """Requests that got no answer come before those that got it late; then the most costly first. Changes nothing."""
    found = [finding for look in FINDINGS if (finding := look(observed)) is not None]
    return sorted(found, key=lambda finding: (-finding.lost, -finding.cost_s))


def view(observed: Observations, findings: list[Finding]) -> dict[str, Any]:
    """For scripts: `seen` says how much was looked at, `time` where the requests' time went, in ms by interval."""
    return {
        "seen": {
            "seconds": _seconds(observed),
            "steps": len(observed.done),
            "requests": len(observed.requests),
            "emitted_tokens": observed.counts["emitted"],
            "model": observed.loaded.model if observed.loaded else None,
        },
        "time": {name: round(ns / 1e6, 6) for name, ns in _time(observed).items()},
        "findings": [asdict(finding) for finding in findings],
    }


def tell(observed: Observations, findings: list[Finding]) -> list[str]:
    """The same in sentences: what was seen, each finding with its next step, where the time went."""
    told = [_looked(observed)]
    for number, finding in enumerate(findings, 1):
        cost = f" [up to {duration(finding.cost_s * 1e9)} of requests' time]" if finding.cost_s else ""
        told.append(f"{number}. {finding.says}{cost}")
        told.append(f"   Next: {finding.next}.")
        if finding.but:
            told.append(f"   But: {finding.but}")
    if not findings and observed.done:
        told.append("Nothing found: no time was lost for a known reason.")
    if any(_time(observed).values()):
        told.append(_spent(observed))
    return told


def _looked(observed: Observations) -> str:
    if not observed.done:
        return f"Nothing can be said yet: no step has run ({count(len(observed.requests), 'request')} seen)."
    first, last = observed.done[0].step, observed.done[-1].step
    return (
        f"Seen: {count(len(observed.done), 'step')} ({first} to {last}) in {_seconds(observed):.2f} s, "
        f"{count(len(observed.requests), 'request')}, {count(observed.counts['emitted'], 'token')} emitted."
    )


def _spent(observed: Observations) -> str:
    totals = _time(observed)
    whole = sum(totals.values())
    parts = [f"{name} {ns / whole:.0%}" for name, ns in totals.items() if ns / whole >= 0.005]
    return f"Where the requests' time went: {', '.join(parts)}."


def _time(observed: Observations) -> dict[str, int]:
    """Nanoseconds by interval over the whole lives of the requests that were seen, the largest first."""
    totals: Counter[str] = Counter()
    for record in (*observed.story.ended.values(), *observed.story.live.values()):
        if record.id in observed.requests:
            for interval in record.life(observed.last_at):
                totals[interval.name + (f" for {interval.rule}" if interval.rule else "")] += interval.ns
    return dict(totals.most_common())


def _seconds(observed: Observations) -> float:
    return 0.0 if observed.first_at is None else (observed.last_at - observed.first_at) / 1e9
