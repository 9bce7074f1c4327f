"""The JSON of answers: chat completions and plain completions, streamed and whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headway.story.record import Record


@dataclass
class Choice:
    """One sequence's answer so far."""

    index: int
    text: str = ""
    finish: str | None = None
    begun: bool = False


@dataclass
class Shape:
    """What all answers to one request share. `id` carries OpenAI's prefix."""

    prefix: str
    object: str
    id: str
    model: str
    created: int
    choices: dict[int, Choice] = field(default_factory=dict)

    def choice_of(self, index: int) -> Choice:
        """The choice of one sequence; it begins when its first token comes, so a refused `n` costs nothing."""
        return self.choices.setdefault(index, Choice(index))

    def whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The unstreamed answer."""
        choices = [self.choice(self.choices[index]) for index in sorted(self.choices)]
        return self._head(self.object) | {"choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One event of a stream."""
        return self._head(self.chunk_object) | {"choices": choices}

    @property
    def chunk_object(self) -> str:
        return self.object

    def choice(self, choice: Choice) -> dict[str, Any]:
        return {"index": choice.index, "text": choice.text, "finish_reason": choice.finish, "logprobs": None}

    def deltas(self, choice: Choice, text: str, finish: str | None) -> list[dict[str, Any]]:
        """The chunks' choices that new text, and perhaps the end, of one sequence amount to."""
        if not text and finish is None:
            return []
        return [{"index": choice.index, "text": text, "finish_reason": finish, "logprobs": None}]

    def _head(self, object: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}{self.id}",
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


@dataclass
class ChatShape(Shape):
    """Chat: text stands in messages; the first delta names the role, the last one only the reason of the end."""

    @property
    def chunk_object(self) -> str:
        return f"{self.object}.chunk"

    def choice(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": choice.index, "message": message, "finish_reason": choice.finish, "logprobs": None}

    def deltas(self, choice: Choice, text: str, finish: str | None) -> list[dict[str, Any]]:
        deltas: list[dict[str, str]] = []
        if not choice.begun:
            choice.begun = True
            deltas.append({"role": "assistant", "content": ""})
        if text:
            deltas.append({"content": text})
        rows: list[dict[str, Any]] = [
            {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": None} for delta in deltas
        ]
        if finish is not None:
            rows.append({"index": choice.index, "delta": {}, "finish_reason": finish, "logprobs": None})
        return rows


def chat_shape(id: str, model: str, created: int) -> ChatShape:
    return ChatShape("chatcmpl-", "chat.completion", id, model, created)


def completion_shape(id: str, model: str, created: int) -> Shape:
    return Shape("cmpl-", "text_completion", id, model, created)


def usage(record: Record) -> dict[str, Any]:
    """Tokens of the prompt (and how many of them were reused) and of all answers together."""
    prompt = record.sequences[0].prompt
    emitted = sum(sequence.emitted for sequence in record.sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": emitted,
        "total_tokens": prompt + emitted,
        "prompt_tokens_details": {"cached_tokens": record.first_reused},
    }


PREFIXES = ("chatcmpl-", "cmpl-")


def plain_ids(id: str) -> list[str]:
    """What `id` may mean wherever an id is accepted: itself, then itself without OpenAI's prefix."""
    return [id, *(id.removeprefix(prefix) for prefix in PREFIXES if id.startswith(prefix))]
