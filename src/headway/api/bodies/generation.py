"""Bodies of generating requests."""

from __future__ import annotations

import re
import secrets
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headway.api.bodies.fields import Range, read_fields
from headway.api.bodies.formats import Formats
from headway.api.bodies.known import UNSUPPORTED
from headway.core.config import draft_tokens
from headway.core.errors import InvalidRequest
from headway.core.plan import Sampling

#: They are matched in one pass, so their number costs a token nothing; their characters cost memory.
MOST_STOPS, MOST_STOP_CHARACTERS = 1000, 1 << 15
#: Of a plain completion's answer where `max_tokens` is left out, as in OpenAI's reference.
DEFAULT_COMPLETION_TOKENS = 16
BIAS = Range(-100, 100)
#: Python reads no number of thousands of digits, and no vocabulary needs one of more than these.
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`include_usage` asks for the usage of the whole at the end of a stream, vLLM's `continuous_usage_stats` for the
    usage so far in each chunk. Chunks are never padded, so `include_obfuscation` changes nothing."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class _Common(Formats, forbid_unknown_fields=True, kw_only=True):
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    n: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    min_tokens: int = 0
    stop: str | list[str] = msgspec.field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    priority: int = 0
    deadline_ms: float | None = None
    user: Any = None
    cache_salt: str = ""
    prompt_logprobs: int | None = None
    draft: str | None = None

    def caller(self) -> str:
        """Whose share of the service it counts against: `user`, or without it `cache_salt`. Raises InvalidRequest."""
        if self.user is not None and not isinstance(self.user, str):
            raise InvalidRequest("user", f"user is {self.user!r}; with --policy fair it must be a string")
        return f"user {self.user}" if self.user else f"salt {self.cache_salt}" if self.cache_salt else ""

    def drafts(self) -> int | None:
        """Guesses at a time; None: as the server does. Raises InvalidRequest."""
        try:
            return None if self.draft is None else draft_tokens(self.draft)
        except ValueError as error:
            raise InvalidRequest("draft", f"draft: {error}") from error

    def sampling(self) -> Sampling:
        """Raises InvalidRequest for an invalid `logit_bias`."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=self.top_p or 1.0,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            bias=self._bias(),
        )

    def stops(self) -> tuple[str, ...]:
        """Raises InvalidRequest for an empty stop string, or too many."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stops:
            raise InvalidRequest("stop", "stop has an empty string; leave it out")
        if len(stops) > MOST_STOPS:
            raise InvalidRequest("stop", f"stop has {len(stops)} strings; the limit is {MOST_STOPS}")
        if (size := sum(map(len, stops))) > MOST_STOP_CHARACTERS:
            limit = f"the limit is {MOST_STOP_CHARACTERS}"
            raise InvalidRequest("stop", f"stop has {size} characters in all its strings; {limit}")
        return stops

    def _bias(self) -> tuple[tuple[int, float], ...]:
        for token, value in self.logit_bias.items():
            if not TOKEN_ID.fullmatch(token):
                raise InvalidRequest("logit_bias", f"logit_bias has the key {token!r}; keys are token ids")
            BIAS.check("logit_bias", value)
        return tuple((int(token), value) for token, value in self.logit_bias.items())


class ChatBody(_Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[Any] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    reasoning_effort: str | None = None

    @property
    def top(self) -> int | None:
        """Likeliest tokens to report beside each; None: no logprobs."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs", "top_logprobs requires logprobs: true")
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def tokens_field(self) -> str | None:
        """The field that says `most_tokens`."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


class CompletionBody(_Common, kw_only=True):
    """`POST /v1/completions`. A prompt is text or token ids; there may be a list of prompts."""

    prompt: str | list[Any]
    max_tokens: int | UnsetType | None = UNSET
    add_special_tokens: bool = True
    echo: bool = False
    logprobs: int | bool | None = None

    def prompts(self) -> list[str | list[int]] | None:
        """Each prompt of a list; None when there is just one. Raises InvalidRequest."""
        if isinstance(self.prompt, str) or all(type(item) is int for item in self.prompt):
            if not self.prompt:
                raise InvalidRequest("prompt", "the prompt is empty; at least one token is required")
            return None
        for i, item in enumerate(self.prompt):
            if not isinstance(item, str) and not (isinstance(item, list) and all(type(id) is int for id in item)):
                kinds = "a string, a list of token ids, a list of strings or a list of lists of token ids"
                raise InvalidRequest(
                    "prompt", f"prompt must be {kinds}; prompt[{i}] is neither a string nor token ids"
                )
            if not item:
                raise InvalidRequest("prompt", f"prompt[{i}] is empty; at least one token is required")
        return self.prompt

    @property
    def top(self) -> int | None:
        """Likeliest tokens to report beside each; None: no logprobs."""
        if self.logprobs is True:
            raise InvalidRequest(
                "logprobs", "logprobs is true; here it must be a number: how many of the likeliest tokens to report"
            )
        return None if self.logprobs is None or self.logprobs is False else self.logprobs

    @property
    def most_tokens(self) -> int | None:
        """Null asks for what fits, and the default holds only where nothing was said."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is UNSET else self.max_tokens

    @property
    def tokens_field(self) -> str | None:
        """The field that says `most_tokens`; None when it is the default."""
        return None if self.max_tokens is UNSET else "max_tokens"


BodyT = TypeVar("BodyT", bound=_Common)


def read_body(kind: type[BodyT], data: bytes) -> tuple[BodyT, list[str]]:
    """Returns the body and the names of the fields that were accepted without effect. Raises InvalidRequest."""
    body, ignored = read_fields(kind, data, UNSUPPORTED)
    _check(body)
    return body, ignored


def _check(body: _Common) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options requires stream: true")
    body.sampling()
    body.stops()
    body.drafts()
