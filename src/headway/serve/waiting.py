"""A place among those who wait, taken before a prompt is rendered or tokenised: or 429, with when to come again."""

from __future__ import annotations

from headway.errors import InvalidRequest
from headway.serve.errors import Refusal
from headway.serve.front import Front
from headway.serve.room import Shortfall
from headway.serve.visit import Visit


def refuse_when_full(front: Front, requests: int = 1) -> None:
    """Raises Refusal (429) when there is no place for `requests` more among `--max-waiting`, and InvalidRequest when
    there never could be."""
    limit = front.limits.max_waiting
    if requests > limit:
        raise InvalidRequest("prompt", f"prompt is a list of {requests}, and --max-waiting is {limit}")
    if front.waiting + requests > limit:
        front.metrics.refuse("queue")
        more = f", {requests} more came" if requests > 1 else ""
        raise _later(front, f"{front.waiting} requests wait{more} and --max-waiting is {limit}")


def claim_room(front: Front, current: Visit, positions: int, requests: int = 1) -> None:
    """Claim room for `requests` prompts of at most `positions` positions together, for as long as the exchange has
    not submitted them. Raises Refusal (429) when there is none."""
    refuse_when_full(front, requests)
    claim = front.room.claim(positions, requests)
    if isinstance(claim, Shortfall):
        front.metrics.refuse("queue")
        raise _later(front, str(claim))
    current.claim = claim


def _later(front: Front, text: str) -> Refusal:
    return Refusal(429, text, code="queue_full", headers={"retry-after": str(front.retry_after_s())})
