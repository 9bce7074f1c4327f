"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.api.answers.never import Wanted
from headway.api.bodies.heeded import ignored_header
from headway.api.bodies.overlong import refuse_over_long
from headway.api.bodies.prompts import chat_prompt
from headway.api.bodies.reading import as_struct, read_aside, read_object
from headway.api.bodies.tools import read_tools
from headway.core.errors import InvalidRequest
from headway.front.models import FrontEncoder
from headway.front.state import Front


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Either `prompt`, or `messages` with what else a chat request gives to the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Any] = msgspec.field(default_factory=list)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    reasoning_effort: str | None = None


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    tokens: list[int]


async def tokenize(request: Request) -> Response:
    """{"prompt"} or {"messages"} to {"tokens", "count", "max_model_len"}. A text beyond the context is counted
    too, unless its length alone tells that it could not fit (400)."""
    front: Front = request.app.state.front
    body = await read_aside(lambda data: as_struct(TokenizeBody, read_object(data)), await request.body())
    model = front.models.named(body.model or next(iter(front.models)))
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt", "give either prompt or messages")
    text, add_bos, headers = body.prompt or "", body.add_special_tokens, {}
    if body.messages is not None:
        model = front.models.text_model(model.name)
        chat = await chat_prompt(model, body.messages, body, read_tools(body.tools, None, None))
        text, add_bos = chat.text, bool(body.add_special_tokens)  # a template spells its own begin token
        headers = ignored_header(chat.ignored)
    field = "prompt" if body.messages is None else "messages"
    await refuse_over_long(front, model, [(text, Wanted(0, None, prompt_field=field))])
    if isinstance(model, FrontEncoder):
        tokens = await asyncio.to_thread(model.input_ids, text, special=body.add_special_tokens is not False)
    else:
        tokens = await asyncio.to_thread(model.tokenizer.encode, text, add_bos=add_bos)
    limit = model.max_context
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": limit}
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=headers)


async def detokenize(request: Request) -> Response:
    """{"tokens"} to {"prompt"}; special tokens are spelled out."""
    front: Front = request.app.state.front
    body = await read_aside(lambda data: as_struct(DetokenizeBody, read_object(data)), await request.body())
    model = front.models.named(body.model or next(iter(front.models)))
    limit = model.tokenizer.vocabulary
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < limit:
        raise InvalidRequest("tokens", f"token ids must be from 0 to {limit - 1}")
    text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, skip_special=False)
    return JSONResponse({"prompt": text})


routes = [
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
]
