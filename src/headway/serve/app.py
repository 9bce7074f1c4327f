"""The ASGI application over one `Front`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from headway.errors import HeadwayError
from headway.serve import models, sight, text
from headway.serve.errors import on_http_error, on_refusal
from headway.serve.front import Front
from headway.serve.visit import Visits


def make_app(front: Front) -> Starlette:
    """Starts the replica with the application and stops it with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        front.link.start()
        try:
            yield
        finally:
            await front.link.stop()

    app = Starlette(
        routes=[*text.routes, *sight.routes, *models.routes],
        middleware=[Middleware(Visits, front=front)],
        exception_handlers={HeadwayError: on_refusal, HTTPException: on_http_error, Exception: on_refusal},
        lifespan=lifespan,
    )
    app.state.front = front
    return app
