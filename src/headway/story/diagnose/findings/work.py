"""Work that need not have been done: prefixes that were not reused, drafts that were wrong."""

from __future__ import annotations

from collections import Counter

from headway.core.events import BEGINNINGS
from headway.story.diagnose.findings import FEW, SHARE, Finding
from headway.story.diagnose.findings.cost import price_ns
from headway.story.diagnose.findings.loops import evicting_in_turn
from headway.story.diagnose.observations import Observations
from headway.story.reduce.record import Record
from headway.story.tell.sentences import count, times

#: So many positions behind a difference must be the same again for it to be a small one.
AGAIN = 4
#: Guesses below which nothing is said of drafts, and the share of right ones from which on they pay.
JUDGED, PAYS = 64, 0.2


def _missed(observed: Observations, why: str) -> list[Record]:
    records = [*observed.story.ended.values(), *observed.story.live.values()]
    return [r for r in records if r.id in observed.requests and r.miss is not None and r.miss.why == why]


def _matters(observed: Observations, positions: int) -> bool:
    return positions >= max(1, SHARE * observed.counts["prefilled"])


def prefix_off(observed: Observations) -> Finding | None:
    """Prompts begin alike, and reuse is off."""
    if observed.loaded is None:
        return None
    known: set[int] = set()
    alike = positions = 0
    off = {record.id for record in _missed(observed, "off")}
    for id, request in observed.requests.items():
        if request.arrived is None:
            continue
        shared = [
            blocks for blocks, number in zip(BEGINNINGS, request.arrived.beginnings, strict=False) if number in known
        ]
        known.update(request.arrived.beginnings)
        if shared and id in off:
            alike += 1
            positions += min(shared[-1] * observed.loaded.block_tokens, request.arrived.prompt - 1)
    if alike < FEW or not _matters(observed, positions):
        return None
    return Finding(
        "prefix_off",
        price_ns(observed, positions) / 1e9,
        f"Prefix caching is off, and {alike} prompts began like an earlier one: at least {positions} of "
        f"{observed.counts['prefilled']} prompt positions were computed again.",
        "serve without --no-prefix-cache",
        evidence={"requests": alike, "positions": positions, "prefilled": observed.counts["prefilled"]},
    )


def prefix_evicted(observed: Observations) -> Finding | None:
    """Prefixes were known, and had to go."""
    missed = _missed(observed, "evicted")
    positions = sum(r.sequences[0].prompt - 1 - r.miss.at for r in missed if r.miss)
    if len(missed) < FEW or not observed.steps or not _matters(observed, positions):
        return None
    if evicting_in_turn(observed) is not None:
        return None  # that is the cause
    first, last = observed.steps[0].levels, observed.steps[-1].levels
    total = last.live + last.reusable + last.free
    return Finding(
        "prefix_evicted",
        price_ns(observed, positions) / 1e9,
        f"{len(missed)} prompts began with a prefix that had been evicted: up to {positions} of "
        f"{observed.counts['prefilled']} prompt positions were computed again. "
        f"{count(max(0, last.evictions - first.evictions), 'block')} were evicted from a pool of {total}.",
        f"raise --memory (now {total} blocks) so that prefixes stay cached",
        evidence={"requests": len(missed), "positions": positions, "prefilled": observed.counts["prefilled"],
                  "blocks": total},
    )  # fmt: skip


def prefix_differs(observed: Observations) -> Finding | None:
    """A small change near the beginning keeps what follows from being reused."""
    missed = [r for r in _missed(observed, "differs") if r.miss and r.miss.again >= AGAIN]
    positions = sum(r.sequences[0].prompt - 1 - r.miss.at for r in missed if r.miss)
    if len(missed) < FEW or not _matters(observed, positions):
        return None
    at, often = Counter(r.miss.at for r in missed if r.miss).most_common(1)[0]
    return Finding(
        "prefix_differs",
        price_ns(observed, positions) / 1e9,
        f"{len(missed)} prompts differ from an earlier one in a few tokens, {often} of them at position {at}, and "
        f"then continue like it: up to {positions} of {observed.counts['prefilled']} prompt positions were computed "
        "again.",
        f"move what changes (a date, a name, an id at position {at}) after what stays the same",
        "More --memory would not help: nothing was evicted.",
        evidence={"requests": len(missed), "at": at, "often": often, "positions": positions,
                  "prefilled": observed.counts["prefilled"]},
    )  # fmt: skip


def prefix_salts(observed: Observations) -> Finding | None:
    """Every request has a salt of its own. Whether their prompts begin alike is not known, and must not be."""
    missed = {record.id for record in _missed(observed, "none")}
    arrived = [request.arrived for request in observed.requests.values() if request.arrived]
    salts = Counter(event.salt for event in arrived if event.salt)
    alone = [event for event in arrived if event.id in missed and event.salt and salts[event.salt] == 1]
    if len(alone) < FEW or len(alone) < len(arrived) / 2:
        return None
    return Finding(
        "prefix_salts",
        0.0,
        f"{len(alone)} of {len(arrived)} requests had a cache_salt of their own, so none of them could reuse a "
        "prefix that another one computed. The cost is not known: prompts are not compared across salts.",
        "send one cache_salt for all requests that may share (one per user or tenant, not per request)",
        evidence={"requests": len(alone), "of": len(arrived)},
    )


def drafts(observed: Observations) -> Finding | None:
    """Guesses that were mostly wrong."""
    accepted, rejected = observed.counts["accepted"], observed.counts["rejected"]
    drafted = accepted + rejected
    if drafted < JUDGED or accepted >= PAYS * drafted:
        return None
    return Finding(
        "drafts",
        price_ns(observed, rejected) / 1e9,
        f"{accepted} of {drafted} drafted tokens were accepted ({accepted / drafted:.0%}); {rejected} positions were "
        f"evaluated for nothing, and drafts paused {times(len(observed.pauses))}.",
        'serve with --draft none, or send "draft": "none" with such requests',
        evidence={"accepted": accepted, "rejected": rejected, "pauses": len(observed.pauses)},
    )
