"""What answers look like, as types: for `/openapi.json` alone. The tests hold real answers against them.

A member that may be absent is `Unset`; answers may have more members than these.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from headway.core.request import FinishReason, Pattern, Stage
from headway.core.verdict import On, Verdict, WaitRule
from headway.front.state import State

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
    """What became of an input that did not stay as it is. `tokens` are those that it came with, `kept` those that
    were left of a truncated one, `windows` the positions of each window, `chunks` the tokens, from and to, that each
    vector of a late pass is pooled from."""

    index: Count
    what: Literal["truncated", "split", "late"]
    tokens: Count
    kept: Count | UnsetType = UNSET
    windows: list[Count] | UnsetType = UNSET
    chunks: list[list[Count]] | UnsetType = UNSET


class Evaluations(msgspec.Struct):
    """How often the model was run, windows counted one by one; and what became of inputs that were too long."""

    evaluations: Count
    inputs: list[Treated]


class Embedding(msgspec.Struct):
    """Numbers, or base64 of fp32 values, little-endian."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct):
    """In the order of the inputs; a document of several chunks has an embedding for each."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EvaluatedUsage
    headway: Evaluations


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
    """`max_model_len` is the most positions of a sequence, `headway` what the replica has to give, as the event
    `loaded` says it; both null while the model loads."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["headway"]
    max_model_len: int | None
    headway: dict[str, Any] | None


class Models(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class Health(msgspec.Struct):
    status: Literal["ok"]
    state: State
    step: int
    event_log_failure: str | None


class Ready(msgspec.Struct):
    status: Literal["ready"]


class Tokens(msgspec.Struct):
    tokens: list[int]
    count: Count
    max_model_len: int | None


class Prompt(msgspec.Struct):
    prompt: str


class Sequence(msgspec.Struct):
    """One token history: positions by what became of them, blocks held and shared, tokens."""

    positions: dict[str, Count]
    blocks: dict[str, Count]
    tokens: dict[str, Count]


class Prefix(msgspec.Struct):
    """Positions reused at first admission, and why there were no more."""

    reused: Count
    miss: Object | None


class Interval(msgspec.Struct):
    """Time of one kind, in milliseconds; waits name what for."""

    name: str
    ms: float
    on: On | UnsetType = UNSET
    rule: WaitRule | UnsetType = UNSET


class Part(msgspec.Struct):
    """A window of an input, or another part that is evaluated whole: `done` of `of` evaluations, the last of them in
    `step`, of so many positions."""

    done: Count
    of: Count
    step: Count | None
    positions: Count | UnsetType = UNSET


class RequestRecord(msgspec.Struct):
    """Where a request is, why, and where its time went: `intervals` sum to `elapsed_ms`. What is not a text's has
    `parts` in the place of sequences, and the model's `stages` for each."""

    id: str
    pattern: Pattern
    stage: Stage
    verdict: Verdict | None
    sequences: list[Sequence]
    preemptions: Count
    preempted_for: list[str]
    prefix: Prefix
    intervals: list[Interval]
    elapsed_ms: float
    priority: int
    max_tokens: int | None
    parts: list[Part] | UnsetType = UNSET
    stages: list[str] | UnsetType = UNSET


class RequestRecords(msgspec.Struct):
    """A page; `next` is the id to go on `after`, or null."""

    data: list[RequestRecord]
    next: str | None


class ListRecords(msgspec.Struct):
    """The requests of one exchange with a list of prompts."""

    id: str
    data: list[RequestRecord]


class Blocks(msgspec.Struct):
    """live + reusable + free = total."""

    total: Count
    live: Count
    reusable: Count
    free: Count


class Tier(msgspec.Struct):
    name: str
    blocks: Count
    bytes: Count


class ModelLevels(msgspec.Struct):
    """What one model's pool holds, in the unit of its space, and how many of its seats are used."""

    model: str
    live: Count
    reusable: Count
    free: Count
    seats: Count


class Pool(msgspec.Struct):
    """Memory reserved for state, and what its blocks are."""

    reserved_bytes: Count
    block_tokens: Count
    blocks: Blocks
    tiers: list[Tier]
    models: list[ModelLevels]
