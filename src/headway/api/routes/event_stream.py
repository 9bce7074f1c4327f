"""`/v1/events`: what happens, as server-sent events, from as far back as the ring goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headway.api.bodies.reading import only
from headway.core.errors import InvalidRequest
from headway.front.state import Front

_LOOK_S = 0.05
#: Python reads no number of thousands of digits, and no server has counted further than this.
_MOST_DIGITS = 18
_encoder = msgspec.json.Encoder()


async def events(request: Request) -> Response:
    """`id: <epoch>-<number>`, `event: <type>`, JSON data. It goes on after `Last-Event-ID`; else it begins now with
    `?after=now`, else with the oldest event that is kept. Where events were missed there is one `event: gap`, with
    the numbers that are not there: after a pause longer than the ring, or an id of another epoch. With `?until=now`
    it ends once all that has happened is told. The header `headway-clock-ns` is the clock of events' `at`, now."""
    front: Front = request.app.state.front
    only(request.query_params, "after", "until")
    after, missed = _begin(front, request.headers.get("last-event-id"), request.query_params.get("after"))
    until = request.query_params.get("until")
    if until not in (None, "now"):
        raise InvalidRequest("until", f"until is {until!r}; it must be now, or left out")
    headers = {"cache-control": "no-cache", "headway-clock-ns": str(front.clock.now_ns())}
    last = front.ring.last if until else None
    return StreamingResponse(_follow(front, after, missed, last), 200, headers, "text/event-stream")


def _begin(front: Front, last_id: str | None, after: str | None) -> tuple[int, bool]:
    """The number after which to begin, and whether what the client saw last is of another epoch."""
    if last_id is not None:
        epoch, _, number = last_id.rpartition("-")
        if not number.isdecimal() or len(number) > _MOST_DIGITS or not epoch:
            raise InvalidRequest("Last-Event-ID", f"Last-Event-ID is {last_id!r}; ids have the form EPOCH-NUMBER")
        known = epoch == front.ring.epoch and int(number) <= front.ring.last
        return (int(number), False) if known else (0, True)
    if after not in (None, "now"):
        raise InvalidRequest("after", f"after is {after!r}; it must be now, or left out")
    return (front.ring.last if after else front.ring.first - 1), False


async def _follow(front: Front, after: int, missed: bool, last: int | None) -> AsyncIterator[bytes]:
    quiet_s = 0.0
    while front.state != "draining" and (last is None or after < last or missed):
        first = front.ring.first
        if missed or after < first - 1:
            yield _frame(f"{front.ring.epoch}-{first - 1}", "gap", {"from": after + 1, "to": first - 1})
            after, missed = first - 1, False
        rows = front.ring.after(after)
        if rows:
            yield b"".join(_frame(f"{front.ring.epoch}-{number}", kind(event), event) for number, event in rows)
            after, quiet_s = rows[-1][0], 0.0
            continue
        await asyncio.sleep(_LOOK_S)
        quiet_s += _LOOK_S
        if quiet_s >= front.limits.comment_seconds:
            yield b": still here\n\n"
            quiet_s = 0.0


def kind(event: msgspec.Struct) -> str:
    """The event's type, as its JSON says it."""
    return str(event.__struct_config__.tag)


def _frame(id: str, name: str, data: object) -> bytes:
    return f"id: {id}\nevent: {name}\ndata: ".encode() + _encoder.encode(data) + b"\n\n"


routes = [Route("/v1/events", events)]
