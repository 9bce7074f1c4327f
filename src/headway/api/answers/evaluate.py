"""From inputs to their vectors or scores, and to the JSON that says them: OpenAI's list of embeddings, and the
results of a reranking."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response

from headway.api.answers.following import Following
from headway.api.answers.never import Wanted
from headway.api.answers.vectors import Rows, as_base64, as_floats, rows_of, shortened, weighted_mean
from headway.api.bodies.windows import Cut
from headway.core.request import Embedded, EmbedRequest, Stage
from headway.front.exchange import Exchange
from headway.front.inbox import Arriving
from headway.front.models import FrontEncoder
from headway.front.state import Front

_json = msgspec.json.Encoder()


class Evaluation(Following):
    """The requests of one exchange, one for each of `cuts`, and what the model made of their inputs. At most
    `at_once` of them are alive at a time."""

    def __init__(
        self,
        front: Front,
        model: FrontEncoder,
        news: Sequence[EmbedRequest],
        cuts: Sequence[Cut],
        exchange: Exchange,
        field: str,
        at_once: int,
    ) -> None:
        super().__init__(front, model, exchange)
        assert model.ready is not None
        self._size = model.ready.facts.vector
        self._cuts = {new.id: cut for new, cut in zip(news, cuts, strict=True)}
        self._values: dict[str, list[bytes]] = {new.id: [b""] * len(new.inputs) for new in news}
        places = range(len(news)) if len(news) > 1 else (None,)
        self._coming = deque(
            (new, Wanted(max(each.cost for each in new.inputs), None, prompt_field=field, place=place))
            for new, place in zip(news, places, strict=True)
        )
        self._at_once = at_once
        self.ended()

    def ended(self) -> None:
        """Submit more once half of those before are over, so that several reach the engine together."""
        if self._coming and self._left <= self._at_once // 2:
            news, wanted = zip(*(self._coming.popleft() for _ in range(self._room())), strict=True)
            self.submit(news, wanted)

    def _room(self) -> int:
        return min(len(self._coming), self._at_once - self._left)

    def take(self, item: Arriving) -> None:
        assert isinstance(item, Embedded), "an encoder sends vectors"
        self._values[item.id][item.index] = item.values

    async def answer(self, headers: dict[str, str], shape: Embeddings | Scores) -> Response:
        """Raises Refusal when it cannot be given."""
        end = await self.unless_gone(self.collect())
        if end is None:
            return Response(status_code=499)
        if end.stage is not Stage.FINISHED:
            raise self.refusal(end)
        rows = [self._rows(id) for id in self._cuts]
        body = shape.body(rows, [*self._cuts.values()]) | self._told()
        return Response(_json.encode(body), 200, headers | {"headway-timing": self.timing()}, "application/json")

    def _rows(self, id: str) -> Rows:
        """The vectors of one request."""
        cut, values = self._cuts[id], self._values[id]
        if cut.what == "split":
            return weighted_mean(rows_of(b"".join(values), self._size), cut.weights)
        (only,) = cut.inputs
        return rows_of(values[0], len(values[0]) // (4 * only.rows) if only.raw else self._size)

    def _told(self) -> dict[str, Any]:
        """What was spent, and what became of the inputs that did not stay as they are."""
        evaluated = sum(each.cost for cut in self._cuts.values() for each in cut.inputs)
        inputs = [_what(place, cut) for place, cut in enumerate(self._cuts.values()) if cut.what != "whole"]
        evaluations = sum(len(cut.inputs) for cut in self._cuts.values())
        return {
            "usage": {"prompt_tokens": evaluated, "total_tokens": evaluated},
            "headway": {"evaluations": evaluations, "inputs": inputs},
        }


def _what(place: int, cut: Cut) -> dict[str, Any]:
    told: dict[str, Any] = {"index": place, "what": cut.what, "tokens": cut.given}
    match cut.what:
        case "truncated":
            told["kept"] = cut.inputs[0].cost
        case "split":
            told["windows"] = [each.cost for each in cut.inputs]
        case "late":
            told["chunks"] = [list(chunk) for chunk in cut.chunks]
    return told


@dataclass(frozen=True)
class Embeddings:
    """OpenAI's list. `dimensions` values of each vector are kept; with `normalized` the model's vectors have length
    1, and with `normalize` those of the answer."""

    model: str
    base64: bool
    dimensions: int | None
    normalize: bool
    normalized: bool

    def body(self, rows: Sequence[Rows], cuts: Sequence[Cut]) -> dict[str, Any]:
        """In the order of the inputs; a document of several chunks has a row for each, and tokens' vectors stand
        together under `embeddings`."""
        remade = [
            shortened(each, self.dimensions, normalize=self.normalize and self._other(each, cut))
            for each, cut in zip(rows, cuts, strict=True)
        ]
        data: list[dict[str, Any]]
        if any(cut.inputs[0].raw for cut in cuts):
            given = [self._written(each) for each in remade]
            data = [{"object": "embedding", "index": i, "embeddings": each} for i, each in enumerate(given)]
        else:
            vectors = self._written(remade[0] if len(remade) == 1 else np.concatenate(remade))
            data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        return {"object": "list", "model": self.model, "data": data}

    def _written(self, vectors: Rows) -> list[bytes] | list[list[float]]:
        return as_base64(vectors) if self.base64 else as_floats(vectors)

    def _other(self, rows: Rows, cut: Cut) -> bool:
        """Whether these vectors may be of another length than 1."""
        cut_off = self.dimensions is not None and self.dimensions < rows.shape[1]
        return not self.normalized or cut_off or cut.what == "split" or cut.inputs[0].raw


@dataclass(frozen=True)
class Scores:
    """The documents, the most relevant first, in the shape that Cohere, Jina and vLLM share."""

    id: str
    model: str
    documents: Sequence[str]
    top: int | None
    returned: bool

    def body(self, rows: Sequence[Rows], cuts: Sequence[Cut]) -> dict[str, Any]:
        scores = [float(each[0, 0]) for each in rows]
        best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[: self.top]
        results = [{"index": place, "relevance_score": scores[place]} | self._document(place) for place in best]
        tokens = sum(cut.inputs[0].cost for cut in cuts)
        meta = {"tokens": {"input_tokens": tokens}}
        return {"id": self.id, "model": self.model, "results": results, "meta": meta}

    def _document(self, place: int) -> dict[str, Any]:
        return {"document": {"text": self.documents[place]}} if self.returned else {}
