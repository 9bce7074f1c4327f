"""The body of `/v1/rerank`, in the shape that Cohere, Jina and vLLM share."""

from __future__ import annotations

from typing import Literal

import msgspec

from headway.api.bodies.embeddings import check_truncation
from headway.api.bodies.fields import read_fields
from headway.api.bodies.known import ENCODERS
from headway.core.errors import InvalidRequest


class Document(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class RerankBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/rerank`.

    top_n                so many results, the best; all by default
    long_input           of a document that is too long beside the query: `error` (400), or `truncate` (its end is
                         left out; the query never is)
    max_tokens_per_doc   Cohere's: longer documents are truncated to so many tokens of their own
    truncate_prompt_tokens   vLLM's: query, document and special tokens in at most so many, the document truncated;
                         -1: in what the model takes
    """

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool = False
    long_input: Literal["error", "truncate"] = "error"
    max_tokens_per_doc: int | None = None
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    deadline_ms: float | None = None

    def texts(self) -> list[str]:
        """Raises InvalidRequest for an empty query, list or document, by its place."""
        if not self.query:
            raise InvalidRequest("query", "query is empty; at least one token is required")
        if not self.documents:
            raise InvalidRequest("documents", "documents is an empty list; at least one is required")
        texts = [each.text if isinstance(each, Document) else each for each in self.documents]
        if "" in texts:
            message = f"documents[{texts.index('')}] is empty; at least one token is required"
            raise InvalidRequest("documents", message)
        return texts


def read_rerank(data: bytes) -> tuple[RerankBody, list[str], list[str]]:
    """The body, its documents' texts, and the fields that were accepted without effect. Raises InvalidRequest."""
    body, ignored = read_fields(RerankBody, data, ENCODERS)
    texts = body.texts()
    if body.truncate_prompt_tokens is not None:
        check_truncation(body.truncate_prompt_tokens)
    return body, texts, ignored
