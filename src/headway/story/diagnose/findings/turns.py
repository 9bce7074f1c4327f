"""The device's time is shared by the served models: what waiting for another one's steps cost."""

from __future__ import annotations

from headway.story.diagnose.findings import FEW, SHARE, Finding, duration
from headway.story.diagnose.findings.cost import middle
from headway.story.diagnose.observations import Observations
from headway.story.tell.sentences import count


def other_models(observed: Observations) -> Finding | None:
    """Requests waited because another model's step ran."""
    records = [
        r for r in (*observed.story.ended.values(), *observed.story.live.values()) if r.id in observed.requests
    ]
    waits = [
        sum(interval.ns for interval in record.life(observed.last_at) if interval.rule == "model")
        for record in records
    ]
    waited = [ns for ns in waits if ns]
    cost_ns = sum(waited)
    if len(waited) < FEW or not observed.others_ns or cost_ns < SHARE * observed.lives_ns():
        return None
    share = cost_ns / observed.lives_ns()
    longest = max(observed.others_ns, key=lambda name: sum(observed.others_ns[name]))
    ran = observed.others_ns[longest]
    return Finding(
        "other_models",
        cost_ns / 1e9,
        f"{count(len(waited), 'request')} waited {duration(cost_ns)} in total, {share:.0%} of all requests' time, "
        f"while steps of other models ran; {longest} ran most, its steps took {duration(middle(ran))} (median).",
        f"serve {longest} from a replica of its own, or give its steps less to do (lower its --step-tokens)",
        "More --memory or --seats would not help: what these requests waited for was the device.",
        evidence={"requests": len(waited), "waited_ms": cost_ns / 1e6,
                  "ran_ms": {name: sum(each) / 1e6 for name, each in observed.others_ns.items()}},
    )  # fmt: skip
