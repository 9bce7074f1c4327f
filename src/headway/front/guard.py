"""Who may ask at all: the key, the origin of a web page, and the name by which the server was called.

A browser lets any page post to any address. Two marks tell such a page apart: its `Origin`, and, when it made its own
name point at this machine (DNS rebinding), the `Host` that it believes to talk to. Programs send no `Origin`.
"""

from __future__ import annotations

import hmac
import ipaddress
from functools import lru_cache
from hashlib import sha256

from starlette.types import ASGIApp, Scope

from headway.front.origins import Origins
from headway.front.refusals import Refusal

#: Asked by whoever watches the process, and by a browser before it knows a key.
OPEN_PATHS = frozenset({"/health", "/ready", "/"})
#: The page's own files, to read: they are the same for every server and say nothing of this one.
OPEN_PREFIX = "/page/"
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_OWN_PORTS = {"http": ":80", "https": ":443"}


class Guard:
    """Judges each exchange by its headers alone, before its path or id is looked at.

    key        what `Authorization: Bearer KEY` must say; None lets everyone in
    origins    pages that may call besides our own (see `origins.py`)
    loopback   the server listens on a loopback address, so no other name can be right
    """

    def __init__(self, *, key: str | None = None, origins: tuple[str, ...] = (), loopback: bool = False) -> None:
        self._key = None if key is None else _digest(key.encode())
        self._origins = Origins(origins)
        self._loopback = loopback

    @property
    def needs_key(self) -> bool:
        return self._key is not None

    def shared(self, app: ASGIApp) -> ASGIApp:
        """`app`, whose answers, refusals included, may be read by pages of the allowed origins."""
        return self._origins.shared(app)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why this exchange may not go on; None when it may."""
        return self._host(scope) or self._origin(scope) or self._authorization(scope)

    def _host(self, scope: Scope) -> Refusal | None:
        if not self._loopback:
            return None
        for host in _all(scope, b"host"):
            if not _is_loopback(host) and not self._origins.name(_without_own_port(host, scope["scheme"])):
                text = (
                    f"the server listens on a loopback address, and Host is {host!r}, which is not a loopback name "
                    "or address; --allow-origin allows a name"
                )
                return Refusal(403, text, code="host_not_allowed", param="host")
        return None

    def _origin(self, scope: Scope) -> Refusal | None:
        asks_first = _asks_first(scope)
        if scope["method"] not in _CHANGING and not asks_first:
            return None
        scheme = scope["scheme"]
        own = {f"{scheme}://{_without_own_port(host, scheme)}" for host in _all(scope, b"host")}
        for origin in _all(scope, b"origin"):
            if origin.lower() not in own and not self._origins.allow(origin):
                how = f"--allow-origin {origin} allows it"
                if origin in ("", "null"):  # no page is alone in having that one
                    how = "only --allow-origin '*' allows it, since any page can have that origin"
                text = (
                    f"the page's origin is {origin!r} and the server's own is {', '.join(sorted(own)) or 'unknown'}; "
                    f"{how}"
                )
                return Refusal(403, text, code="origin_not_allowed", param="origin")
        return None

    def _authorization(self, scope: Scope) -> Refusal | None:
        path = scope["path"]
        if _asks_first(scope):
            return None
        reads = scope["method"] not in _CHANGING
        if self._key is None or path in OPEN_PATHS or (path.startswith(OPEN_PREFIX) and reads):
            return None
        given = _all(scope, b"authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not key.strip():
            return _unauthorized("an API key is required; send the header `Authorization: Bearer KEY`", "")
        if not hmac.compare_digest(_digest(key.strip().encode("latin-1")), self._key):
            return _unauthorized("the API key is incorrect", ', error="invalid_token"')
        return None


def _asks_first(scope: Scope) -> bool:
    """Whether a browser asks for a page what it may, before it sends what it was told to."""
    return scope["method"] == "OPTIONS" and bool(_all(scope, b"access-control-request-method"))


def _unauthorized(message: str, more: str) -> Refusal:
    headers = {"www-authenticate": f'Bearer realm="headway"{more}'}
    return Refusal(401, message, code="invalid_api_key", param="authorization", headers=headers)


def _digest(key: bytes) -> bytes:
    """Keys are compared by digest, so that not even a length can be measured."""
    return sha256(key).digest()


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _without_own_port(host: str, scheme: str) -> str:
    return host.lower().removesuffix(_OWN_PORTS.get(scheme, ""))


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
