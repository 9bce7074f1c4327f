"""Work that goes round in circles: recovery loops and what would end them, prefixes that evict each other in turn,
preemptions that find nothing again, and decisions that move nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from headway.core import events as ev
from headway.core.recovery import Demand
from headway.core.tiers import Backlog
from headway.story.diagnose.findings import FEW, SHARE, Finding, size
from headway.story.diagnose.findings.cost import price_ns
from headway.story.diagnose.findings.smaller_state import smaller_states
from headway.story.diagnose.observations import Observations
from headway.story.tell.alarms import no_progress as words_of
from headway.story.tell.sentences import count, times

#: From this share of what came on, what a cut kept out is a shortage.
SHORTAGE = 0.05


def no_progress(observed: Observations) -> Finding | None:
    """The same decision was taken again and again, and nothing moved."""
    if not observed.stuck:
        return None
    told = observed.stuck[-1]
    if told.writes is not None:
        return _unwritten(observed, told, told.writes)
    assert told.wait is not None
    by_input = told.wait.on == "input"
    return Finding(
        "no_progress",
        0.0,
        words_of(told),
        f"look at what brings it ({told.wait.rule}), then cancel {told.id} or restart the server"
        if by_input
        else "restart the server: no request that runs could give back what is missing",
        lost=len({event.id for event in observed.stuck if event.id}),
        evidence={"id": told.id, "on": told.wait.on, "rule": told.wait.rule, "short": told.wait.short,
                  "times": told.times},
    )  # fmt: skip


def _unwritten(observed: Observations, told: ev.NoProgress, writes: Backlog) -> Finding:
    """What is to be written to a tier stands. Nobody waits for it, but nothing of it will be found again."""
    by_disk = bool(writes.writing)
    return Finding(
        "no_progress",
        0.0,
        words_of(told),
        "look at the disk that holds --disk-tier: it takes nothing; a restart without --disk-tier serves meanwhile"
        if by_disk
        else "look at what reads from the disk that holds --disk-tier: what it brings has the host slots",
        "Requests go on, and what they computed is found again only as long as it stays in the pool.",
        lost=len({event.id for event in observed.stuck if event.id}),
        evidence={"model": told.model, "tier": writes.tier, "writing": writes.writing, "queued": writes.queued,
                  "pinned": writes.pinned, "slots": writes.slots, "times": told.times},
    )  # fmt: skip


# -- recovery loops -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remedy:
    """A supported change: what to do, whether that covers the demand, and what it costs."""

    do: str
    covers: bool
    costs: str

    def __str__(self) -> str:
        return f"{self.do} ({self.costs})"


def recovery_loop(observed: Observations) -> Finding | None:
    """Lost work rose while goodput fell; which of the two it was, admission that was too eager or memory that is
    short, shows in what a cut of admission kept out."""
    told = [event for events in observed.recovery.told.values() for event in events]
    loops = [event for event in told if event.phase == "began"]
    if not loops:
        return None
    worst = max(loops, key=lambda event: event.now.recomputed)
    now, best, over = worst.now, worst.best, told[-1].phase == "over"
    evidence = {
        "model": worst.model, "loops": len(loops), "over": over, "preempted_per_s": now.preempted,
        "recomputed_per_s": now.recomputed, "prompt_per_s": now.prompt, "goodput_per_s": now.goodput,
        "best_goodput_per_s": best.goodput,
    }  # fmt: skip
    compared = (
        f"({best.share:.0%} when goodput was best); meanwhile goodput fell from {best.goodput:,.1f} to"
        if best.goodput
        else "(and no less since the start); meanwhile goodput was"
    )
    says = (
        f"A recovery loop, {times(len(loops))}{'' if over else ', and it is not over'}: {now.preempted:,.1f} "
        f"sequences a second were preempted and {now.recomputed:,.0f} positions a second computed again, "
        f"{now.share:.0%} of all prompt work {compared} {now.goodput:,.1f} tokens a second."
    )
    cuts = [event for event in told if event.offered.requests]
    if not cuts:
        return Finding(
            "recovery_loop", 0.0, says,
            "serve with --recovery auto, which admits only what cannot preempt until the loop is over, and tells "
            "which demand that keeps out",
            "More --seats or --step-tokens would make it worse: more would be admitted to the same memory.",
            evidence=evidence,
        )  # fmt: skip
    demand = max(cuts, key=lambda event: event.rejected.requests)
    return _after_a_cut(observed, says, evidence, demand)


def _after_a_cut(observed: Observations, says: str, evidence: dict[str, object], cut: ev.Recovery) -> Finding:
    offered, rejected = cut.offered, cut.rejected
    evidence = evidence | {
        "offered_requests_per_s": offered.requests, "rejected_requests_per_s": rejected.requests,
        "rejected_positions_per_s": rejected.positions,
    }  # fmt: skip
    came = f"{offered.requests:,.2f} requests a second came while admission was cut"
    if rejected.requests < SHORTAGE * offered.requests:
        return Finding(
            "recovery_loop", 0.0,
            f"{says} Admission was too eager, and memory is not short: {came}, and all of them were admitted.",
            "serve with --admit reserve, or keep --recovery auto",
            "More --memory is not needed for this load.",
            evidence=evidence | {"cause": "admission"},
        )  # fmt: skip
    left = f"{rejected.requests:,.2f} of them ({rejected.positions:,.0f} prompt positions a second) were kept out"
    if not _space_was_short(observed):
        return Finding(
            "recovery_loop", 0.0,
            f"{says} {came}, and {left}; most of them waited for a turn, so more memory alone would not serve them.",
            "send less, or add a second machine",
            evidence=evidence | {"cause": "turn"},
        )  # fmt: skip
    remedies = _remedies(observed, offered, rejected)
    covering = [remedy for remedy in remedies if remedy.covers]
    first = covering[0] if covering else None
    others = {
        "Or": [str(remedy) for remedy in covering[1:]],
        "Not enough by itself": [str(remedy) for remedy in remedies if not remedy.covers],
    }
    return Finding(
        "recovery_loop", 0.0,
        f"{says} Memory is short for this load: {came}, and {left}.",
        str(first) if first else "no supported change covers that demand here: send less, or add a second machine",
        " ".join(f"{how}: {'; '.join(named)}." for how, named in others.items() if named),
        evidence=evidence
        | {"cause": "memory", "blocks_needed": _blocks_needed(observed, _times_more(offered, rejected)),
           "remedies": [each.do for each in covering]},
    )  # fmt: skip


def _space_was_short(observed: Observations) -> bool:
    """Whether most of those who were first in the queue waited for space."""
    heads = Counter(step.waits[step.head].on for step in observed.steps if step.head)
    return heads["space"] > sum(heads.values()) / 2


def _remedies(observed: Observations, offered: Demand, rejected: Demand) -> list[Remedy]:
    """What may be changed, the changes that cost no quality first."""
    times_more = _times_more(offered, rejected)
    found = [_more_memory(observed, times_more)]
    found += [
        Remedy(f"serve with --state {smaller.name}", smaller.times >= times_more, smaller.costs)
        for smaller in smaller_states(observed)
    ]
    shorter = _shorter_context(observed, 1 / times_more)
    return [*found, *([shorter] if shorter else [])]


def _times_more(offered: Demand, rejected: Demand) -> float:
    """By how much more space all that came could be served at the rate at which the rest was."""
    return offered.requests / max(offered.requests - rejected.requests, 1e-9)


def _blocks_needed(observed: Observations, times_more: float) -> int:
    return -int(-observed.steps[-1].levels.total * times_more // 1)


def _more_memory(observed: Observations, times_more: float) -> Remedy:
    total, blocks = observed.steps[-1].levels.total, _blocks_needed(observed, times_more)
    loaded, machine = observed.loaded, observed.machine
    more_bytes = (blocks - total) * loaded.block_bytes if loaded else 0
    costs = f"{size(more_bytes)} more memory; no loss of quality" if loaded else "more memory; no loss of quality"
    covers = True
    if machine is not None and machine.free_bytes is not None and loaded:
        covers = more_bytes <= machine.free_bytes
        if not covers:
            costs += f"; only {size(machine.free_bytes)} are free"
    return Remedy(f"serve with --memory {blocks}blocks instead of {total}", covers, costs)


def _shorter_context(observed: Observations, share: float) -> Remedy | None:
    """The longest context under which what is left needs no more than `share` of the space that all need."""
    arrived = [request.arrived for request in observed.requests.values() if request.arrived is not None]
    contexts = sorted(event.prompt + event.max_tokens for event in arrived)
    sums = list(accumulate(contexts))
    allowed = share * sums[-1] if sums else 0.0
    over = next((context for place, context in enumerate(contexts) if sums[place] > allowed), None)
    kept = [context for context in contexts if over is None or context < over]
    if not kept or len(kept) == len(contexts):
        return None
    costs = f"refuses {1 - len(kept) / len(contexts):.0%} of the requests, the longest ones"
    return Remedy(f"serve with --max-context {kept[-1]}", True, costs)


# -- prefixes -------------------------------------------------------------------------------------------------


def reuse_off(observed: Observations) -> Finding | None:
    """Reuse is off, so whoever is preempted finds nothing of its state again; and who begins like others holds all of
    it for itself, so that fewer fit and more are preempted."""
    again, evaluated = observed.counts["recomputed"], observed.counts["prefilled"] + observed.counts["recomputed"]
    records = [*observed.story.ended.values(), *observed.story.live.values()]
    off = [r for r in records if r.preemptions and r.miss is not None and r.miss.why == "off"]
    if len(observed.preemptions) < FEW or not off or again < SHARE * evaluated:
        return None
    lost = sum(sum(event.lost) for event in observed.preemptions)
    alike, prompts = _alike(observed)
    shared = f"; {alike} of {prompts} prompts begin like another, and that is held once, so fewer are preempted"
    return Finding(
        "reuse_off",
        price_ns(observed, again) / 1e9,
        f"Prefix caching is off, so {count(len(observed.preemptions), 'preemption')} that lost {lost} positions had "
        f"{again} of them computed again: with it what nobody needed meanwhile is found again"
        f"{shared if alike else ''}.",
        "serve without --no-prefix-cache",
        evidence={"preemptions": len(observed.preemptions), "lost": lost, "recomputed": again, "alike": alike},
    )


def _alike(observed: Observations) -> tuple[int, int]:
    """Of the requests that queued, those whose first block another one's prompt begins with too; and all of them."""
    arrived = [request.arrived for request in observed.requests.values() if request.arrived is not None]
    first = Counter(event.beginnings[0] for event in arrived if event.beginnings)
    return sum(number for number in first.values() if number > 1), len(arrived)


def evicting_in_turn(observed: Observations) -> Finding | None:
    """Two kinds of prompt, each of which evicts the prefix of the other. Where that is so, it is why prefixes that
    were known had to go (`work.prefix_evicted`)."""
    families = _families(observed)
    pairs: Counter[tuple[int, int]] = Counter()
    shown: dict[int, str] = {}
    for id, step, _ in observed.evicted:
        victim = families.get(id)
        takers = {families[taker] for taker in observed.evicting.get(step, ()) if taker in families}
        if victim is not None and len(takers) == 1:
            shown[victim] = id
            pairs[takers.pop(), victim] += 1
    both = {(a, b): min(n, pairs[b, a]) for (a, b), n in pairs.items() if a < b}
    if not both or max(both.values()) < FEW:
        return None
    a, b = max(both, key=lambda pair: both[pair])
    again = sum(positions for id, _, positions in observed.evicted if families.get(id) in (a, b))
    if again < max(1, SHARE * observed.counts["prefilled"]):
        return None
    total = observed.steps[-1].levels.total
    return Finding(
        "evicting_in_turn",
        price_ns(observed, again) / 1e9,
        f"Two kinds of prompt evict each other's prefix in turn: prompts that begin like {shown[a]} lost it to those "
        f"that begin like {shown[b]} {times(pairs[b, a])}, and these to those {times(pairs[a, b])}; up to {again} of "
        f"{observed.counts['prefilled']} prompt positions were computed again.",
        f"raise --memory (now {total} blocks) by what a sequence holds, up to {count(observed.most_held, 'block')}, "
        "so that both stay cached, or send one kind after the other",
        evidence={"times": pairs[a, b] + pairs[b, a], "who": [shown[a], shown[b]], "positions": again,
                  "blocks": total},
    )  # fmt: skip


def _families(observed: Observations) -> dict[str, int]:
    """By request, the number that prompts share whose longest compared beginnings are equal."""
    families: dict[str, int] = {}
    for id, request in observed.requests.items():
        if request.arrived is not None and request.arrived.beginnings:
            families[id] = request.arrived.beginnings[-1]
    return families
