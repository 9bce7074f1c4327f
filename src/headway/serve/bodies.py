"""Bodies of generating requests: which fields have an effect, which are accepted without one, which are refused.

Nothing is silently ignored: a field is served, or named in the header `headway-ignored`, or refused by name. A known
field given as null or at its default counts as absent, even if it is not supported.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal, TypeVar

import msgspec

from headway.errors import InvalidRequest
from headway.plan import Sampling
from headway.serve.reading import as_struct, read_object

#: Accepted without effect.
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier")

#: Known fields without support, and the values (besides null) at which they ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "deadline_ms": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

#: Beyond any option's limit, and within what arithmetic and messages can carry.
_MOST = 1 << 31
_MOST_STOPS = 16
_MOST_REPETITION = 100


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


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
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    min_tokens: int = 0
    stop: str | list[str] = msgspec.field(default_factory=list)
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
        _within("top_k", top_k, 0, _MOST)
        repetition = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        if not 0 < repetition <= _MOST_REPETITION:
            message = f"repetition_penalty is {repetition}; it must be more than 0 and at most {_MOST_REPETITION}"
            raise InvalidRequest("repetition_penalty", message)
        for name, low, high in (("min_p", 0, 1), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2)):
            _within(name, getattr(self, name) or 0.0, low, high)
        return Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            min_p=self.min_p or 0.0,
            repetition_penalty=repetition,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            bias=self._bias(),
        )

    def stops(self) -> tuple[str, ...]:
        """Raises InvalidRequest for an empty stop string, or too many."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if len(stops) > _MOST_STOPS or "" in stops:
            raise InvalidRequest("stop", f"stop must be at most {_MOST_STOPS} strings, none of them empty")
        return stops

    def _bias(self) -> tuple[tuple[int, float], ...]:
        for token, value in self.logit_bias.items():
            if not token.isdecimal():
                raise InvalidRequest("logit_bias", f"logit_bias has the key {token!r}; keys are token ids")
            _within("logit_bias", value, -100, 100)
        return tuple((int(token), value) for token, value in self.logit_bias.items())


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
    given: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in read_object(data).items():
        if name in IGNORED:
            ignored += [name] if value is not None else []
        elif name in UNSUPPORTED:
            if not _asks_nothing(value, UNSUPPORTED[name]):
                raise InvalidRequest(name, f"{name} is not supported yet; leave it out or send null")
        elif name not in kind.__struct_fields__:
            raise InvalidRequest(name, f"{name} is not a known field")
        elif value is not None:
            given[name] = value
    body = as_struct(kind, given)
    _check(body)
    return body, ignored


def _asks_nothing(value: Any, defaults: tuple[Any, ...]) -> bool:
    """Null, or one of `defaults`; to Python `0 == False`, to JSON they differ."""
    return value is None or any(
        value == default and isinstance(value, bool) == isinstance(default, bool) for default in defaults
    )


def _check(body: _Common) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n"):
        if (value := getattr(body, name, None)) is not None:
            _within(name, value, 1, _MOST)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options has a meaning only with stream: true")
    for name in ("seed", "priority"):
        _within(name, getattr(body, name) or 0, -(1 << 63), (1 << 63) - 1)
    body.sampling()
    body.stops()


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"{name} is {value}; it must be from {low} to {high}")
