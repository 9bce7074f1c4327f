"""Bodies of generating requests: which fields have an effect, which are accepted without one, which are refused.

Nothing is silently ignored: a field is served, or named in the header `headway-ignored`, or refused by name. A known
field given as null or at its default counts as absent, even if it is not supported.
"""

from __future__ import annotations

import secrets
from typing import Any, TypeVar

import msgspec

from headway.errors import InvalidRequest
from headway.plan import Sampling

#: Accepted without effect.
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier")

#: Known fields without support, and the values (besides null) at which they ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "deadline_ms": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    n: int | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    priority: int = 0
    cache_salt: str = ""

    def sampling(self) -> Sampling:
        """Raises InvalidRequest for a value out of its range."""
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        top_k = 0 if self.top_k in (None, -1) else self.top_k
        assert top_k is not None
        _within("temperature", temperature, 0, 2)
        if not 0 < top_p <= 1:
            raise InvalidRequest("top_p", f"top_p is {top_p}; it must be more than 0 and at most 1")
        _within("top_k", top_k, 0, 1 << 31)
        seed = secrets.randbits(63) if self.seed is None else self.seed
        return Sampling(temperature, top_k, top_p, seed)


class ChatBody(_Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(_Common, kw_only=True):
    """`POST /v1/completions`. A prompt is text or token ids."""

    prompt: str | list[int]

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens


BodyT = TypeVar("BodyT", bound=_Common)


def read_body(kind: type[BodyT], data: bytes) -> tuple[BodyT, list[str]]:
    """Returns the body and the names of the fields that were accepted without effect. Raises InvalidRequest."""
    try:
        raw = msgspec.json.decode(data or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest("body", f"the body is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidRequest("body", "the body must be a JSON object")
    given = {name: value for name, value in raw.items() if value is not None}
    ignored = [name for name in IGNORED if name in given]
    known = kind.__struct_fields__
    for name in list(given):
        if name in known:
            continue
        if name in UNSUPPORTED and given[name] not in UNSUPPORTED[name]:
            raise InvalidRequest(name, f"{name} is not supported yet; leave it out or send null")
        if name not in UNSUPPORTED and name not in IGNORED:
            raise InvalidRequest(name, f"{name} is not a known field")
        del given[name]
    try:
        body = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_field(error), str(error)) from error
    _check(body)
    return body, ignored


def _check(body: _Common) -> None:
    most = body.most_tokens  # type: ignore[attr-defined]
    if most is not None and most < 1:
        raise InvalidRequest("max_tokens", f"max_tokens is {most}; at least 1 is needed (null means what fits)")
    if body.n is not None and body.n < 1:
        raise InvalidRequest("n", f"n is {body.n}; at least 1 is needed")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options has a meaning only with stream: true")
    for name in ("seed", "priority"):
        _within(name, getattr(body, name) or 0, -(1 << 63), (1 << 63) - 1)
    body.sampling()


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"{name} is {value}; it must be from {low} to {high}")


def _field(error: msgspec.ValidationError) -> str:
    """The field that msgspec's message names: `… - at `$.top_p``, or `missing required field `model``."""
    text = str(error)
    if "`$." in text:
        return text.rsplit("`$.", 1)[1].rstrip("`")
    return text.split("`")[1] if text.count("`") >= 2 else "body"
