"""What happened between callers and the engine: refusals, failures, and time before and after the steps."""

from __future__ import annotations

from collections import Counter

from headway.core import events as ev
from headway.core.request import Stage
from headway.core.verdict import Never
from headway.story.diagnose.findings import FEW, SHARE, Finding, duration, named
from headway.story.diagnose.findings.cost import middle
from headway.story.diagnose.observations import Observations
from headway.story.reduce.record import Record
from headway.story.tell.sentences import count, times

#: An answer lay long from here on: several round trips across the world.
LONG_NS = 250_000_000
#: Why a request is refused, and what to do about it.
REFUSALS = {
    "queue": ("the queue was full (429)", "send fewer requests at once, and retry after the response's Retry-After"),
    "loading": ("no model was ready (503)", "send when /ready answers 200"),
    "pool": ("they could never fit in the pool (400)", "raise --memory, or ask for fewer max_tokens"),
    "context": (
        "they exceeded the maximum context length (400)",
        "send shorter prompts, or ask for fewer max_tokens",
    ),
    "seats": ("they asked for more sequences than there are seats (400)", "raise --seats, or ask for a smaller n"),
    "deadline": ("their deadlines could not be met (422)", "allow more time, or send fewer requests at once"),
    "invalid": ("they were invalid (400)", "read the errors: each names the field and what it must be"),
}


def _records(observed: Observations) -> list[Record]:
    return [
        record
        for record in (*observed.story.ended.values(), *observed.story.live.values())
        if record.id in observed.requests
    ]


def refused(observed: Observations) -> Finding | None:
    """Requests that were turned away."""
    reasons = Counter(observed.turned_away)
    turned_away = [record for record in _records(observed) if record.stage is Stage.REFUSED]
    reasons.update(record.reason or "invalid" for record in turned_away)
    if not reasons:
        return None
    most = reasons.most_common(1)[0][0]
    options = {r.verdict.option for r in turned_away if r.reason == most and isinstance(r.verdict, Never)}
    raise_it = "raise --max-context, or " if most == "context" and "--max-context" in options else ""
    shown = named([f"{n} because {REFUSALS.get(reason, (reason,))[0]}" for reason, n in reasons.most_common()])
    return Finding(
        "refused",
        0.0,
        f"{count(reasons.total(), 'request')} {'was' if reasons.total() == 1 else 'were'} refused: {shown}.",
        raise_it + REFUSALS.get(most, ("", "read the errors: each says what was wrong"))[1],
        "A longer queue (--max-waiting) would not help if requests arrive faster than they are served: they would "
        "only wait longer."
        if most == "queue"
        else "",
        lost=reasons.total(),
        evidence=dict(reasons),
    )


def grammars(observed: Observations) -> Finding | None:
    """Grammars that could not be compiled, or led nowhere."""
    failed = [record for record in _records(observed) if record.reason == ev.GRAMMAR]
    if not failed:
        return None
    messages = Counter(record.message or "its answer could not be continued within the grammar" for record in failed)
    message, often = messages.most_common(1)[0]
    return Finding(
        "grammars",
        0.0,
        f"{count(len(failed), 'request')} failed because of {'its' if len(failed) == 1 else 'their'} grammar "
        f"({named([record.id for record in failed])}); {times(often)}: {message.rstrip('.')}.",
        "correct that schema or grammar",
        lost=len(failed),
        evidence={"requests": [record.id for record in failed], "messages": dict(messages)},
    )


def not_finite(observed: Observations) -> Finding | None:
    """Requests that ended because the model's numbers came out as NaN or infinity."""
    failed = [record for record in _records(observed) if record.reason == ev.NOT_FINITE]
    if not failed:
        return None
    weights = observed.loaded.weights if observed.loaded else None
    served = f" in {weights}" if weights else ""
    return Finding(
        "not_finite",
        0.0,
        f"{count(len(failed), 'request')} failed because the model computed NaN or infinity{served} "
        f"({named([record.id for record in failed])}).",
        "serve with --weights fp32"
        if weights and weights != "fp32"
        else "download the model's files again, or use another model",
        "If fp32 changes nothing, the model's files are damaged: download them again."
        if weights and weights != "fp32"
        else "",
        lost=len(failed),
        evidence={"requests": [record.id for record in failed], "weights": weights},
    )


def failures(observed: Observations) -> Finding | None:
    """Requests that failed for another reason."""
    told = ev.GRAMMAR, ev.NOT_FINITE
    failed = [r for r in _records(observed) if r.stage is Stage.FAILED and r.reason not in told]
    if not failed:
        return None
    message, often = Counter(record.message or "no message" for record in failed).most_common(1)[0]
    return Finding(
        "failures",
        0.0,
        f"{count(len(failed), 'request')} failed ({named([record.id for record in failed])}); "
        f"{times(often)}: {message.rstrip('.')}.",
        "check the server's log around that time",
        lost=len(failed),
        evidence={"requests": [record.id for record in failed]},
    )


def before_the_replica(observed: Observations) -> Finding | None:
    """Time from the headers to the replica: bodies that come slowly, long texts to turn into tokens."""
    lags = [r.sent_at - r.received_at for r in observed.requests.values() if r.sent_at is not None]
    if len(lags) < FEW or sum(lags) < SHARE * observed.lives_ns():
        return None
    prompts = [r.arrived.prompt for r in observed.requests.values() if r.arrived and r.arrived.prompt]
    sized = f", for prompts of {middle(prompts)} positions (median)" if prompts else ""
    return Finding(
        "before_the_replica",
        sum(lags) / 1e9,
        f"{len(lags)} requests took {duration(sum(lags))} in total (median {duration(middle(lags))}) from their "
        f"headers to the replica{sized}.",
        "check how clients send: their bodies are received and tokenised in that time (a prompt of token ids needs "
        "no tokenising)",
        "No step option would help: the replica had not received these requests yet.",
        evidence={"requests": len(lags), "total_ms": sum(lags) / 1e6, "median_ms": middle(lags) / 1e6},
    )


def front_queue(observed: Observations) -> Finding | None:
    """Time between front and replica beyond the step that is awaited there anyway."""
    lags = [
        request.queue_ns for request in observed.requests.values() if request.sent_at is not None and request.arrived
    ]
    if len(lags) < FEW or sum(lags) < SHARE * observed.lives_ns():
        return None
    threads = f" (now {observed.loaded.threads})" if observed.loaded else ""
    return Finding(
        "front_queue",
        sum(lags) / 1e9,
        f"{len(lags)} requests waited {duration(sum(lags))} in total (median {duration(middle(lags))}) between "
        "front and replica, not counting the step that was running.",
        f"leave each of the server's two processes a core beside the compute threads: lower --threads{threads}",
        "Raising a server limit would not help: these requests waited for neither space nor a turn.",
        evidence={"requests": len(lags), "total_ms": sum(lags) / 1e6, "median_ms": middle(lags) / 1e6},
    )


def slow_clients(observed: Observations) -> Finding | None:
    """Clients that took long to take an answer that was ready, where others did not; or were dropped for it."""
    dropped = [r.id for r in _records(observed) if ev.SLOW_READER in (r.dropped, r.reason)]
    waits = _deliveries(observed)
    usual = middle(waits.values())
    slow = [id for id, ns in waits.items() if ns >= max(LONG_NS, 10 * usual) and id not in dropped]
    cost_ns = sum(waits[id] for id in slow)
    if not dropped and (not slow or cost_ns < SHARE * observed.lives_ns()):
        return None
    parts = []
    if dropped:
        parts.append(
            f"{count(len(dropped), 'request')} dropped because the client stopped reading ({named(dropped)})"
        )
    if slow:
        parts.append(
            f"{count(len(slow), 'answer')} waited {duration(cost_ns)} in total for the client to read the last byte "
            f"({named(slow)}), where {duration(usual)} is typical"
        )
    return Finding(
        "slow_clients",
        cost_ns / 1e9,
        f"Slow clients: {'; '.join(parts)}.",
        "check those clients and the network in between; --slow-reader-seconds sets how long they are tolerated",
        "Faster steps would not help: the answers were ready.",
        lost=len(dropped),
        evidence={"dropped": dropped, "slow": slow, "usual_ms": usual / 1e6},
    )


def slow_delivery(observed: Observations) -> Finding | None:
    """All answers took long from their last token to their last byte: then it is not the clients."""
    waits = _deliveries(observed)
    usual = middle(waits.values())
    if len(waits) < FEW or usual < LONG_NS / 10 or sum(waits.values()) < SHARE * observed.lives_ns():
        return None
    return Finding(
        "slow_delivery",
        sum(waits.values()) / 1e9,
        f"Median {duration(usual)} from last token to last byte, {duration(sum(waits.values()))} in total for "
        f"{len(waits)} requests.",
        "give the front a core of its own: lower --threads, or move other work off this machine",
        "Raising a server limit would not help: these requests had finished.",
        evidence={"requests": len(waits), "median_ms": usual / 1e6},
    )


def _deliveries(observed: Observations) -> dict[str, int]:
    """From the end of a request to its last byte, by id, of those that finished."""
    finished = {record.id for record in _records(observed) if record.stage is Stage.FINISHED}
    return {
        request.id: request.delivered_at - request.ended_at
        for request in observed.requests.values()
        if request.id in finished and request.ended_at is not None and request.delivered_at is not None
    }
