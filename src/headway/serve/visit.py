"""One HTTP exchange from headers read to last byte handed over: its id, its clock, its end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.serve.errors import Refusal
from headway.serve.front import Front

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KEY = "headway.visit"


@dataclass
class Visit:
    """`received_at` is when the headers were read (monotonic ns); `served` are the requests this exchange answers."""

    id: str
    received_at: int
    served: list[str] = field(default_factory=list)


def visit(request: Request) -> Visit:
    """The exchange that `request` belongs to."""
    found: Visit = request.scope[_KEY]
    return found


class Visits:
    """ASGI middleware: gives each exchange an id, sends it back as `x-request-id`, and reports the delivery."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app = app
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received_at = self._front.clock.now_ns()
        given = dict(scope["headers"]).get(b"x-request-id")
        id = given.decode("latin-1") if given is not None else self._front.new_id(scope["method"])
        good = _ID.fullmatch(id) is not None
        scope[_KEY] = current = Visit(id if good else self._front.new_id(scope["method"]), received_at)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", current.id.encode())]
            await send(message)

        try:
            if good:
                await self._app(scope, receive, send_with_id)
            else:
                text = "x-request-id must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
                await Refusal(400, text, code="invalid_id", param="x-request-id").response()(
                    scope, receive, send_with_id
                )
        finally:
            for request_id in current.served:
                self._front.leave(request_id)
