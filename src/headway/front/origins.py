"""Which web pages may call besides our own: `--allow-origin`.

An origin is `scheme://host[:port]`, as browsers write it: also that of an application made of web pages, like
`app://obsidian.md`. `*` in the place of host or port stands for any, `*.` before a host for any below it, and `*`
alone for every page. A `null` origin is allowed by `*` only: any page can have it, in a sandboxed frame.
"""

from __future__ import annotations

import re

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

ANY = "*"
#: What pages may ask for.
METHODS = ("GET", "POST", "DELETE")
#: What a page of an allowed origin may read of an answer besides its body.
_SHOWN_HEADERS = ("x-request-id", "headway-timing", "headway-ignored", "retry-after")


class Origins:
    """The origins that were named, in the form that `config.ServeOptions.allow_origin` has."""

    def __init__(self, named: tuple[str, ...] = ()) -> None:
        self.any = ANY in named
        named = tuple(origin for origin in named if origin != ANY)
        places = [origin.partition("://")[2] for origin in named if origin.startswith(("http://", "https://"))]
        self._pattern = "|".join(map(_pattern, named))
        self._places = re.compile("|".join(map(_pattern, places)), re.IGNORECASE) if places else None

    def allow(self, origin: str) -> bool:
        """Whether pages of this origin may call."""
        return self.any or bool(self._pattern and re.fullmatch(self._pattern, origin, re.IGNORECASE))

    def name(self, host: str) -> bool:
        """Whether a `Host` is one of those named: then it is no foreign name that was made to point here."""
        return self.any or bool(self._places and self._places.fullmatch(host))

    def shared(self, app: ASGIApp) -> ASGIApp:
        """`app`, whose answers browsers show to pages of these origins. They ask first, without key or id."""
        if not self.any and not self._pattern:
            return app
        return CORSMiddleware(
            app,
            allow_origins=(ANY,) if self.any else (),
            allow_origin_regex=f"(?i:{self._pattern})" if self._pattern else None,
            allow_methods=METHODS,
            allow_headers=("*",),
            allow_private_network=True,  # an allowed public page may call a server on a private network
            expose_headers=_SHOWN_HEADERS,
        )


def _pattern(place: str) -> str:
    """`place` is an origin, or its part after the scheme."""
    found = re.escape(place)
    found = re.sub(r":\\\*$", r"(:\\d{1,5})?", found)
    return found.replace(r"\*\.", r"([a-z0-9_-]+\.)+").replace(r"\*", r"[^/:]+")
