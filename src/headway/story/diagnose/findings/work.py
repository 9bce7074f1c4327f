"""Work that need not have been done: prefixes that were not reused, drafts that were wrong."""

from __future__ import annotations

from collections import Counter

from headway.core.events import BEGINNINGS
from headway.story.diagnose.findings import FEW, SHARE, Finding
from headway.story.diagnose.findings.cost import price_ns
from headway.story.diagnose.observations import Observations
from headway.story.reduce.record import Record
from headway.story.tell.sentences import count, times

#: So many positions behind a difference must be the same again for it to be a small one.
AGAIN = 4
#: Guesses below which nothing is said of drafts, and the share of right ones from which on they pay.
JUDGED, PAYS = 64, 0.2


def _missed(seen: Observations, why: str) -> list[Record]:
    records = [*seen.story.ended.values(), *seen.story.live.values()]
    return [r for r in records if r.id in seen.requests and r.miss is not None and r.miss.why == why]


def _matters(seen: Observations, positions: int) -> bool:
    return positions >= max(1, SHARE * seen.counts["prefilled"])


def prefix_off(seen: Observations) -> Finding | None:
    """Prompts begin alike, and reuse is off."""
    if seen.loaded is None:
        return None
    known: set[int] = set()
    alike = positions = 0
    off = {record.id for record in _missed(seen, "off")}
    for id, request in seen.requests.items():
        if request.arrived is None:
            continue
        shared = [
            blocks for blocks, number in zip(BEGINNINGS, request.arrived.beginnings, strict=False) if number in known
        ]
        known.update(request.arrived.beginnings)
        if shared and id in off:
            alike += 1
            positions += min(shared[-1] * seen.loaded.block_tokens, request.arrived.prompt - 1)
    if alike < FEW or not _matters(seen, positions):
        return None
    return Finding(
        "prefix_off",
        price_ns(seen, positions) / 1e9,
        f"Prefix reuse is off, and {alike} prompts began like an earlier one: at least {positions} of "
        f"{seen.counts['prefilled']} prompt positions were computed again.",
        "serve without --no-prefix-cache",
        evidence={"requests": alike, "positions": positions, "prefilled": seen.counts["prefilled"]},
    )


def prefix_evicted(seen: Observations) -> Finding | None:
    """Prefixes were known, and had to go."""
    missed = _missed(seen, "evicted")
    positions = sum(r.sequences[0].prompt - 1 - r.miss.at for r in missed if r.miss)
    if len(missed) < FEW or not seen.steps or not _matters(seen, positions):
        return None
    first, last = seen.steps[0].levels, seen.steps[-1].levels
    total = last.live + last.reusable + last.free
    return Finding(
        "prefix_evicted",
        price_ns(seen, positions) / 1e9,
        f"{len(missed)} prompts had a beginning that was known and had been evicted: up to {positions} of "
        f"{seen.counts['prefilled']} prompt positions were computed again. "
        f"{count(max(0, last.evictions - first.evictions), 'block')} went from a pool of {total}.",
        f"raise --memory (it is {total} blocks), so that prefixes stay",
        evidence={"requests": len(missed), "positions": positions, "prefilled": seen.counts["prefilled"],
                  "blocks": total},
    )  # fmt: skip


def prefix_differs(seen: Observations) -> Finding | None:
    """A small change near the beginning keeps what follows from being reused."""
    missed = [r for r in _missed(seen, "differs") if r.miss and r.miss.again >= AGAIN]
    positions = sum(r.sequences[0].prompt - 1 - r.miss.at for r in missed if r.miss)
    if len(missed) < FEW or not _matters(seen, positions):
        return None
    at, often = Counter(r.miss.at for r in missed if r.miss).most_common(1)[0]
    return Finding(
        "prefix_differs",
        price_ns(seen, positions) / 1e9,
        f"{len(missed)} prompts differ from a known one in a few tokens, {often} of them at position {at}, and go on "
        f"like it: up to {positions} of {seen.counts['prefilled']} prompt positions were computed again.",
        f"move what changes (a date, a name, an id at position {at}) behind what stays the same",
        "More --memory would not help: nothing had to go.",
        evidence={"requests": len(missed), "at": at, "often": often, "positions": positions,
                  "prefilled": seen.counts["prefilled"]},
    )  # fmt: skip


def prefix_salts(seen: Observations) -> Finding | None:
    """Every request has a salt of its own. Whether their prompts begin alike is not known, and must not be."""
    missed = {record.id for record in _missed(seen, "none")}
    arrived = [request.arrived for request in seen.requests.values() if request.arrived]
    salts = Counter(event.salt for event in arrived if event.salt)
    alone = [event for event in arrived if event.id in missed and event.salt and salts[event.salt] == 1]
    if len(alone) < FEW or len(alone) < len(arrived) / 2:
        return None
    return Finding(
        "prefix_salts",
        0.0,
        f"{len(alone)} of {len(arrived)} requests came with a cache_salt that no other one had, so none of them "
        "could reuse what another one computed. What that costs is not known: prompts are not compared across salts.",
        "send one cache_salt for all requests that may share (one for a user or a tenant, not for a request)",
        evidence={"requests": len(alone), "of": len(arrived)},
    )


def drafts(seen: Observations) -> Finding | None:
    """Guesses that were mostly wrong."""
    accepted, rejected = seen.counts["accepted"], seen.counts["rejected"]
    drafted = accepted + rejected
    if drafted < JUDGED or accepted >= PAYS * drafted:
        return None
    return Finding(
        "drafts",
        price_ns(seen, rejected) / 1e9,
        f"{accepted} of {drafted} drafts were right ({accepted / drafted:.0%}); {rejected} positions were evaluated "
        f"for nothing, and drafts paused {times(len(seen.pauses))}.",
        'serve with --draft none, or send "draft": "none" with such requests',
        evidence={"accepted": accepted, "rejected": rejected, "pauses": len(seen.pauses)},
    )
