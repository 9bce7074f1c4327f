"""The commands' way to a running server."""

from __future__ import annotations

from typing import Any

import httpx

from headway.errors import HeadwayError, UnknownRequest


class NoServer(HeadwayError):
    """Nothing answers where a server was expected."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"no server answers at {url} ({reason}); start one with `headway serve`, or name it with --url"
        )


def key_header(api_key: str | None) -> dict[str, str]:
    """The header that carries a key, if there is one."""
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def fetch(url: str, path: str, api_key: str | None = None) -> Any:
    """GET as JSON. Raises NoServer, or HeadwayError with the server's own words."""
    try:
        response = httpx.get(url.rstrip("/") + path, timeout=10, headers=key_header(api_key))
    except httpx.HTTPError as error:
        raise NoServer(url, str(error) or type(error).__name__) from error
    return checked(response)


def checked(response: httpx.Response) -> Any:
    """The JSON of a good answer. Raises HeadwayError with the server's own words for any other."""
    if response.is_success:
        return response.json()
    try:
        error = response.json()["error"]
        message, code = error["message"], error.get("code")
    except (ValueError, KeyError, TypeError):
        raise HeadwayError(f"{response.url} answered {response.status_code}") from None
    if code == "request_not_found":
        raise UnknownRequest(str(response.url).rsplit("/", 1)[1])
    if code == "invalid_api_key":
        message += " (--api-key, or HEADWAY_API_KEY)"
    raise HeadwayError(message)
