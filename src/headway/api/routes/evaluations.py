"""`/v1/embeddings` and `/v1/rerank`: inputs that are evaluated once."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.api.answers.evaluate import Embeddings, Evaluation, Scores
from headway.api.bodies.embeddings import EmbeddingsBody, Given, read_embeddings
from headway.api.bodies.heeded import drop_unheeded, ignored_header
from headway.api.bodies.inputs import (
    Overlong,
    aside,
    check_embeddings,
    embedding_inputs,
    pair_inputs,
    prompt_of,
    refuse_over_long,
)
from headway.api.bodies.reading import read_aside
from headway.api.bodies.rerank import RerankBody, read_rerank
from headway.api.bodies.windows import Cut
from headway.api.routes.completions import admissible, refuse_unless_ready
from headway.core.errors import InvalidRequest
from headway.core.request import EmbedRequest
from headway.front.admission import claim_place, settle_claim
from headway.front.exchange import Exchange, exchange
from headway.front.models import FrontEncoder
from headway.front.state import Front

#: Inputs of one request, as in OpenAI's reference.
MOST_INPUTS = 2048
_AT_ONCE = 128


async def embeddings(request: Request) -> Response:
    """A vector of each input; each input of a list is a request of its own."""
    front: Front = request.app.state.front
    admissible(front)
    body, given, listed, ignored = await read_aside(read_embeddings, await request.body())
    model = front.models.encoder(body.model, "vector")
    assert model.ready is not None
    check_embeddings(model, body)
    prompt, unused = prompt_of(model, body)
    current, facts = exchange(request), model.ready.facts
    claim_place(front, model, current, _bounds(given, "input"), "input", at_once(front))
    prepared = await aside(given, lambda: embedding_inputs(model, body, given, prompt, listed=listed))
    cuts = _fitting(front, model, current, prepared)
    one_document = body.treatment == "late" and body.chunk_tokens is None
    ignored += [*unused, *drop_unheeded(body, model.options.engine.policy)]
    evaluation = _submit(front, model, current, cuts, "input", body, listed=listed and not one_document)
    shape = Embeddings(
        model.name,
        body.encoding_format == "base64",
        body.dimensions,
        normalize=facts.normalized and not body.token_vectors if body.normalize is None else body.normalize,
        normalized=facts.normalized,
    )
    return await evaluation.answer(ignored_header(ignored), shape)


async def rerank(request: Request) -> Response:
    """Documents in the order of their relevance for a query; each document is a request of its own."""
    front: Front = request.app.state.front
    admissible(front)
    body, documents, ignored = await read_aside(read_rerank, await request.body())
    model = front.models.encoder(body.model, "score")
    current = exchange(request)
    query = len(body.query.encode())
    bounds = [query + bound for bound in _bounds(documents, "documents")]
    claim_place(front, model, current, bounds, "documents", at_once(front))
    prepared = await aside([body.query, *documents], lambda: pair_inputs(model, body, documents))
    cuts = _fitting(front, model, current, prepared)
    ignored += drop_unheeded(body, model.options.engine.policy)
    evaluation = _submit(front, model, current, cuts, "documents", body, listed=True)
    shape = Scores(current.id, model.name, documents, body.top_n, body.return_documents)
    return await evaluation.answer(ignored_header(ignored), shape)


def at_once(front: Front) -> int:
    """How many inputs of one exchange may wait at a time: enough for several steps, and no more than half of what may
    wait in all."""
    return max(1, min(_AT_ONCE, front.limits.max_waiting // 2))


def _bounds(given: Sequence[Given], field: str) -> list[int]:
    """Positions that each input has at most, as far as is known before it is tokenised. Raises InvalidRequest for
    more inputs than an exchange may have."""
    if len(given) > MOST_INPUTS:
        raise InvalidRequest(field, f"{field} is a list of {len(given)}; at most {MOST_INPUTS} are served at once")
    return [len(each.encode() if isinstance(each, str) else each) for each in given]


def _fitting(front: Front, model: FrontEncoder, current: Exchange, prepared: list[Cut] | Overlong) -> list[Cut]:
    """Raises Refusal (400), told in the story, for what is too long; Refusal (503) where the replica ended meanwhile;
    DuplicateRequest."""
    refuse_unless_ready(front)
    front.check_free(current.id)
    assert model.ready is not None
    if isinstance(prepared, Overlong):
        raise refuse_over_long(front, model, current, prepared, model.ready.max_context)
    return prepared


def _submit(
    front: Front,
    model: FrontEncoder,
    current: Exchange,
    cuts: list[Cut],
    field: str,
    body: EmbeddingsBody | RerankBody,
    *,
    listed: bool,
) -> Evaluation:
    settle_claim(front, current, [sum(each.cost for each in cut.inputs) for cut in cuts], field)
    news = [
        EmbedRequest(
            id=f"{current.id}~{i}" if listed else current.id,
            model=model.name,
            priority=body.priority,
            deadline_ms=body.deadline_ms,
            received_at=current.received_at,
            inputs=cut.inputs,
        )
        for i, cut in enumerate(cuts)
    ]
    return Evaluation(front, model, news, cuts, current, field, at_once(front))


routes = [
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/v1/rerank", rerank, methods=["POST"]),
]
