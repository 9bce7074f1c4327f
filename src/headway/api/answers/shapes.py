"""The JSON of answers: chat completions and plain completions, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headway.api.answers.logprobs import Offsets, Spelling, Told
from headway.core.plan import TokenLogprob
from headway.story.reduce.record import Record


@dataclass
class Choice:
    """One sequence's answer so far. `told` and `offsets` are its tokens with their logprobs, where those are asked
    for; `scores` the prompt's."""

    index: int
    text: str = ""
    finish: str | None = None
    begun: bool = False
    told: list[tuple[int, TokenLogprob | None]] = field(default_factory=list)
    scores: Told = ()
    offsets: list[int] = field(default_factory=list)
    measure: Offsets | None = None

    def add(self, text: str, told: Told, spelling: Spelling | None) -> None:
        """More of the answer."""
        self.text += text
        if spelling and told:
            self.measure = self.measure or spelling.offsets()
            self.offsets += self.measure.take(told)
            self.told += told


@dataclass
class Shape:
    """What all answers to one exchange share. `id` carries OpenAI's prefix; `spelling` is there when logprobs are
    asked for; special tokens in `shown` are part of the text, but for one of `unsaid` that ends it; with `keeps_stop`
    the stop string is too; with `tells_scores` each choice of an unstreamed answer has vLLM's `prompt_logprobs`."""

    prefix: str
    object: str
    id: str
    model: str
    created: int
    spelling: Spelling | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    shown: frozenset[int] = frozenset()
    unsaid: frozenset[int] = frozenset()
    keeps_stop: bool = False
    tells_scores: bool = False

    def choice_of(self, index: int) -> Choice:
        """The choice of one sequence; it begins when its first token comes, so a refused `n` costs nothing."""
        if index not in self.choices:
            self.choices[index] = Choice(index)
        return self.choices[index]

    def whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The unstreamed answer."""
        choices = [self.choice(self.choices[index]) for index in sorted(self.choices)]
        return self._head(self.object) | {"choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One event of a stream."""
        return self._chunk_head | {"choices": choices}

    @cached_property
    def _chunk_head(self) -> dict[str, Any]:
        return self._head(self.chunk_object)

    @property
    def chunk_object(self) -> str:
        return self.object

    def choice(self, choice: Choice) -> dict[str, Any]:
        """One choice of the unstreamed answer."""
        logprobs = self.spelling.plain(choice.told, choice.offsets) if self.spelling and choice.told else None
        row = {"index": choice.index, "text": choice.text, "finish_reason": choice.finish, "logprobs": logprobs}
        return row | self._scores(choice)

    def deltas(self, choice: Choice, text: str, finish: str | None, told: Told = ()) -> list[dict[str, Any]]:
        """The chunks' choices that new text, new tokens with their logprobs, and perhaps the end, of one sequence
        amount to."""
        if not text and finish is None and not (told and self.spelling):
            return []
        logprobs = None
        if self.spelling and told:
            logprobs = self.spelling.plain(told, choice.offsets[-len(told) :])
        return [{"index": choice.index, "text": text, "finish_reason": finish, "logprobs": logprobs}]

    def _scores(self, choice: Choice) -> dict[str, Any]:
        return {"prompt_logprobs": self.spelling.prompt(choice.scores)} if self.spelling and self.tells_scores else {}

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
        logprobs = self.spelling.chat(choice.told) if self.spelling and choice.told else None
        row = {"index": choice.index, "message": message, "finish_reason": choice.finish, "logprobs": logprobs}
        return row | self._scores(choice)

    def deltas(self, choice: Choice, text: str, finish: str | None, told: Told = ()) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if not choice.begun:
            choice.begun = True
            deltas.append({"role": "assistant", "content": ""})
        if text or (told and self.spelling):
            deltas.append({"content": text})
        return self.rows(choice, deltas, finish, told)

    def rows(
        self, choice: Choice, deltas: Sequence[dict[str, Any]], finish: str | None, told: Told = ()
    ) -> list[dict[str, Any]]:
        """One row per delta, the last of them with the logprobs, and one for the reason of the end."""
        logprobs = self.spelling.chat(told) if self.spelling and told else None
        rows: list[dict[str, Any]] = [
            {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": None} for delta in deltas
        ]
        if rows:
            rows[-1]["logprobs"] = logprobs
        if finish is not None:
            rows.append({"index": choice.index, "delta": {}, "finish_reason": finish, "logprobs": None})
        return rows


def chat_shape(id: str, model: str, created: int, spelling: Spelling | None = None) -> ChatShape:
    return ChatShape("chatcmpl-", "chat.completion", id, model, created, spelling)


def completion_shape(id: str, model: str, created: int, spelling: Spelling | None = None) -> Shape:
    return Shape("cmpl-", "text_completion", id, model, created, spelling)


def usage(records: Sequence[Record], emitted: int | None = None) -> dict[str, Any]:
    """Tokens of all prompts (and how many of them were reused) and of all answers together: `emitted`, where a stream
    tells no more than that yet."""
    prompt = sum(record.sequences[0].prompt for record in records)
    if emitted is None:
        emitted = sum(sequence.emitted for record in records for sequence in record.sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": emitted,
        "total_tokens": prompt + emitted,
        "prompt_tokens_details": {"cached_tokens": sum(record.first_reused for record in records)},
    }
