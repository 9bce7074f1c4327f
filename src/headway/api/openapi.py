"""`/openapi.json`: the API as an OpenAPI 3.1 document.

Bodies are described by the structs that read them and numbers by the ranges that are checked, so the document cannot
drift from the server. Which operations there are, and with which statuses they answer, is stated in `OPERATIONS`; the
tests hold that against the routes and against what a server answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import headway
from headway.api.answers import documents
from headway.api.bodies.embeddings import EmbeddingsBody
from headway.api.bodies.generation import ChatBody, CompletionBody
from headway.api.bodies.images import ImagesBody
from headway.api.bodies.rerank import RerankBody
from headway.api.describe import SCHEMAS, Json, schemas
from headway.api.routes.introspection import MOST_ON_A_PAGE, PAGE
from headway.api.routes.tokens import DetokenizeBody, TokenizeBody
from headway.core.request import Stage
from headway.front.exchange import REQUEST_ID
from headway.front.guard import OPEN_PATHS, Guard
from headway.front.state import Front
from headway.story.tell import views

_STREAM = "text/event-stream"
#: OpenAPI 3.1 has no way to describe the events of a stream.
_MEDIA: dict[str, Json] = {
    "application/json": {"schema": {"type": "object"}},
    "text/html": {"schema": {"type": "string"}},
    "text/plain": {"schema": {"type": "string"}},
    "image/png": {},
    _STREAM: {},
}

#: When an exchange is answered with an error object.
REFUSALS = {
    400: "A field, parameter or header cannot be served as given, or never could be; `param` names it.",
    401: "The API key is missing or incorrect.",
    403: "The page's origin, or the Host header, is not allowed.",
    404: "There is no such model or request.",
    408: "The body took too long to arrive.",
    409: "A live request has that `x-request-id`.",
    413: "The body is larger than `--max-body`, or has more values than could be served.",
    415: "The body's `content-encoding` is not gzip, deflate or identity.",
    422: "`deadline_ms` cannot be met, by what recent steps took (of images; of others with `--policy deadline`).",
    429: "The queue is full; `retry-after` says in how many seconds to retry.",
    499: "The request was cancelled.",
    500: "An internal error.",
    503: "The model is loading or could not be loaded, or the server is shutting down or stuck.",
    504: "The request took longer than `--max-seconds`.",
}
#: Whatever is asked, this may be the answer.
_ALWAYS = (400, 403, 413, 500)
_READING = (408, 415)
_GENERATING = (404, 408, 409, 415, 422, 429, 499, 503, 504)


@dataclass(frozen=True)
class Operation:
    """One method of one path. `answers` are the types of a good answer, or the media type of one that is text;
    `query` and `headers` map parameters to their schemas."""

    id: str
    summary: str
    answers: tuple[type[msgspec.Struct] | str, ...]
    refusals: tuple[int, ...] = ()
    body: type[msgspec.Struct] | None = None
    query: Json = field(default_factory=dict)
    headers: Json = field(default_factory=dict)


_PAGE_QUERY: Json = {
    "after": {"type": "string", "description": "continue after the request with this id"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_ON_A_PAGE, "default": PAGE},
    "stage": {"enum": sorted(str(stage) for stage in Stage), "description": "only requests in this stage"},
}
_RECORD = (views.RequestView, views.ListView)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "create_chat_completion", "Continue a conversation.", (documents.ChatCompletion, _STREAM), _GENERATING,
        ChatBody,
    ),
    ("POST", "/v1/completions"): Operation(
        "create_completion", "Continue a prompt, or each of a list of prompts.", (documents.Completion, _STREAM),
        _GENERATING, CompletionBody,
    ),
    ("POST", "/v1/embeddings"): Operation(
        "create_embedding", "A vector of each input.", (documents.EmbeddingList,), _GENERATING, EmbeddingsBody
    ),
    ("POST", "/v1/rerank"): Operation(
        "rerank", "Documents in the order of their relevance for a query.", (documents.Reranking,), _GENERATING,
        RerankBody,
    ),
    ("POST", "/v1/images/generations"): Operation(
        "create_image", "Images of a prompt.", (documents.Images, _STREAM), _GENERATING, ImagesBody
    ),
    ("POST", "/tokenize"): Operation(
        "tokenize", "The token ids of a prompt, or of messages.", (documents.Tokens,), (404, *_READING), TokenizeBody
    ),
    ("POST", "/detokenize"): Operation(
        "detokenize", "The text of token ids.", (documents.Prompt,), (404, *_READING), DetokenizeBody
    ),
    ("GET", "/v1/models"): Operation("list_models", "The models that are served.", (documents.Models,)),
    ("GET", "/v1/models/{name}"): Operation("get_model", "One model.", (documents.Model,), (404,)),
    ("GET", "/v1/requests"): Operation(
        "list_requests", "Live requests in order of arrival, then the finished ones that are kept, the latest first.",
        (views.PageView,), query=_PAGE_QUERY,
    ),
    ("GET", "/v1/requests/{id}"): Operation(
        "get_request", "Where a request is, why, and where its time went.", _RECORD, (404,)
    ),
    ("DELETE", "/v1/requests/{id}"): Operation(
        "cancel_request", "Cancel a request and return its record; repeating it returns the same.", _RECORD, (404,)
    ),
    ("GET", "/v1/requests/{id}/preview"): Operation(
        "get_preview", "What the latent of a running image request looks like by now, as a small PNG file.",
        ("image/png",), (404, 503),
    ),
    ("GET", "/v1/events"): Operation(
        "follow_events", "Events as server-sent events, from the oldest that is kept.", (_STREAM,),
        query={
            "after": {"enum": ["now"], "description": "start with the next event"},
            "until": {"enum": ["now"], "description": "end after the newest event"},
        },
        headers={"Last-Event-ID": {"type": "string", "description": "continue after the event with this id"}},
    ),
    ("GET", "/v1/pool"): Operation(
        "get_pool", "The memory for state (KV cache), and who holds it.", (views.PoolView,),
        query={
            "blocks": {
                "type": "boolean", "default": False,
                "description": "list also which blocks are reusable, and who holds the live ones",
            },
        },
    ),
    ("GET", "/metrics"): Operation("get_metrics", "Metrics, in Prometheus' text format.", ("text/plain",)),
    ("GET", "/health"): Operation(
        "get_health", "Whether there is progress: 503 when there is work but nothing progresses; and recovery loops.",
        (documents.Health,), (503,),
    ),
    ("GET", "/ready"): Operation("get_ready", "Whether requests are served.", (documents.Ready,), (503,)),
    ("GET", "/"): Operation("get_page", "The live page.", ("text/html",)),
    ("GET", "/openapi.json"): Operation("get_openapi", "This document.", ("application/json",)),
}  # fmt: skip


async def openapi(request: Request) -> Response:
    """The document, for this server."""
    guard: Guard = request.app.state.guard
    front: Front = request.app.state.front
    models = {model.output: model.name for model in reversed(front.models.values())}
    return JSONResponse(document(models, needs_key=guard.needs_key))


def document(models: Mapping[str, str], *, needs_key: bool) -> Json:
    """OpenAPI 3.1 for a server of `models`: by what they make (`ModelFacts.output`) the name of one. With `needs_key`
    it names the key for most paths."""
    paths: Json = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, needs_key)
    bodies = {operation.body for operation in OPERATIONS.values() if operation.body is not None}
    kinds = {kind for operation in OPERATIONS.values() for kind in operation.answers if not isinstance(kind, str)}
    components: Json = {
        "parameters": {"x-request-id": _request_id()},
        "responses": {str(status): _refusal(status) for status in REFUSALS if status != 401 or needs_key},
        "schemas": schemas(bodies, kinds | {documents.Error}, _names(bodies, models)),
    }
    found: Json = {
        "openapi": "3.1.1",
        "info": {
            "title": "Headway",
            "version": headway.__version__,
            "description": "OpenAI's API, and what Headway can say about each request. Every response carries "
            "`x-request-id`; `headway-timing` says where an answer's time went, `headway-ignored` which fields were "
            "accepted without effect.",
        },
        "paths": paths,
        "components": components,
    }
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return {**found, "components": _sorted(components), "paths": _sorted(paths)}


def _names(bodies: Iterable[type[msgspec.Struct]], models: Mapping[str, str]) -> dict[type[msgspec.Struct], str]:
    """For each body the name of a model that serves it, if there is one."""
    makes: dict[type[msgspec.Struct], str] = {EmbeddingsBody: "vector", RerankBody: "score", ImagesBody: "pixels"}
    return {body: models[kind] for body in bodies if (kind := makes.get(body, "tokens")) in models}


def _operation(path: str, operation: Operation, needs_key: bool) -> Json:
    open_to_all = path in OPEN_PATHS
    refusals = {*_ALWAYS, *operation.refusals} | ({401} if needs_key and not open_to_all else set())
    parameters = [
        *(_parameter("path", name, {"type": "string"}) for name in re.findall(r"{(\w+)}", path)),
        *(_parameter("query", name, schema) for name, schema in operation.query.items()),
        *(_parameter("header", name, schema) for name, schema in operation.headers.items()),
        {"$ref": "#/components/parameters/x-request-id"},
    ]
    found: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {"200": {"description": "The answer.", "content": _content(operation.answers)}}
        | {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(refusals)},
    }
    if operation.body is not None:
        schema = {"$ref": f"{SCHEMAS}/{operation.body.__name__}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if needs_key and open_to_all:
        found["security"] = []
    return found


def _parameter(place: str, name: str, schema: Json) -> Json:
    described = {key: value for key, value in schema.items() if key == "description"}
    schema = {key: value for key, value in schema.items() if key != "description"}
    return {"name": name, "in": place, "required": place == "path", "schema": schema} | described


def _content(kinds: tuple[type[msgspec.Struct] | str, ...]) -> Json:
    refs = [{"$ref": f"{SCHEMAS}/{kind.__name__}"} for kind in kinds if not isinstance(kind, str)]
    content: Json = {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}} if refs else {}
    return content | {media: _MEDIA[media] for media in kinds if isinstance(media, str)}


def _request_id() -> Json:
    schema = {"type": "string", "pattern": f"^{REQUEST_ID.pattern}$"}
    return _parameter("header", "x-request-id", schema | {"description": "the request's id; generated if left out"})


def _refusal(status: int) -> Json:
    headers = {"retry-after": {"schema": {"type": "integer"}, "description": "seconds"}} if status == 429 else {}
    content = {"application/json": {"schema": {"$ref": f"{SCHEMAS}/Error"}}}
    return {"description": REFUSALS[status], "content": content} | ({"headers": headers} if headers else {})


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return {key: _sorted(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


routes = [Route("/openapi.json", openapi)]
