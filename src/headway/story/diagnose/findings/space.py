"""Seats and memory: which of the two requests waited for, while how much of the other was there; and preemptions."""

from __future__ import annotations

from collections import Counter

from headway.story.diagnose.findings import FEW, SHARE, Finding, duration, named, size, worth
from headway.story.diagnose.findings.cost import price_ns
from headway.story.diagnose.findings.smaller_state import smaller_states
from headway.story.diagnose.observations import Observations, ObservedStep
from headway.story.tell.sentences import count, times


def _waiting_for(observed: Observations, *rules: str) -> tuple[list[ObservedStep], int]:
    """The steps whose first waiting request waits by one of `rules`, and what that cost: everyone behind it waits
    too."""
    rows = [step for step in observed.steps if step.head in rules]
    return rows, sum(step.owned_ns * step.waiting for step in rows)


def seats_full(observed: Observations) -> Finding | None:
    """Requests waited for seats: while there was memory for more of them, or while there was none."""
    rows, cost_ns = _waiting_for(observed, "seats")
    if len(rows) < FEW or not worth(observed, cost_ns):
        return None
    seats = max(step.levels.seats_used + step.waits["seats"].have for step in rows)
    spare = min(step.levels.free + step.levels.reusable for step in rows)
    each = max(observed.most_held, *(-(-step.levels.live // max(1, step.levels.seats_used)) for step in rows))
    total = rows[0].levels.total
    most = max(step.waiting for step in rows)
    more, budget = spare // each if each else most, rows[-1].budget
    evidence = {
        "steps": len(rows), "seats": seats, "most_waiting": most,
        "spare_blocks": spare, "blocks": total, "blocks_each": each, "more_seats": more,
    }  # fmt: skip
    waited = (
        f"In {count(len(rows), 'step')} too few of the {count(seats, 'seat')} were free; up to "
        f"{count(most, 'request')} waited, {duration(cost_ns)} in total"
    )
    if more < 1:
        return Finding(
            "seats_and_memory_full",
            cost_ns / 1e9,
            f"{waited}. Memory was full too: {spare} of {total} blocks were free or reusable, and a sequence holds "
            f"up to {each}.",
            "raise --memory and --seats together, or add a second machine",
            "More --seats alone would not help: there is no memory for them.",
            evidence=evidence,
        )
    wanted = seats + min(more, most)
    step_tokens = (
        f", and --step-tokens to at least as many (it is {budget})"
        if wanted > budget and observed.gap_ms is None
        else ""
    )
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
        f"free blocks are enough for {more} more",
        "More --memory would not help: there was memory to spare.",
        evidence=evidence,
    )


def memory_full(observed: Observations) -> Finding | None:
    """Requests waited for blocks, or for the bytes of a latent, while seats were free."""
    rule = "latent" if any(step.head == "latent" for step in observed.steps) else "blocks"
    rules = ("latent",) if rule == "latent" else ("blocks", "reservation")
    rows, cost_ns = _waiting_for(observed, *rules)
    seats = observed.seats
    if len(rows) < FEW or not worth(observed, cost_ns):
        return None
    short = max(step.waits[step.head].short for step in rows if step.head)
    total = rows[0].levels.total
    spare = min(seats - step.levels.seats_used for step in rows)
    first = observed.steps[0].levels.evictions
    evicted = max(0, rows[-1].levels.evictions - first)
    bytes_more = (
        f" ({size(short * observed.loaded.block_bytes)} more)" if observed.loaded and rule == "blocks" else ""
    )
    needed = count(total + short, "block") if rule == "blocks" else f"{total + short} bytes"
    known = f" of {seats}" if observed.loaded else ""
    waiting = max(step.waiting for step in rows)
    unit = "blocks" if rule == "blocks" else "bytes"
    says = (
        f"In {count(len(rows), 'step')} a request waited for {unit}, up to {short} short (the pool has {total}); up "
        f"to {count(waiting, 'request')} waited, {duration(cost_ns)} in total."
    )
    meanwhile = [
        *([f"{count(evicted, 'block')} of known prefixes were evicted"] if evicted else []),
        *([f"requests were preempted {times(len(observed.preemptions))}"] if observed.preemptions else []),
    ]
    if meanwhile:
        says += f" Meanwhile {' and '.join(meanwhile)}."
    return Finding(
        "memory_full",
        cost_ns / 1e9,
        says,
        f"raise --memory from {total} to at least {needed}{bytes_more}{_smaller(observed, rule, total, short)}",
        f"More --seats would not help: at least {spare}{known} were free." if spare > 0 and observed.loaded else "",
        evidence={"steps": len(rows), f"short_{unit}": short, unit: total, "spare_seats": spare,
                  "evictions": evicted, "preemptions": len(observed.preemptions)},
    )  # fmt: skip


def _smaller(observed: Observations, rule: str, total: int, short: int) -> str:
    """The first smaller format of state that would have covered a shortage of blocks, as a clause."""
    wanted = (total + short) / total
    enough = [state for state in smaller_states(observed) if state.times >= wanted and rule == "blocks"]
    return f", or serve with --state {enough[0].name} ({enough[0].costs})" if enough else ""


def recomputed(observed: Observations) -> Finding | None:
    """Work that was done again because the state was gone."""
    again = observed.counts["recomputed"]
    evaluated = sum(observed.counts[kind] for kind in ("prefilled", "decoded", "recomputed", "rejected"))
    if not observed.preemptions or not observed.steps or not again or again < SHARE * evaluated:
        return None
    cost_ns = price_ns(observed, again)
    pairs = Counter((event.by, event.id) for event in observed.preemptions)
    (by, victim), often = pairs.most_common(1)[0]
    lost = sum(sum(event.lost) for event in observed.preemptions)
    used = max(step.levels.seats_used for step in observed.steps)
    levels = observed.steps[-1].levels
    total = levels.total
    fits = total // max(1, observed.most_held)
    lower = f", or lower --seats to {fits}" if 0 < fits < used else ""
    return Finding(
        "recomputed",
        cost_ns / 1e9,
        f"{again} of {evaluated} positions ({again / evaluated:.0%}) were recomputed after "
        f"{count(len(observed.preemptions), 'preemption')}, which lost {lost}; most often {by} preempted {victim} "
        f"({times(often)}). Up to {used} sequences were active, a sequence held up to {observed.most_held} "
        f"blocks, and the pool has {total}.",
        f"raise --memory to {used * observed.most_held} blocks, enough for that many sequences to finish{lower}",
        "More --step-tokens would not help: space was short, not the step budget.",
        evidence={"recomputed": again, "evaluated": evaluated, "preemptions": len(observed.preemptions), "lost": lost,
                  "blocks": total, "most_held": observed.most_held, "most_active": used, "fits": fits,
                  "who": named([f"{by} preempted {victim}" for by, victim in pairs])},
    )  # fmt: skip
