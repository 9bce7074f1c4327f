"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.errors import InvalidRequest
from headway.request import NewRequest
from headway.serve.bodies import ChatBody, CompletionBody, read_body
from headway.serve.errors import Refusal
from headway.serve.front import Front
from headway.serve.generate import Answer
from headway.serve.shapes import Shape, chat_shape, completion_shape
from headway.serve.visit import visit


async def chat(request: Request) -> Response:
    """Messages through the model's chat template, then generate."""
    front: Front = request.app.state.front
    _admissible(front)
    body, ignored = read_body(ChatBody, await request.body())
    served(front, body.model)
    if not body.messages:
        raise InvalidRequest("messages", "messages is empty; at least one message is needed")
    text = await asyncio.to_thread(front.template.render, body.messages)
    prompt = await asyncio.to_thread(front.tokenizer.encode, text, add_bos=False)
    return await _generate(request, front, body, prompt, ignored)


async def completions(request: Request) -> Response:
    """A plain prompt, as text or as token ids."""
    front: Front = request.app.state.front
    _admissible(front)
    body, ignored = read_body(CompletionBody, await request.body())
    served(front, body.model)
    prompt = body.prompt
    if isinstance(prompt, str):
        prompt = await asyncio.to_thread(front.tokenizer.encode, prompt)
    return await _generate(request, front, body, prompt, ignored)


async def _generate(
    request: Request, front: Front, body: ChatBody | CompletionBody, prompt: list[int], ignored: list[str]
) -> Response:
    current = visit(request)
    new = NewRequest(
        id=current.id,
        prompt=tuple(prompt),
        n=body.n or 1,
        max_tokens=body.most_tokens,
        min_tokens=body.min_tokens,
        sampling=body.sampling(),
        stop_ids=tuple(body.stop_token_ids),
        stop=body.stops(),
        ignore_eos=body.ignore_eos,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )
    assert front.ready is not None
    new.check(front.ready.facts.vocab)  # here, so that what means nothing costs the step nothing
    headers = {"headway-ignored": ", ".join(ignored)} if ignored else {}
    answer = Answer(front, _shape(front, body, new), new, current)
    if not body.stream:
        return await answer.whole(request, headers)
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    return await answer.stream(request, headers, include_usage=bool(include_usage))


def _shape(front: Front, body: ChatBody | CompletionBody, new: NewRequest) -> Shape:
    make = chat_shape if isinstance(body, ChatBody) else completion_shape
    return make(new.id, front.served_name, int(time.time()))


def _admissible(front: Front) -> None:
    """Refuse before the body is read when nothing can be served now."""
    if front.state != "ready":
        front.metrics.refuse("loading")
        raise not_ready(front)
    if front.waiting >= front.max_waiting:
        front.metrics.refuse("queue")
        raise Refusal(
            429,
            f"{front.waiting} requests wait and --max-waiting is {front.max_waiting}",
            code="queue_full",
            headers={"retry-after": str(front.retry_after_s())},
        )


def not_ready(front: Front) -> Refusal:
    """503 with what is going on."""
    message = {"loading": "the model is loading", "draining": "the server is shutting down"}
    text = message.get(front.state, f"the model could not be loaded: {front.failure}")
    return Refusal(503, text, code=front.state, headers={"retry-after": "2"})


def served(front: Front, model: str) -> None:
    """Raises Refusal (404) for the name of a model that is not served here."""
    if model != front.served_name:
        raise Refusal(
            404, f"the model {model!r} is not served here; {front.served_name!r} is", code="model_not_found",
            param="model",
        )  # fmt: skip


routes = [
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
]
