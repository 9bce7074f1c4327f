"""Refusals over HTTP: OpenAI's error object, always, with numbers where there are any."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headway.core.errors import DuplicateRequest, HeadwayError, InvalidRequest, ProcessEnded, UnknownRequest
from headway.core.events import SLOW_READER, TIME

_MOST_MESSAGE = 2000


class Refusal(HeadwayError):
    """An answer that is an error. `param` names the field or option it is about."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        return error_body(self.status, str(self), self.code, self.param)

    def response(self) -> Response:
        return JSONResponse(self.body(), self.status, self.headers)


def error_body(status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    if len(message) > _MOST_MESSAGE:  # it may quote what was sent, and that may be megabytes
        message = f"{message[: _MOST_MESSAGE // 2]} … {message[-_MOST_MESSAGE // 2 :]}"
    kind = {404: "not_found_error", 409: "conflict_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def cancelled(by: str | None, max_seconds: float | None) -> Refusal:
    """A request that was ended early, by whom or what."""
    if by == TIME:
        text = f"the request was alive for more than {max_seconds:g} s, which is --max-seconds, and was ended"
        return Refusal(504, text, code="time_limit")
    if by == SLOW_READER:
        return Refusal(499, "the client fell too far behind its stream", code="slow_reader")
    return Refusal(499, "the request was cancelled", code="cancelled")


def invalid(error: InvalidRequest) -> Refusal:
    return Refusal(400, str(error), code="invalid_value", param=error.field)


def unknown_request(error: UnknownRequest) -> Refusal:
    return Refusal(404, str(error), code="request_not_found", param="id")


def duplicate(error: DuplicateRequest) -> Refusal:
    return Refusal(409, str(error), code="duplicate_id", param="x-request-id")


def unrendered(error: ProcessEnded) -> Refusal:
    """There is no process to render the chat template in, or it ended: no fault of the request that is known."""
    text = f"the chat template could not be rendered: {error}; try again"
    return Refusal(503, text, code="not_rendered", headers={"retry-after": "1"})


async def on_refusal(request: Request, error: Exception) -> Response:
    """Turn any of Headway's own exceptions into its answer."""
    match error:
        case Refusal():
            return error.response()
        case InvalidRequest():
            return invalid(error).response()
        case UnknownRequest():
            return unknown_request(error).response()
        case DuplicateRequest():
            return duplicate(error).response()
        case ProcessEnded():
            return unrendered(error).response()
    return Refusal(500, "internal error; see the server's log", code="internal_error").response()


async def on_http_error(request: Request, error: Exception) -> Response:
    """Routing errors (no such path, wrong method) in the same shape."""
    status = getattr(error, "status_code", 500)
    detail = str(getattr(error, "detail", error))
    headers = getattr(error, "headers", None)
    text = f"{request.method} {request.url.path}: {detail}"
    if status == 404:
        text += ". GET /openapi.json lists what is served"
    return Refusal(status, text, code="http_error", headers=headers).response()
