"""`/v1/images/generations`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.api.answers.pictures import Pictures
from headway.api.bodies.heeded import drop_unheeded, ignored_header
from headway.api.bodies.images import ImagesBody, read_images
from headway.api.bodies.inputs import aside
from headway.api.bodies.reading import read_aside
from headway.api.routes.completions import admissible, refuse_unless_ready
from headway.core.errors import InvalidRequest
from headway.core.request import ImageRequest
from headway.front.admission import claim_place, settle_claim
from headway.front.exchange import Exchange, exchange
from headway.front.models import FrontImageModel
from headway.front.state import Front


async def generations(request: Request) -> Response:
    """Images of a prompt; each of several is a request of its own."""
    front: Front = request.app.state.front
    admissible(front)
    body, ignored = await read_aside(read_images, await request.body())
    model = front.models.image_model(body.model)
    assert model.ready is not None
    guidance = model.guidance if body.guidance is None else body.guidance
    _check(model, body, guidance)
    texts = [body.prompt, body.negative_prompt or model.unconditional]
    current = exchange(request)
    bound = sum(len(text.encode()) for text in texts) + 2 * len(model.encode(""))
    claim_place(front, model, current, [bound] * body.count, "n")
    prompt, negative = await aside(texts, lambda: [model.encode(text) for text in texts])
    refuse_unless_ready(front)  # the replica may have ended meanwhile
    front.check_free(current.id)
    ignored += drop_unheeded(body, model.options.engine.policy, always={"deadline_ms"})
    news = _requests(model, body, current, prompt, negative if guidance > 1 else (), guidance)
    settle_claim(front, current, [new.positions for new in news], "prompt")
    pictures = Pictures(front, model, news, current)
    return await (pictures.stream if body.stream else pictures.whole)(ignored_header(ignored))


def _check(model: FrontImageModel, body: ImagesBody, guidance: float) -> None:
    """Raises InvalidRequest for what this model cannot take as given."""
    model.check(*body.pixels(), body.steps or model.steps)
    if body.negative_prompt and guidance <= 1:
        text = f"negative_prompt has an effect only with guidance above 1, and guidance is {guidance:g}"
        raise InvalidRequest("negative_prompt", text)


def _requests(
    model: FrontImageModel,
    body: ImagesBody,
    current: Exchange,
    prompt: tuple[int, ...],
    negative: tuple[int, ...],
    guidance: float,
) -> list[ImageRequest]:
    width, height = body.pixels()
    return [
        ImageRequest(
            id=f"{current.id}~{place}" if body.count > 1 else current.id,
            model=model.name,
            priority=body.priority,
            deadline_ms=body.deadline_ms,
            serve_late=body.serve_late,
            received_at=current.received_at,
            prompt=prompt,
            negative=negative,
            updates=body.steps or model.steps,
            seed=seed,
            guidance=guidance,
            width=width,
            height=height,
            previews=body.partial_images or 0,
        )
        for place, seed in enumerate(body.seeds())
    ]


routes = [Route("/v1/images/generations", generations, methods=["POST"])]
