"""A place among those who wait, taken before a prompt is rendered or tokenised. What finds none now is 429, with when
to come again; what never could is 400."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.errors import InvalidRequest
from headway.front.exchange import Exchange
from headway.front.models import FrontModel
from headway.front.quota import Shortfall
from headway.front.refusals import Refusal
from headway.front.state import Front


def refuse_when_full(front: Front, model: FrontModel | None = None, requests: int = 1, field: str = "prompt") -> None:
    """Raises Refusal (429) when there is no place for `requests` more among `--max-waiting`, and InvalidRequest when
    there never could be, naming the `field` that has them. The `model` is None as long as the body is not read."""
    limit = front.limits.max_waiting
    if requests > limit:
        raise InvalidRequest(field, f"{field} is a list of {requests}, and --max-waiting is {limit}")
    if front.waiting + requests > limit:
        front.no_place(model, requests)
        more = f", {requests} more arrived" if requests > 1 else ""
        text = f"{front.waiting} requests are waiting{more}, and --max-waiting is {limit}"
        raise _later(text, front.retry_after_s(requests=front.waiting + requests - limit))


def claim_place(
    front: Front,
    model: FrontModel,
    current: Exchange,
    bounds: Sequence[int],
    field: str = "prompt",
    at_once: int | None = None,
) -> None:
    """Claim a part of the quota for a prompt of at most so many positions for each of `bounds`, for as long as the
    exchange has not submitted them; at most `at_once` of their requests wait at a time. Raises Refusal (429) when
    there is none."""
    requests = len(bounds) if at_once is None else min(len(bounds), at_once)
    refuse_when_full(front, model, requests, field)
    assert model.ready is not None
    context = model.ready.max_context  # a prompt beyond it is refused, so it never waits
    claim = front.quota.claim(sum(min(bound, context) for bound in bounds), requests)
    if isinstance(claim, Shortfall):
        front.no_place(model, requests)
        raise _later(str(claim), front.retry_after_s(positions=claim.need - claim.have))
    current.claim = claim


def settle_claim(front: Front, current: Exchange, lengths: Sequence[int], field: str) -> None:
    """Correct the claim to the prompts' true lengths. Raises InvalidRequest for prompts that could not wait together
    even when nobody else does."""
    assert current.claim is not None
    positions, limit = sum(lengths), front.limits.max_waiting_positions
    if positions > limit:
        what = f"{field} has {positions} positions" + (f" in {len(lengths)} prompts" if len(lengths) > 1 else "")
        raise InvalidRequest(field, f"{what}, and at most {limit} may wait; raise --max-waiting-positions")
    current.claim.correct(positions)


def _later(text: str, after_s: int) -> Refusal:
    return Refusal(429, text, code="queue_full", headers={"retry-after": str(after_s)})
