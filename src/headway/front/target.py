"""What a request asks for: its target in the one form that routes know, without a slash at its end."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from headway.front.refusals import Refusal

_ABSOLUTE = re.compile(rb"https?://(?P<host>[^/?#@]+)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)


def to_origin_form(scope: Scope) -> Refusal | None:
    """Change a target in absolute form, as clients send it to a proxy, into path and host. RFC 9112 3.2.2: every
    server accepts that form, and takes the target's host in the place of the header's. Refusal (400) for a target
    that is neither that nor a path."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    if raw.startswith(b"/") or (raw == b"*" and scope["method"] == "OPTIONS"):
        return None
    absolute = _ABSOLUTE.fullmatch(raw)
    if absolute is None:
        text = f"the request target is {raw.decode('latin-1')!r}; it must be a path, or an http URL without a user"
        return Refusal(400, text, code="invalid_target")
    scope["raw_path"] = absolute["path"] or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("latin-1"))
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", absolute["host"]), *others]
    return None


class WithoutSlash:
    """ASGI middleware: sends whoever asks for a route with slashes at its end to the one without. The answer names a
    path alone: behind a proxy only the client knows the scheme and the host."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = self._elsewhere(scope) if scope["type"] == "http" else None
        await (self._app if target is None else RedirectResponse(target, 307))(scope, receive, send)

    def _elsewhere(self, scope: Scope) -> str | None:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        bare = raw.rstrip(b"/")
        if bare in (raw, b"") or bare.startswith(b"//"):
            return None
        asked = {**scope, "path": unquote(bare.decode("latin-1"))}
        if all(route.matches(asked)[0] is Match.NONE for route in self._app.routes):
            return None
        query: bytes = scope["query_string"]
        return (bare + (b"?" + query if query else b"")).decode("latin-1")
