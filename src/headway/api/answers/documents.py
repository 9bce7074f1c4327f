"""What answers look like, as types: for `/openapi.json` alone. The tests hold real answers against them. What
requests and pools look like is in `story/tell/views.py`.

A member that may be absent is `Unset`; answers may have more members than these.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from headway.core.recovery import Demand, Rates
from headway.core.request import FinishReason
from headway.front.state import State
from headway.story.tell.views import DeadlineView

Count: TypeAlias = int
Object: TypeAlias = dict[str, Any]


class ErrorDetail(msgspec.Struct):
    """`param` is the field, header or option that it is about; `code` is for programs, `message` for people."""

    message: str
    type: str
    param: str | None
    code: str


class Error(msgspec.Struct):
    """OpenAI's error object."""

    error: ErrorDetail


class PromptDetails(msgspec.Struct):
    """`cached_tokens` are positions whose state was reused."""

    cached_tokens: Count


class Usage(msgspec.Struct):
    """Tokens of all prompts and of all answers together."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptDetails


class Choice(msgspec.Struct):
    """One sequence's text."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: Object | None
    prompt_logprobs: list[Object | None] | UnsetType = UNSET


class Completion(msgspec.Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Message(msgspec.Struct):
    """`content` is null when there are only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[Object] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One sequence's message."""

    index: int
    message: Message
    finish_reason: FinishReason | Literal["tool_calls"]
    logprobs: Object | None
    prompt_logprobs: list[Object | None] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EvaluatedUsage(msgspec.Struct):
    """Positions that the model evaluated, special tokens included."""

    prompt_tokens: Count
    total_tokens: Count


class Treated(msgspec.Struct):
    """What was done with an input that was not evaluated as it is. `tokens` are those that it came with, `kept` those
    that were left of a truncated one, `windows` the positions of each window, `chunks` the tokens, from and to, that
    each vector of a late pass is pooled from."""

    index: Count
    what: Literal["truncated", "split", "late"]
    tokens: Count
    kept: Count | UnsetType = UNSET
    windows: list[Count] | UnsetType = UNSET
    chunks: list[list[Count]] | UnsetType = UNSET


class Evaluations(msgspec.Struct):
    """How many evaluations (forward passes) there were, each window counted; and what was done with inputs that were
    too long."""

    evaluations: Count
    inputs: list[Treated]


class Embedding(msgspec.Struct):
    """Numbers, or base64 of fp32 values, little-endian; `embeddings` are the tokens', where those are asked for."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str | UnsetType = UNSET
    embeddings: list[list[float] | str] | UnsetType = UNSET


class EmbeddingList(msgspec.Struct):
    """In the order of the inputs; a document of several chunks has an embedding for each."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EvaluatedUsage
    headway: Evaluations


class MadeImage(msgspec.Struct):
    """The request of one image, and with what it can be made again."""

    id: str
    seed: int
    steps: Count
    guidance: float
    deadline: DeadlineView | UnsetType = UNSET


class MadeImages(msgspec.Struct):
    images: list[MadeImage]


class Image(msgspec.Struct):
    """A PNG file in base64."""

    b64_json: str


class ImageUsage(msgspec.Struct):
    """Tokens of the texts that were evaluated; an image has none."""

    input_tokens: Count
    output_tokens: Count
    total_tokens: Count
    input_tokens_details: dict[str, Count]


class Images(msgspec.Struct):
    created: int
    data: list[Image]
    background: Literal["opaque"]
    output_format: Literal["png"]
    size: str
    usage: ImageUsage
    headway: MadeImages


class RankedText(msgspec.Struct):
    text: str


class Ranked(msgspec.Struct):
    """`index` is the document's place in the request."""

    index: Count
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Reranking(msgspec.Struct):
    """The most relevant first."""

    id: str
    model: str
    results: list[Ranked]
    meta: Object
    usage: EvaluatedUsage
    headway: Evaluations


class Model(msgspec.Struct):
    """`max_model_len` is the maximum context length, `headway` the replica's resources as in the event `loaded`; both
    are null while the model loads."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["headway"]
    max_model_len: int | None
    headway: dict[str, Any] | None


class Models(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class Loop(msgspec.Struct):
    """A model in a recovery loop, or whose admission is cut because of one; rates are means per second."""

    model: str
    cut: bool
    now: Rates
    best: Rates
    offered: Demand
    rejected: Demand
    clean: int
    needed: int
    share: float
    says: str


class Health(msgspec.Struct):
    status: Literal["ok"]
    state: State
    step: int
    recovery: list[Loop]
    event_log_failure: str | None


class Ready(msgspec.Struct):
    status: Literal["ready"]


class Tokens(msgspec.Struct):
    tokens: list[int]
    count: Count
    max_model_len: int | None


class Prompt(msgspec.Struct):
    prompt: str
