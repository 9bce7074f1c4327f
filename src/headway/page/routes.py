"""`/`: the live page and its files, as they lie in `page/`, and the words that it asks for; and the same page with a
recorded log in one file.

Nothing is built and nothing is fetched from elsewhere: a browser reads the modules as they are written, by the import
map of `page/index.html`.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.core.events import AnyEvent, Received
from headway.front.refusals import Refusal
from headway.page.rule import rule_page
from headway.page.words import Question, answer, recorded

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_STYLE = '<link rel="stylesheet" href="/page/page.css">'
_IMPORTS = '{"imports": {"page/": "/page/"}}'
_START = '<script type="module" src="/page/main.js"></script>'
_TITLE = "<title>Headway</title>"
#: Of records; a page shows some hundred, of a kilobyte each.
MOST_WORDS_BYTES = 1 << 20
_question = msgspec.json.Decoder(Question)


@dataclass(frozen=True)
class Asset:
    """One file as it goes to a browser. `etag` changes with its content, so it may be kept and asked for again."""

    body: bytes
    content_type: str

    @functools.cached_property
    def etag(self) -> str:
        return f'"{sha256(self.body).hexdigest()[:20]}"'

    def response(self, request: Request) -> Response:
        """The file, or 304 when the browser has this very one."""
        headers = {"etag": self.etag, "cache-control": "no-cache", "x-content-type-options": "nosniff"}
        if self.content_type.startswith("text/html"):
            headers["content-security-policy"] = _security_policy()
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers | {"content-type": self.content_type})


@functools.cache
def assets() -> dict[str, Asset]:
    """The files in `page/` by name."""
    found = [file for file in files("headway.page").joinpath("assets").iterdir() if file.name[0] not in "._"]
    return {file.name: Asset(file.read_bytes(), _TYPES["." + file.name.rpartition(".")[2]]) for file in found}


@functools.cache
def _security_policy() -> str:
    """Nothing but our own files runs, nothing is asked from elsewhere, and no other page frames this one."""
    imports = base64.b64encode(sha256(_IMPORTS.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{imports}'; style-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def self_contained(events: Iterable[AnyEvent], title: str) -> str:
    """The page as one HTML file that shows `events` and needs no server: style and modules are inside, and what only
    a server could do is hidden; what it would say of requests is inside too. `title` stands where the model's name
    would."""
    told = list(events)
    words = recorded(told, delivers=any(isinstance(event, Received) for event in told))
    data = msgspec.json.encode({"title": title, "events": told, "words": words}).decode().replace("<", "\\u003c")
    modules = {
        f"page/{name}": f"data:text/javascript;base64,{base64.b64encode(asset.body).decode()}"
        for name, asset in sorted(assets().items())
        if name.endswith(".js")
    }
    page = assets()["index.html"].body.decode()
    style = assets()["page.css"].body.decode()
    page = _replace(page, _TITLE, f"<title>{escape(title)}</title>")
    page = _replace(page, _STYLE, f"<style>\n{style}</style>")
    page = _replace(page, _IMPORTS, json.dumps({"imports": modules}))
    start = '<script type="module">import "page/main.js";</script>'
    return _replace(page, _START, f'<script type="application/json" id="recorded">{data}</script>\n{start}')


def _replace(page: str, old: str, new: str) -> str:
    before, found, after = page.partition(old)
    assert found, f"page/index.html has no {old}"
    return before + new + after


async def index(request: Request) -> Response:
    """The live page."""
    return assets()["index.html"].response(request)


async def asset(request: Request) -> Response:
    """One of its files. Raises Refusal (404)."""
    name = request.path_params["name"]
    if name not in assets():
        raise Refusal(404, f"the page has no file {name!r}", code="no_such_file")
    return assets()[name].response(request)


async def rule(request: Request) -> Response:
    """`policy/waiting.py` to read: the lines that produced a verdict stand out at `#seats`, `#blocks`, …"""
    return Asset(rule_page().encode(), _TYPES[".html"]).response(request)


async def words(request: Request) -> Response:
    """Sentences for the records that the page shows. Raises Refusal (400, 413)."""
    body = await request.body()
    if len(body) > MOST_WORDS_BYTES:
        text = f"the question is {len(body)} bytes; at most {MOST_WORDS_BYTES} may be asked about at once"
        raise Refusal(413, text, code="body_too_large")
    try:
        question = _question.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(
            400, f"these are no records as /v1/requests shows them: {error}", code="invalid_body"
        ) from error
    return Response(msgspec.json.encode(answer(question)), media_type="application/json")


#: The files are the page's own: `/openapi.json` leaves them out.
routes = [
    Route("/", index),
    Route("/page/rule/waiting.py", rule, include_in_schema=False),
    Route("/page/words", words, methods=["POST"], include_in_schema=False),
    Route("/page/{name}", asset, include_in_schema=False),
]
