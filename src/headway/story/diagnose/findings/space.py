"""Seats and memory: which of the two requests waited for, while how much of the other was there; and preemptions."""

from __future__ import annotations

from collections import Counter

from headway.story.diagnose.findings import FEW, SHARE, Finding, duration, named, size, worth
from headway.story.diagnose.findings.cost import price_ns
from headway.story.diagnose.observations import Observations, StepSeen
from headway.story.tell.sentences import count, times


def _waiting_for(seen: Observations, rule: str) -> tuple[list[StepSeen], int]:
    """The steps whose first waiting request waits by `rule`, and what that cost: everyone behind it waits too."""
    rows = [step for step in seen.steps if step.head == rule]
    return rows, sum(step.owned_ns * step.waiting for step in rows)


def seats_full(seen: Observations) -> Finding | None:
    """Requests waited for seats: while there was memory for more of them, or while there was none."""
    rows, cost_ns = _waiting_for(seen, "seats")
    if len(rows) < FEW or not worth(seen, cost_ns):
        return None
    seats = max(step.levels.seats_used + step.waits["seats"].have for step in rows)
    spare = min(step.levels.free + step.levels.reusable for step in rows)
    each = max(seen.most_held, *(-(-step.levels.live // max(1, step.levels.seats_used)) for step in rows))
    total = rows[0].levels.total
    most = max(step.waiting for step in rows)
    more, budget = spare // each if each else most, rows[-1].budget
    evidence = {
        "steps": len(rows), "seats": seats, "most_waiting": most,
        "spare_blocks": spare, "blocks": total, "blocks_each": each, "more_seats": more,
    }  # fmt: skip
    waited = (
        f"In {count(len(rows), 'step')} too few of {count(seats, 'seat')} were free; up to "
        f"{count(most, 'request')} waited, {duration(cost_ns)} together"
    )
    if more < 1:
        return Finding(
            "seats_and_memory_full",
            cost_ns / 1e9,
            f"{waited}. Memory was full too: {spare} of {total} blocks were free or reusable, and a sequence holds "
            f"up to {each}.",
            "raise --memory and --seats together, or serve from a second machine",
            "More --seats alone would not help: there is no memory for them.",
            evidence=evidence,
        )
    wanted = seats + min(more, most)
    step_tokens = f", and --step-tokens to at least as many (it is {budget})" if wanted > budget else ""
    if not each:
        return Finding(
            "seats_full",
            cost_ns / 1e9,
            f"{waited}.",
            f"raise --seats from {seats} to {wanted}{step_tokens}",
            "More --memory would not help: such a request keeps no state.",
            evidence=evidence,
        )
    return Finding(
        "seats_full",
        cost_ns / 1e9,
        f"{waited}, while at least {spare} of {total} blocks were free or reusable.",
        f"raise --seats from {seats} to {wanted}{step_tokens}: a sequence held up to {count(each, 'block')}, so the "
        f"free ones would carry {more} more",
        "More --memory would not help: there was some to spare.",
        evidence=evidence,
    )


def memory_full(seen: Observations) -> Finding | None:
    """Requests waited for blocks, or for the bytes of a latent, while seats were free."""
    rule = "latent" if any(step.head == "latent" for step in seen.steps) else "blocks"
    rows, cost_ns = _waiting_for(seen, rule)
    seats = seen.seats
    if len(rows) < FEW or not worth(seen, cost_ns):
        return None
    short = max(step.waits[rule].short for step in rows)
    total = rows[0].levels.total
    spare = min(seats - step.levels.seats_used for step in rows)
    first = seen.steps[0].levels.evictions
    evicted = max(0, rows[-1].levels.evictions - first)
    bytes_more = f" ({size(short * seen.loaded.block_bytes)} more)" if seen.loaded and rule == "blocks" else ""
    needed = count(total + short, "block") if rule == "blocks" else f"{total + short} bytes"
    known = f" of {seats}" if seen.loaded else ""
    waiting = max(step.waiting for step in rows)
    unit = "blocks" if rule == "blocks" else "bytes"
    says = (
        f"In {count(len(rows), 'step')} a request waited for {unit}, up to {short} short of {total}; up to "
        f"{count(waiting, 'request')} waited, {duration(cost_ns)} together."
    )
    meanwhile = [
        *([f"{count(evicted, 'block')} of known prefixes had to go"] if evicted else []),
        *([f"requests were preempted {times(len(seen.preemptions))}"] if seen.preemptions else []),
    ]
    if meanwhile:
        says += f" Meanwhile {' and '.join(meanwhile)}."
    return Finding(
        "memory_full",
        cost_ns / 1e9,
        says,
        f"raise --memory from {total} to at least {needed}{bytes_more}",
        f"More --seats would not help: at least {spare}{known} were free." if spare > 0 and seen.loaded else "",
        evidence={"steps": len(rows), f"short_{unit}": short, unit: total, "spare_seats": spare,
                  "evictions": evicted, "preemptions": len(seen.preemptions)},
    )  # fmt: skip


def recomputed(seen: Observations) -> Finding | None:
    """Work that was done again because the state was gone."""
    again = seen.counts["recomputed"]
    evaluated = sum(seen.counts[kind] for kind in ("prefilled", "decoded", "recomputed", "rejected"))
    if not seen.preemptions or not seen.steps or not again or again < SHARE * evaluated:
        return None
    cost_ns = price_ns(seen, again)
    pairs = Counter((event.by, event.id) for event in seen.preemptions)
    (by, victim), often = pairs.most_common(1)[0]
    lost = sum(sum(event.lost) for event in seen.preemptions)
    used = max(step.levels.seats_used for step in seen.steps)
    levels = seen.steps[-1].levels
    total = levels.total
    fits = total // max(1, seen.most_held)
    lower = f", or lower --seats to {fits}" if 0 < fits < used else ""
    return Finding(
        "recomputed",
        cost_ns / 1e9,
        f"{again} of {evaluated} positions ({again / evaluated:.0%}) were evaluated again after "
        f"{count(len(seen.preemptions), 'preemption')}, which lost {lost}; most often {by} preempted {victim} "
        f"({times(often)}). Up to {used} sequences were active, a sequence held up to {seen.most_held} "
        f"blocks, and there are {total}.",
        f"raise --memory to {used * seen.most_held} blocks, which hold as many sequences to their end{lower}",
        "More --step-tokens would not help: it is space that was short.",
        evidence={"recomputed": again, "evaluated": evaluated, "preemptions": len(seen.preemptions), "lost": lost,
                  "blocks": total, "most_held": seen.most_held, "most_active": used, "fits": fits,
                  "who": named([f"{by} preempted {victim}" for by, victim in pairs])},
    )  # fmt: skip
