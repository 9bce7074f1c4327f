"""One HTTP exchange from headers read to last byte handed over: its id, its clock, its bounds, its end."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.core.events import SLOW_READER
from headway.front.coding import InflatedBody, body_coding
from headway.front.guard import Guard
from headway.front.jsonsize import MeasuredBody
from headway.front.limits import BoundedBody, length_refusal
from headway.front.quota import Claim
from headway.front.refusals import Refusal
from headway.front.state import Front
from headway.front.target import to_origin_form

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KEY = "headway.exchange"
#: Under these keys of the server's state an exchange finds what it knows of its connection, and of its body.
OUTGOING, INCOMING = "headway.outgoing", "headway.incoming"


class Outgoing(Protocol):
    """One connection, seen from its end that is read."""

    @property
    def blocked(self) -> bool:
        """Whether what is sent now waits until the client has taken something."""
        ...

    def unsent_bytes(self) -> int:
        """Bytes that the client has not received yet, in this process's buffer and in the kernel's."""
        ...

    def abort(self) -> None:
        """End the connection now, whatever lies in it."""
        ...

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Have `call` called once the connection is lost, in place of what was said here before; of one that is lost
        already, as soon as the loop goes round."""
        ...


@dataclass
class Exchange:
    """`received_at` is when the headers were read (monotonic ns); `refusal` is its answer when the headers alone
    forbid another; `served` are the requests this exchange answers, `claim` their place among the prompts that wait;
    `dropped` says that its client stopped reading. `outgoing` is its connection, where the server tells of it."""

    id: str
    received_at: int
    outgoing: Outgoing | None = None
    refusal: Refusal | None = None
    served: list[str] = field(default_factory=list)
    claim: Claim | None = None
    dropped: bool = False

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Have `call` called when the client leaves; None: nothing more is to be called."""
        if self.outgoing is not None:
            self.outgoing.when_gone(call)


def exchange(request: Request) -> Exchange:
    """The exchange that `request` belongs to."""
    found: Exchange = request.scope[_KEY]
    return found


class Exchanges:
    """ASGI middleware: asks the guard, gives each exchange an id, sends it back as `x-request-id`, holds body and
    reader to their bounds, and reports the delivery."""

    def __init__(self, app: ASGIApp, front: Front, guard: Guard) -> None:
        self._app = app
        self._front = front
        self._guard = guard
        self._answer = guard.shared(self._judged)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received_at = self._front.clock.now_ns()
        refusal = to_origin_form(scope) or self._guard.refusal(scope)
        id, malformed = self._name(scope, admitted=refusal is None)
        state = scope.get("state", {})
        scope[_KEY] = current = Exchange(id, received_at, state.get(OUTGOING))
        limits, coding = self._front.limits, body_coding(scope)
        unread = coding if isinstance(coding, Refusal) else length_refusal(scope, limits)
        current.refusal = refusal or malformed or unread
        body: Receive = BoundedBody(receive, limits, state.get(INCOMING))
        if isinstance(coding, str):
            body = InflatedBody(body, coding, limits)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", current.id.encode())]
            if not current.dropped:
                await self._send(current, send, message)

        try:
            refused_preflight = current.refusal is not None and scope["method"] == "OPTIONS"
            answer = self._judged if refused_preflight else self._answer  # which answers a page's question itself
            await answer(scope, MeasuredBody(body, limits), send_with_id)
        finally:
            if current.claim is not None:
                current.claim.release()
            for request_id in current.served:
                self._front.leave(request_id, SLOW_READER if current.dropped else None)

    async def _judged(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal: Refusal | None = scope[_KEY].refusal
        await (self._app if refusal is None else refusal.response())(scope, receive, send)

    def _name(self, scope: Scope, *, admitted: bool) -> tuple[str, Refusal | None]:
        """The caller's id or a new one. Whoever is not admitted gets a random id: it tells nothing of how many
        requests there are."""
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        if REQUEST_ID.fullmatch(given):
            return given, None
        new = secrets.token_hex(8) if not admitted else self._front.new_id(scope["method"])
        if not any(name == b"x-request-id" for name, _ in scope["headers"]):
            return new, None
        text = "x-request-id must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
        return new, Refusal(400, text, code="invalid_id", param="x-request-id")

    async def _send(self, current: Exchange, send: Send, message: Message) -> None:
        """Hand a message to the socket. That waits only until the client has taken enough of what was handed over
        before; a client that takes nothing of it for too long is dropped."""
        outgoing = current.outgoing
        if outgoing is not None and not outgoing.blocked:
            return await send(message)  # a timer where nothing is waited for costs as much as a token's text
        while True:
            unsent = outgoing.unsent_bytes() if outgoing else 0
            try:
                async with asyncio.timeout(self._front.limits.slow_reader_seconds):
                    return await send(message)  # it waits before it writes: cut off, it can be tried again
            except TimeoutError:
                if outgoing is not None and outgoing.unsent_bytes() < unsent:
                    continue
            current.dropped = True
            if outgoing is not None:
                outgoing.abort()
                await asyncio.sleep(0)  # the connection is known to be lost once the loop went round
            return None
