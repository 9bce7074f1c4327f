"""From an accepted body to its answer: submit, follow the inbox, write JSON or a stream. Leaving cancels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.api.answers.following import Following
from headway.api.answers.never import Wanted
from headway.api.answers.shapes import Shape, usage
from headway.core.events import GRAMMAR
from headway.core.plan import TokenLogprob
from headway.core.request import Emission, Stage, TextRequest
from headway.front.exchange import Exchange
from headway.front.inbox import Arriving, End, Inbox
from headway.front.models import FrontTextModel
from headway.front.refusals import Refusal
from headway.front.state import Front
from headway.text.answer import AnswerText

T = TypeVar("T")
_json = msgspec.json.Encoder()
#: Clients of server-sent events skip a line that begins with a colon.
_COMMENT = b": still here\n\n"
_DONE = b"data: [DONE]\n\n"
#: Steps whose events may go to a client in one write.
_TOGETHER = 64


@dataclass
class Part:
    """One request of an exchange. Its sequences are the choices from number `first` on; `echo` is its prompt's text,
    if the answer repeats it; `scores` are the prompt's tokens with their logprobs, as far as they are known."""

    new: TextRequest
    first: int
    inbox: Inbox
    echo: str | None
    scores: list[tuple[int, TokenLogprob | None]] = field(default_factory=list)
    texts: dict[int, AnswerText] = field(default_factory=dict)


class Answer(Following):
    """The generating requests of one exchange, one for each prompt. `wanted` says in which fields of the body each
    asked for what, and `grammar_field` which one says what the answers must be."""

    def __init__(
        self,
        front: Front,
        model: FrontTextModel,
        shape: Shape,
        news: Sequence[TextRequest],
        echoes: Sequence[str | None],
        exchange: Exchange,
        wanted: Sequence[Wanted],
        grammar_field: str | None = None,
    ) -> None:
        super().__init__(front, model, exchange)
        self._grammar_field = grammar_field
        self._answer_texts = model.answer_texts
        self._shape = shape
        self._parts: dict[str, Part] = {}
        for new, echo, inbox in zip(news, echoes, self.submit(news, wanted), strict=True):
            part = Part(new, sum(part.new.n for part in self._parts.values()), inbox, echo)
            if new.prompt_logprobs is not None:
                part.scores.append((new.prompt[0], None))
            self._parts[new.id] = part

    async def whole(self, headers: dict[str, str]) -> Response:
        """The unstreamed answer. Raises Refusal when it cannot be given."""
        end = await self.unless_gone(self.collect())
        if end is None:
            return Response(status_code=499)
        if end.stage is not Stage.FINISHED:
            raise self.refusal(end)
        body = self._shape.whole(usage(self.records))
        return Response(_json.encode(body), 200, headers | {"headway-timing": self.timing()}, "application/json")

    async def stream(
        self, headers: dict[str, str], *, include_usage: bool, continuous_usage: bool = False
    ) -> Response:
        """A response that streams: with `include_usage` usage comes at the end, with `continuous_usage` in each chunk
        as it is so far. Raises Refusal when a request was refused or failed before it was queued."""
        if not await self.unless_gone(self._settled()):
            return Response(status_code=499)
        for part in self._parts.values():
            if part.inbox.refused is not None:
                raise self.refusal(part.inbox.refused)
        return _Stream(self, headers, include_usage, continuous_usage)

    async def events(self, include_usage: bool, continuous_usage: bool) -> AsyncIterator[bytes]:
        """A stream's events; those that one step's tokens make come together."""
        emitted = 0
        open_choices = sum(part.new.n for part in self._parts.values())
        open_parts = len(self._parts)
        while open_parts:
            item = await self.next()
            if item is None:
                yield _COMMENT
                continue
            if isinstance(item, End):
                if item.stage is not Stage.FINISHED:
                    yield _event(self.refusal(item).body())
                    return
                open_parts -= 1
                continue
            assert isinstance(item, Emission), "a text model sends tokens"
            open_choices -= item.finish is not None
            emitted += len(item.tokens)
            chunks = [self._shape.chunk([row]) for row in self.take(item)]
            for chunk in chunks if include_usage or continuous_usage else ():
                chunk["usage"] = usage(self.records, emitted) if continuous_usage else None
            if not open_choices:
                if include_usage:
                    chunks.append(self._shape.chunk([]) | {"usage": usage(self.records)})
                chunks[-1]["headway"] = self.timing()
            yield b"".join(map(_event, chunks))
        yield _DONE

    @property
    def behind(self) -> bool:
        """Whether something has come that no event tells of yet."""
        return len(self._arrivals) > 0

    async def _settled(self) -> bool:
        for part in self._parts.values():
            await part.inbox.settled.wait()
        return True

    def take(self, emission: Arriving) -> list[dict[str, Any]]:
        """Add tokens to their choice. Returns what a stream says about them."""
        assert isinstance(emission, Emission), "a text model sends tokens"
        part = self._parts[emission.id]
        new = part.new
        part.scores += [(one.token, one) for one in emission.prompt_logprobs]
        if not emission.tokens:
            return []
        choice = self._shape.choice_of(part.first + emission.index)
        text, told = "", [(one.token, one) for one in emission.logprobs]
        if emission.index not in part.texts:
            part.texts[emission.index] = self._answer_texts(
                new.stop, new.min_tokens, self._shape.shown, keep_stop=self._shape.keeps_stop
            )
            choice.scores = part.scores
            if part.echo is not None:
                text, told = part.echo, [*(part.scores if new.logprobs is not None else ()), *told]
        answer = part.texts[emission.index]
        text += answer.push(self._said(emission))
        if emission.finish is not None:
            text += answer.finish()
            choice.finish = emission.finish
        choice.add(text, told, self._shape.spelling)
        return self._shape.deltas(choice, text, emission.finish, told)

    def _said(self, emission: Emission) -> tuple[int, ...]:
        """The tokens whose text is part of the answer."""
        unsaid = emission.finish == "stop" and emission.tokens[-1] in self._shape.unsaid
        return emission.tokens[:-1] if unsaid else emission.tokens

    def refusal(self, end: End) -> Refusal:
        record = self._front.story.record(end.id)
        if self._inboxes[end.id].rejected is None and record.reason == GRAMMAR and end.stage is Stage.FAILED:
            text = f"{self._grammar_field}: {end.message}"
            return Refusal(400, text, code="invalid_grammar", param=self._grammar_field)
        return super().refusal(end)


class _Stream(Response):
    """Server-sent events."""

    def __init__(self, answer: Answer, headers: dict[str, str], include_usage: bool, continuous_usage: bool) -> None:
        super().__init__(None, 200, headers | {"cache-control": "no-cache"}, "text/event-stream")
        del self.headers["content-length"]
        self._answer = answer
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._answer.unless_gone(self._write(send))

    async def _write(self, send: Send) -> None:
        """What came while the client was slow, or the processor busy, goes together, up to a bound."""
        events: list[bytes] = []
        async for event in self._answer.events(self._include_usage, self._continuous_usage):
            events.append(event)
            if not self._answer.behind or len(events) == _TOGETHER:
                await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
                events.clear()
        await send({"type": "http.response.body", "body": b"".join(events), "more_body": False})


def _event(data: object) -> bytes:
    return b"data: " + _json.encode(data) + b"\n\n"
