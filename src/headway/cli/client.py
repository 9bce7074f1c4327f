"""The commands' way to a running server. Whatever answers, or does not, ends in one sentence."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import httpx
import msgspec

from headway.core.config import ClientOptions
from headway.core.errors import HeadwayError
from headway.core.events import Loaded

T = TypeVar("T")


class NoServer(HeadwayError):
    """Nothing answers where a server was expected."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"no server answers at {url} ({reason}); start one with `headway serve`, or give its URL with --url"
        )


class NotHeadway(HeadwayError):
    """Something answers, but not as a Headway server of this version does."""

    def __init__(self, url: str, found: str) -> None:
        super().__init__(f"{url} {found}: this is not a Headway server of this version; give its URL with --url")


class Model(msgspec.Struct):
    """The served model, and what its replica has to give once it is loaded."""

    id: str
    headway: Loaded | None = None


class _Models(msgspec.Struct):
    data: Annotated[list[Model], msgspec.Meta(min_length=1)]


def served_models(options: ClientOptions) -> list[Model]:
    """At least one. Raises NoServer, HeadwayError."""
    return fetch(options, "/v1/models", _Models).data


def served_model(options: ClientOptions) -> Model:
    """The first model. Raises NoServer, HeadwayError."""
    return served_models(options)[0]


def fetch(options: ClientOptions, path: str, shape: type[T]) -> T:
    """GET as JSON of that shape. Raises NoServer, NotHeadway, or HeadwayError with the server's own words."""
    return fetch_as_sent(options, path, lambda text: msgspec.json.decode(text, type=shape))[0]


def fetch_as_sent(options: ClientOptions, path: str, decode: Callable[[bytes], T]) -> tuple[T, bytes]:
    """GET, decoded, and as it was sent. Raises as `fetch` does; what `decode` raises of msgspec is NotHeadway."""
    text = fetch_bytes(options, path)
    try:
        return decode(text), text
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotHeadway(options.url + path, f"gives an unexpected answer ({error})") from error


def fetch_bytes(options: ClientOptions, path: str) -> bytes:
    """GET. Raises NoServer, or HeadwayError with the server's own words."""
    with asking(options, "GET", path, timeout=httpx.Timeout(10)) as response:
        return response.read()


@contextlib.contextmanager
def asking(
    options: ClientOptions, method: str, path: str, *, timeout: httpx.Timeout, **request: Any
) -> Iterator[httpx.Response]:
    """A good answer, whose body comes while the block reads it. Raises NoServer; HeadwayError with the server's own
    words, and inside the block when the connection breaks."""
    headers = request.pop("headers", {})
    if options.api_key is not None:
        headers = headers | {"authorization": f"Bearer {options.api_key}"}
    answered = False
    try:
        with (
            _client(options.url, timeout) as client,
            client.stream(method, options.url + path, headers=headers, **request) as response,
        ):
            if not response.is_success:
                response.read()
                raise _refused(response)
            answered = True
            yield response
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        if answered:
            raise HeadwayError(f"lost the connection to {options.url} ({reason})") from error
        raise NoServer(options.url, reason) from error


def _client(url: str, timeout: httpx.Timeout) -> httpx.Client:
    """A proxy cannot reach this machine's own addresses."""
    try:
        return httpx.Client(timeout=timeout, trust_env=not _is_loopback(httpx.URL(url).host))
    except (ImportError, OSError, ValueError) as error:  # a proxy or a certificate that the environment names
        raise HeadwayError(f"cannot use the proxy or certificates from the environment: {error}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _refused(response: httpx.Response) -> HeadwayError:
    """The server's own words, if the answer has OpenAI's error object."""
    where = response.url.copy_with(query=None)
    try:
        error = response.json()["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        if response.has_redirect_location:
            target = response.headers["location"]
            return HeadwayError(
                f"{where} redirects ({response.status_code}) to {target}; give the server's own URL with --url"
            )
        if response.status_code == httpx.codes.NOT_FOUND:
            return NotHeadway(str(where), "answers 404")
        return HeadwayError(f"{where} answers {response.status_code} {response.reason_phrase}, without a reason")
    if code == "invalid_api_key":
        message += " (--api-key, or HEADWAY_API_KEY)"
    return HeadwayError(message)
