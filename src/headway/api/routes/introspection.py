"""What can be seen: `/v1/requests`, `/v1/requests/{id}`, its `/preview`, `/v1/pool`, `/metrics`."""

from __future__ import annotations

import asyncio
import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.api.answers.png import png
from headway.api.bodies.reading import only
from headway.core.errors import InvalidRequest
from headway.core.request import Stage
from headway.front.ids import plain_ids
from headway.front.looks import LOOK_S
from headway.front.refusals import Refusal
from headway.front.state import Front
from headway.story.tell.explain import pool_view, request_views
from headway.story.tell.views import ListView, PageView, PoolView, RequestView

#: Requests on a page of `/v1/requests`: unless told otherwise, and at most.
PAGE = 100
MOST_ON_A_PAGE = 1000


async def requests(request: Request) -> Response:
    """Live requests in order of arrival, then the remembered ones, the latest first; each id once. `?stage=` keeps
    one stage, `?limit=` (1 to 1000) bounds a page, `?after=ID` goes on after one, whatever its stage is by now. The
    header `headway-event` is the id of the newest event that the answer takes into account."""
    front: Front = request.app.state.front
    query = request.query_params
    only(query, "after", "limit", "stage")
    limit, stage = _limit(query.get("limit")), query.get("stage")
    if stage is not None and stage not in list(Stage):
        raise InvalidRequest("stage", f"stage is {stage!r}; it must be one of {', '.join(Stage)}")
    live, ended = front.story.live, front.story.ended
    records = [*live.values(), *(record for record in reversed(ended.values()) if record.id not in live)]
    if (after := query.get("after")) is not None:
        records = records[_place([record.id for record in records], after) + 1 :]
    if stage is not None:
        records = [record for record in records if record.stage == stage]
    now = front.clock.now_ns()
    following = records[limit - 1].id if len(records) > limit else None
    return _as_of(front, PageView(request_views(front.story, records[:limit], now), following))


async def one_request(request: Request) -> Response:
    """GET: the record. DELETE: end it, then the record; a second DELETE says the same. The id of an exchange with a
    list of prompts stands for all its requests: {"id", "data": [a record each]}."""
    front: Front = request.app.state.front
    id = request.path_params["id"]
    records = front.find(id)
    if request.method == "DELETE":
        await asyncio.gather(*map(front.cancelled, records))
    views = request_views(front.story, records, front.clock.now_ns())
    if records[0].id in plain_ids(id):
        return _json(views[0])
    return _json(ListView(records[0].id.rpartition("~")[0], tuple(views)))


async def preview(request: Request) -> Response:
    """A small picture of a running image request's latent, as a PNG file: what it looks like by now, from a linear
    approximation of the decoder, which no step notices. `headway-update` says after how many updates of how many.
    Raises Refusal: 404 when it has no latent, 503 when a step takes long."""
    front: Front = request.app.state.front
    (record, *others) = front.find(request.path_params["id"])
    if others:
        text = f"{len(others) + 1} images have that id; ask for one of them ({record.id}, …)"
        raise Refusal(400, text, code="several_images", param="id")
    if record.pattern != "image" or record.stage is not Stage.RUNNING:
        raise Refusal(404, f"{record.id} is {record.stage}: it has no latent", code="no_latent")
    try:
        looked = await front.looks.at(record.id)
    except TimeoutError as error:
        raise Refusal(503, f"the step has taken {LOOK_S:g} s so far; ask again", code="busy") from error
    if (sketch := looked.sketch) is None:
        raise Refusal(404, f"{record.id} has no latent", code="no_latent")
    updates = record.parts[0].of - 2  # beside the encoding and the decoding
    headers = {"cache-control": "no-store", "headway-update": f"{min(looked.done - 1, updates)}/{updates}"}
    return Response(png(sketch.width, sketch.height, sketch.pixels), headers=headers, media_type="image/png")


async def pool(request: Request) -> Response:
    """The levels of the first model that has blocks; `reserved_bytes` is all models', and `models` has the levels of
    each in the unit of its space; with `?blocks=true` also which of its blocks are reusable, and who holds the live
    ones. `headway-event` as for `/v1/requests`: who goes on from there with the events knows what each block is."""
    front: Front = request.app.state.front
    query = request.query_params
    only(query, "blocks")
    blocks = query.get("blocks", "false")
    if blocks not in ("true", "false"):
        raise InvalidRequest("blocks", f"blocks is {blocks!r}; it must be true or false")
    return _as_of(front, pool_view(front.story, blocks=blocks == "true"))


async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    front: Front = request.app.state.front
    return Response(front.metrics.text(front.clock.now_ns()), media_type="text/plain; version=0.0.4; charset=utf-8")


def _as_of(front: Front, view: PageView | PoolView) -> Response:
    headers = {"headway-event": f"{front.ring.epoch}-{front.ring.last}"}
    return Response(msgspec.json.encode(view), headers=headers, media_type="application/json")


def _json(view: RequestView | ListView) -> Response:
    return Response(msgspec.json.encode(view), media_type="application/json")


def _place(ids: list[str], after: str) -> int:
    for id in plain_ids(after):
        if id in ids:
            return ids.index(id)
    text = (
        f"after is {after!r}, and no such request is live or among the last 1,000 that ended; start again without it"
    )
    raise InvalidRequest("after", text)


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_ON_A_PAGE:
        raise InvalidRequest("limit", f"limit is {text!r}; it must be a whole number from 1 to {MOST_ON_A_PAGE}")
    return int(text)


routes = [
    Route("/v1/requests", requests),
    Route("/v1/requests/{id}", one_request, methods=["GET", "DELETE"]),
    Route("/v1/requests/{id}/preview", preview),
    Route("/v1/pool", pool),
    Route("/metrics", metrics),
]
