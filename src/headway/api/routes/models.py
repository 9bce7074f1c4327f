"""`/v1/models`, `/health`, `/ready`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.api.routes.completions import not_ready
from headway.core.events import Recovery
from headway.front.models import FrontModel
from headway.front.refusals import Refusal
from headway.front.state import STUCK_AFTER_S, Front
from headway.story.tell.alarms import no_progress, recovery


async def models(request: Request) -> Response:
    """The served models, in OpenAI's list."""
    front: Front = request.app.state.front
    return JSONResponse({"object": "list", "data": [_entry(front, model) for model in front.models.values()]})


async def one_model(request: Request) -> Response:
    front: Front = request.app.state.front
    return JSONResponse(_entry(front, front.models.named(request.path_params["name"])))


async def health(request: Request) -> Response:
    """200 while there is progress: it fails when work is present and nothing has moved for a minute, when the same
    decision moved nothing again and again for reasons that do not change, when nothing that is to be written to a
    state tier got there for a minute, and when no replica can be had.
    `recovery` has each model that is in a recovery loop, or whose admission is cut; `event_log_failure` says why
    --event-log ended, which stops nothing else."""
    front: Front = request.app.state.front
    stuck_s = front.stuck_s()
    if stuck_s > STUCK_AFTER_S:
        raise Refusal(503, f"there is work, but nothing has progressed for {stuck_s:.0f} s", code="stuck")
    if still := front.story.still:
        raise Refusal(503, no_progress(still[0]), code="no_progress")
    if front.state == "failed":
        raise Refusal(503, f"the model could not be loaded: {front.failure}", code="failed")
    return JSONResponse(
        {
            "status": "ok",
            "state": front.state,
            "step": front.story.step,
            "recovery": [_loop(event) for event in front.story.loops.values()],
            "event_log_failure": front.log.failure if front.log else None,
        }
    )


async def ready(request: Request) -> Response:
    """200 when requests are served, 503 while loading, draining or failed."""
    front: Front = request.app.state.front
    if front.state != "ready":
        raise not_ready(front)
    return JSONResponse({"status": "ready"})


def _loop(event: Recovery) -> dict[str, object]:
    """What `/health` tells of a recovery loop: rates are means per second."""
    told = msgspec.to_builtins(event)
    names = ("model", "cut", "now", "best", "offered", "rejected", "clean", "needed")
    numbers = {name: told[name] for name in names}
    return {**numbers, "share": round(event.now.share, 4), "says": recovery(event)}


def _entry(front: Front, model: FrontModel) -> dict[str, object]:
    loaded = model.ready.event(0, front.ready.threads) if model.ready and front.ready else None
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "headway",
        "max_model_len": model.max_context,
        "headway": msgspec.to_builtins(loaded) if loaded else None,
    }


routes = [
    Route("/v1/models", models),
    Route("/v1/models/{name:path}", one_model),
    Route("/health", health),
    Route("/ready", ready),
]
