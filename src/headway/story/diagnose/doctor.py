"""Why is this slow? All findings over what was observed, the most costly first, or plainly that there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from headway.story.diagnose.findings import Finding, callers, duration, loops, pace, space, tiers, turns, work
from headway.story.diagnose.observations import Observations
from headway.story.tell.sentences import count

FINDINGS: tuple[Callable[[Observations], Finding | None], ...] = (
    callers.refused, callers.not_finite, callers.failures, callers.grammars, callers.before_the_replica,
    callers.front_queue, callers.slow_clients, callers.slow_delivery, space.seats_full, space.memory_full,
    loops.no_progress, loops.recovery_loop, space.recomputed, loops.reuse_off, loops.evicting_in_turn,
    tiers.tier_faults, tiers.slow_tier, tiers.small_tier, turns.other_models,
    pace.step_budget, pace.prefill_interference, pace.host_gaps, pace.slower_steps, pace.fallback_kernels,
    work.prefix_off, work.prefix_evicted, work.prefix_differs, work.prefix_salts, work.drafts,
)  # fmt: skip


def diagnose(*models: Observations) -> list[Finding]:
    """Requests that got no answer come before those that got it late; then the most costly first. Of several models
    each finding names its own. Changes nothing."""
    found = [
        replace(finding, model=observed.model, says=f"{observed.model}: {finding.says}")
        if len(models) > 1
        else finding
        for observed in models
        for look in FINDINGS
        if (finding := look(observed)) is not None
    ]
    return sorted(found, key=lambda finding: (-finding.lost, -finding.cost_s))


def _named(finding: Finding, model: str) -> Finding:
    return replace(finding, model=model, says=f"{model}: {finding.says}")


def view(findings: list[Finding], *models: Observations) -> dict[str, Any]:
    """For scripts: `seen` says how much was looked at, `time` where the requests' time went, in ms by interval."""
    names = [name for observed in models if (name := observed.loaded.model if observed.loaded else observed.model)]
    return {
        "seen": {
            "seconds": _seconds(models),
            "steps": len(_steps(models)),
            "requests": sum(len(observed.requests) for observed in models),
            "emitted_tokens": sum(observed.counts["emitted"] for observed in models),
            "model": names[0] if names else None,
            "models": names,
            "weights": {
                loaded.model: {"format": loaded.weights, "why": loaded.weights_why}
                for loaded in (observed.loaded for observed in models)
                if loaded is not None
            },
        },
        "time": {name: round(ns / 1e6, 6) for name, ns in _time(models).items()},
        "findings": [asdict(finding) for finding in findings],
    }


def tell(findings: list[Finding], *models: Observations) -> list[str]:
    """The same in sentences: what was observed, each finding with its next step, where the time went."""
    told = [_looked(models), *_chosen(models)]
    for number, finding in enumerate(findings, 1):
        cost = f" [up to {duration(finding.cost_s * 1e9)} of requests' time]" if finding.cost_s else ""
        told.append(f"{number}. {finding.says}{cost}")
        told.append(f"   Next: {finding.next}.")
        if finding.but:
            told.append(f"   But: {finding.but}")
    if not findings and _steps(models):
        told.append("Nothing found: no time was lost for a known reason.")
    spent = [observed for observed in models if any(_time([observed]).values())]
    return told + [_spent(observed, f" of {observed.model}" if len(models) > 1 else "") for observed in spent]


def _chosen(models: Sequence[Observations]) -> list[str]:
    """Which format weights have that nobody asked for one for, and why."""
    found = [observed.loaded for observed in models if observed.loaded is not None]
    return [f"Weights of {one.model}: {one.weights} ({one.weights_why})." for one in found if one.weights_why]


def _looked(models: Sequence[Observations]) -> str:
    steps, requests = _steps(models), sum(len(observed.requests) for observed in models)
    if not steps:
        return f"Nothing can be said yet: no step has run ({count(requests, 'request')} seen)."
    emitted = sum(observed.counts["emitted"] for observed in models)
    several = f" of {', '.join(observed.model for observed in models)}" if len(models) > 1 else ""
    return (
        f"Seen: {count(len(steps), 'step')} ({min(steps)} to {max(steps)}){several} in {_seconds(models):.2f} s, "
        f"{count(requests, 'request')}, {count(emitted, 'token')} emitted."
    )


def _spent(observed: Observations, whose: str) -> str:
    totals = _time([observed])
    whole = sum(totals.values())
    parts = [f"{name} {ns / whole:.0%}" for name, ns in totals.items() if ns / whole >= 0.005]
    return f"Where the requests' time{whose} went: {', '.join(parts)}."


def _time(models: Sequence[Observations]) -> dict[str, int]:
    """Nanoseconds by interval over the whole lives of the requests that were observed, the largest first."""
    totals: Counter[str] = Counter()
    for observed in models:
        for record in (*observed.story.ended.values(), *observed.story.live.values()):
            if record.id in observed.requests:
                for interval in record.life(observed.last_at):
                    totals[interval.name + (f" for {interval.rule}" if interval.rule else "")] += interval.ns
    return dict(totals.most_common())


def _steps(models: Sequence[Observations]) -> list[int]:
    """The numbers of those whose result is in."""
    return [step.step for observed in models for step in observed.done]


def _seconds(models: Sequence[Observations]) -> float:
    begins = [observed.first_at for observed in models if observed.first_at is not None]
    return (max(observed.last_at for observed in models) - min(begins)) / 1e9 if begins else 0.0
