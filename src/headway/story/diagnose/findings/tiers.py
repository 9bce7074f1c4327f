"""State tiers: blocks that could not be written or read, tiers too slow to be of use, tiers too small."""

from __future__ import annotations

from headway.core.tiers import Fault
from headway.story.diagnose.findings import FEW, Finding, size
from headway.story.diagnose.observations import Observations
from headway.story.tell.sentences import count, times

_FAULTS: dict[Fault, str] = {
    "write": "could not be written",
    "read": "could not be read",
    "checksum": "did not hold what was written to them",
    "header": "had damaged headers when the tier was opened",
    "foreign": "held another model's blocks when the tier was opened",
}
#: A tier is too small where it evicts so many times what is reloaded from it.
_THRASHES = 10


def tier_faults(observed: Observations) -> Finding | None:
    """Blocks in a tier were lost: they are computed again, so nothing wrong is served."""
    faults = observed.tier_faults
    if not faults:
        return None
    parts = [f"{count(number, 'slot')} {_FAULTS[fault]}" for (_, fault), number in faults.most_common()]
    written = sum(number for (_, fault), number in faults.items() if fault == "write")
    reads = sum(number for (_, fault), number in faults.items() if fault in ("read", "checksum"))
    if written:
        step = "make room on the disk of --disk-tier, or give it another folder; then restart"
    elif reads:
        step = "look after the disk of --disk-tier: what it gives back is not what was written to it"
    else:
        step = "nothing, if the file was copied here or a crash left it so; its slots are used anew"
    return Finding(
        "tier_faults",
        0.0,
        f"Of the disk tier {', '.join(parts)}; the last: {observed.tier_words}.",
        step,
        "Their blocks are computed again where they are wanted: no answer is wrong.",
        evidence={f"{tier}_{fault}": number for (tier, fault), number in sorted(faults.items())},
    )


def slow_tier(observed: Observations) -> Finding | None:
    """Computing was faster than reloading."""
    declined = observed.declined
    if len(declined) < FEW:
        return None
    blocks, last = sum(choice.blocks for choice in declined), declined[-1]
    bandwidth, break_even = last.bandwidth or 0.0, last.break_even or 0.0
    return Finding(
        "slow_tier",
        0.0,
        f"{times(len(declined)).capitalize()} a request found blocks in a tier, {blocks} in all, and computed them "
        f"all the same: they would come at {size(int(bandwidth))}/s, and computing makes as many at "
        f"{size(int(break_even))}/s.",
        "leave out the tier, or put --disk-tier on a faster disk"
        if last.disk
        else "leave out --host-tier: here computing is faster than copying",
        evidence={"declined": len(declined), "blocks": blocks, "bandwidth": bandwidth, "break_even": break_even},
    )


def small_tier(observed: Observations) -> Finding | None:
    """What was copied to the last tier was evicted from it before anyone wanted it, while requests missed blocks that
    were evicted."""
    levels = observed.story.tiers.get(observed.model, ())
    missed = [record for record in observed.records() if record.miss is not None and record.miss.why == "evicted"]
    if not levels or len(missed) < FEW:
        return None
    last, reloaded = levels[-1], sum(observed.reloaded.values())
    if last.evictions < last.total or last.evictions < _THRASHES * reloaded:
        return None
    option = {"host": "--host-tier", "disk": "--disk-tier-bytes"}[last.name]
    more = size(2 * last.total * last.bytes)
    return Finding(
        "small_tier",
        0.0,
        f"The {last.name} tier is too small for what comes again: of its {count(last.total, 'slot')} it evicted "
        f"{count(last.evictions, 'block')}, {reloaded} were reloaded, and {count(len(missed), 'request')} missed "
        "blocks that had been evicted.",
        f"raise {option}, to {more} for a start, or leave it out",
        "More --memory helps as well, and costs no copies.",
        evidence={"slots": last.total, "evicted": last.evictions, "reloaded": reloaded, "missed": len(missed)},
    )
