"""The ASGI application over one `Front`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headway.api import openapi
from headway.api.routes import completions, evaluations, event_stream, images, introspection, models, tokens
from headway.core.errors import HeadwayError, InvalidRequest
from headway.front.exchange import Exchanges, exchange
from headway.front.guard import Guard
from headway.front.refusals import on_http_error, on_refusal
from headway.front.state import Front
from headway.front.target import WithoutSlash
from headway.page import routes


def make_app(front: Front, guard: Guard | None = None) -> ASGIApp:
    """Starts the replica with the application and stops it with it. Without a guard everyone may ask."""
    guard = guard or Guard()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        front.link.start()
        try:
            yield
        finally:
            front.close()
            await front.link.stop()

    app = Starlette(
        routes=[
            *completions.routes,
            *evaluations.routes,
            *images.routes,
            *tokens.routes,
            *introspection.routes,
            *event_stream.routes,
            *models.routes,
            *openapi.routes,
            *routes.routes,
        ],
        exception_handlers={
            InvalidRequest: _on_invalid,
            HeadwayError: on_refusal,
            HTTPException: on_http_error,
            ClientDisconnect: _on_leaving,
            Exception: on_refusal,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.front = front
    app.state.guard = guard
    return Exchanges(WithoutSlash(app), front, guard)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """An invalid body is counted here when it never became a request."""
    if request.method == "POST" and not exchange(request).served:
        request.app.state.front.turn_away("invalid")
    return await on_refusal(request, error)


async def _on_leaving(request: Request, error: Exception) -> Response:
    """The client left before its body was there; nobody hears this."""
    return Response(status_code=499)
