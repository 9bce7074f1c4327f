"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.api.answers.generate import Answer
from headway.api.answers.logprobs import Spelling
from headway.api.answers.never import Wanted
from headway.api.answers.shapes import ChatShape, Shape, chat_shape, completion_shape
from headway.api.answers.toolshapes import tool_shape
from headway.api.bodies.formats import Asked, asked_grammar
from headway.api.bodies.generation import ChatBody, CompletionBody, StreamOptions, read_body
from headway.api.bodies.heeded import drop_unheeded, ignored_header
from headway.api.bodies.overlong import refuse_over_long
from headway.api.bodies.prompts import chat_prompt
from headway.api.bodies.reading import read_aside
from headway.api.bodies.tools import Tools, read_tools
from headway.core.errors import InvalidRequest
from headway.core.request import TextRequest
from headway.front.admission import claim_place, refuse_when_full, settle_claim
from headway.front.exchange import exchange
from headway.front.models import FrontTextModel
from headway.front.refusals import Refusal
from headway.front.state import Front


async def chat(request: Request) -> Response:
    """Messages through the model's chat template, then generate."""
    front: Front = request.app.state.front
    admissible(front)
    data = await request.body()
    body, ignored = await read_aside(partial(read_body, ChatBody), data)
    model = front.models.text_model(body.model)
    tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    current = exchange(request)
    claim_place(front, model, current, [len(data)])
    asked = await asyncio.to_thread(_asked, model, body, tools)
    chat = await chat_prompt(model, body.messages, body, tools)
    await refuse_over_long(front, model, _asks(body, [chat.text]), current)
    prompt = await asyncio.to_thread(model.tokenizer.encode, chat.text, add_bos=False)
    ignored += chat.ignored
    return await _generate(request, front, model, body, [Prompt(prompt)], ignored, asked, tools=tools)


async def completions(request: Request) -> Response:
    """A plain prompt, as text or as token ids, or a list of prompts: then each is a request of its own."""
    front: Front = request.app.state.front
    admissible(front)
    body, ignored, listed = await read_aside(_read_completion, await request.body())
    model = front.models.text_model(body.model)
    given = [body.prompt] if listed is None else listed
    current = exchange(request)
    claim_place(front, model, current, [len(each.encode() if isinstance(each, str) else each) for each in given])
    await refuse_over_long(front, model, _asks(body, given, listed=listed is not None), current)
    prompts = await asyncio.to_thread(lambda: [_prompt(model, each, body) for each in given])
    return await _generate(
        request, front, model, body, prompts, ignored, asked_grammar(body), listed=listed is not None
    )


def _read_completion(data: bytes) -> tuple[CompletionBody, list[str], list[str | list[int]] | None]:
    """With the prompts, if there is a list of them."""
    body, ignored = read_body(CompletionBody, data)
    return body, ignored, body.prompts()


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the text that the answer repeats first, if any."""

    tokens: list[int]
    echo: str | None = None


def _prompt(model: FrontTextModel, given: str | list[int], body: CompletionBody) -> Prompt:
    if isinstance(given, str):
        tokens = model.tokenizer.encode(given, add_bos=None if body.add_special_tokens else False)
        return Prompt(tokens, given if body.echo else None)
    return Prompt(given, model.tokenizer.decode(given, skip_special=body.skip_special_tokens) if body.echo else None)


async def _generate(
    request: Request,
    front: Front,
    model: FrontTextModel,
    body: ChatBody | CompletionBody,
    prompts: list[Prompt],
    ignored: list[str],
    asked: Asked | None,
    *,
    listed: bool = False,
    tools: Tools | None = None,
) -> Response:
    current = exchange(request)
    refuse_unless_ready(front)  # the replica may have ended while the prompt was tokenised
    assert model.ready is not None
    front.check_free(current.id)
    await refuse_over_long(front, model, _asks(body, [prompt.tokens for prompt in prompts], listed=listed), current)
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    settle_claim(front, current, [len(prompt.tokens) for prompt in prompts], field)
    ignored = [*ignored, *drop_unheeded(body, model.options.engine.policy)]
    news = [
        _new(body, model.name, f"{current.id}~{i}" if listed else current.id, i, prompt, asked)
        for i, prompt in enumerate(prompts)
    ]
    caller = body.caller() if model.options.engine.policy == "fair" else ""
    news = [msgspec.structs.replace(new, caller=caller, received_at=current.received_at) for new in news]
    for new in news:
        new.check(model.ready.facts.vocab)  # here, so that what is invalid costs the step nothing
    headers = ignored_header(ignored)
    shape, echoes = _shape(model, body, current.id, tools), [prompt.echo for prompt in prompts]
    wanted = [_wanted(body, len(new.prompt), i if listed else None) for i, new in enumerate(news)]
    answer = Answer(front, model, shape, news, echoes, current, wanted, asked.field if asked else None)
    if not body.stream:
        return await answer.whole(headers)
    options = body.stream_options or StreamOptions()
    return await answer.stream(
        headers, include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
    )  # fmt: skip


def _asked(model: FrontTextModel, body: ChatBody, tools: Tools | None) -> Asked | None:
    """What the answer must be, whichever field says it. Raises InvalidRequest."""
    asked = asked_grammar(body)
    return asked if tools is None else tools.grammar(model.tool_format, model.tokenizer, asked)


def _new(
    body: ChatBody | CompletionBody, model: str, id: str, place: int, prompt: Prompt, asked: Asked | None
) -> TextRequest:
    """The request for prompt number `place` of a body. Prompts of one list get seeds of their own."""
    sampling = body.sampling()
    scored = body.prompt_logprobs
    if scored is not None and body.stream:
        raise InvalidRequest("prompt_logprobs", "prompt_logprobs are not streamed; with echo and logprobs they are")
    if prompt.echo is not None and body.top is not None:
        scored = max(body.top, scored or 0)
    return TextRequest(
        id=id,
        model=model,
        prompt=tuple(prompt.tokens),
        n=body.n or 1,
        max_tokens=body.most_tokens,
        min_tokens=body.min_tokens,
        sampling=msgspec.structs.replace(sampling, seed=sampling.seed + place),
        stop_ids=tuple(body.stop_token_ids),
        stop=body.stops(),
        ignore_eos=body.ignore_eos,
        priority=body.priority,
        deadline_ms=body.deadline_ms,
        cache_salt=body.cache_salt,
        grammar=asked.grammar if asked else None,
        logprobs=body.top,
        prompt_logprobs=scored,
        draft=body.drafts(),
    )


def _asks(
    body: ChatBody | CompletionBody, prompts: Sequence[str | list[int]], *, listed: bool = False
) -> list[tuple[str | list[int], Wanted]]:
    """Each prompt with what is wanted of it; how many positions it has is yet to be found out."""
    return [(prompt, _wanted(body, 0, i if listed else None)) for i, prompt in enumerate(prompts)]


def _wanted(body: ChatBody | CompletionBody, prompt: int, place: int | None) -> Wanted:
    """What is wanted of a prompt of `prompt` positions, number `place` of a list."""
    return Wanted(
        prompt=prompt,
        most_tokens=body.most_tokens,
        n=body.n or 1,
        prompt_field="messages" if isinstance(body, ChatBody) else "prompt",
        place=place,
        tokens_field=body.tokens_field,
    )


def _shape(model: FrontTextModel, body: ChatBody | CompletionBody, id: str, tools: Tools | None) -> Shape:
    make = chat_shape if isinstance(body, ChatBody) else completion_shape
    wanted = body.top is not None or body.prompt_logprobs is not None
    shown = frozenset[int]() if body.skip_special_tokens else frozenset(model.tokenizer.special_ids)
    spelling = Spelling(model.tokenizer, shown) if wanted else None
    shape = make(id, model.name, int(time.time()), spelling)
    shape.shown, shape.keeps_stop = shown, body.include_stop_str_in_output
    if shown and not shape.keeps_stop:
        assert model.ready is not None
        shape.unsaid = shown & frozenset(model.ready.facts.eos_ids)
    shape.tells_scores = body.prompt_logprobs is not None
    if tools is not None and isinstance(shape, ChatShape):
        return tool_shape(shape, tools, model.tool_format, model.tokenizer)
    return shape


def admissible(front: Front) -> None:
    """Refuse before the body is read when nothing can be served now."""
    refuse_unless_ready(front)
    refuse_when_full(front)


def refuse_unless_ready(front: Front) -> None:
    if front.state != "ready":
        front.turn_away("loading")
        raise not_ready(front)


def not_ready(front: Front) -> Refusal:
    """503 with what is going on."""
    message = {"loading": "the model is loading", "draining": "the server is shutting down"}
    text = message.get(front.state, f"the model could not be loaded: {front.failure}")
    return Refusal(503, text, code=front.state, headers={"retry-after": "2"})


routes = [
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
]
