"""A request: what all patterns share of it, and the moves that are legal for it.

Only `engine/` changes what is defined here; everyone else reads. What progress means is its pattern's alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from headway.core.errors import IllegalMove, InvalidRequest
from headway.core.plan import Evaluate, Grammar, Sampling, TokenLogprob
from headway.core.verdict import Input, Verdict, Wait

Pattern: TypeAlias = Literal["text", "embed", "image"]
FinishReason: TypeAlias = Literal["stop", "length"]


class Stage(StrEnum):
    """Where a request is. Running means that it holds seats; a preempted request is waiting again."""

    RECEIVED = "received"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"


MOVES: dict[Stage, frozenset[Stage]] = {
    Stage.RECEIVED: frozenset({Stage.WAITING, Stage.REFUSED, Stage.CANCELLED, Stage.FAILED}),
    Stage.WAITING: frozenset({Stage.RUNNING, Stage.CANCELLED, Stage.FAILED}),
    Stage.RUNNING: frozenset({Stage.WAITING, Stage.FINISHED, Stage.CANCELLED, Stage.FAILED}),
    Stage.FINISHED: frozenset(),
    Stage.CANCELLED: frozenset(),
    Stage.FAILED: frozenset(),
    Stage.REFUSED: frozenset(),
}
ENDS = frozenset(stage for stage, moves in MOVES.items() if not moves)


#: Likeliest tokens that are reported beside one token, at most.
MOST_LOGPROBS = 20
#: Beyond any option's limit, and within what arithmetic and messages can carry.
MOST = 1 << 31
#: Guesses at a time, at most.
MOST_DRAFTS = 16
#: Pictures of one image that leave before it is complete, at most.
MOST_PREVIEWS = 3


class NewRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What every caller says, whatever the pattern.

    model         the served model's name; "" where only one is served
    deadline_ms   from arrival to the complete answer
    serve_late    serve it even where its deadline cannot be met
    caller        among whom shares are to be fair (`--policy fair`); "" is one as well
    received_at   when it arrived (monotonic ns); None: when the engine takes it, which may be a step later
    """

    id: str
    priority: int = 0
    model: str = ""
    deadline_ms: float | None = None
    serve_late: bool = False
    caller: str = ""
    received_at: int | None = None

    @property
    def positions(self) -> int:
        """Positions of all that it brings to be evaluated."""
        raise NotImplementedError


class TextRequest(NewRequest, frozen=True, kw_only=True, tag="text"):
    """A prompt that is to be continued.

    max_tokens        None means what fits
    ignore_eos        leaves only `stop_ids` and the `stop` strings to end it; neither may before `min_tokens`
    grammar           what the text must be; the end of that text ends it too, also before `min_tokens`
    logprobs          how many of the likeliest tokens to report beside each chosen one; None: no logprobs
    prompt_logprobs   the same for the tokens of the prompt; its state is then computed, never reused
    draft             how many tokens to guess at a time; 0: none; None: as the engine does by default
    """

    prompt: tuple[int, ...]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    cache_salt: str = ""
    grammar: Grammar | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    draft: int | None = None

    @property
    def positions(self) -> int:
        """Positions that are to be evaluated before anything leaves."""
        return len(self.prompt)

    def check(self, vocab: int) -> None:
        """Raises InvalidRequest for a prompt or a number that is invalid for a model of `vocab` tokens."""
        if not self.prompt:
            raise InvalidRequest("prompt", "the prompt is empty; at least one token is required")
        if not 1 <= self.n <= MOST:
            raise InvalidRequest("n", f"n is {self.n}; it must be from 1 to {MOST}")
        if self.max_tokens is not None and not 1 <= self.max_tokens <= MOST:
            message = f"max_tokens is {self.max_tokens}; it must be from 1 to {MOST} (null means what fits)"
            raise InvalidRequest("max_tokens", message)
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            most = "" if self.max_tokens is None else f" to max_tokens, {self.max_tokens}"
            raise InvalidRequest("min_tokens", f"min_tokens is {self.min_tokens}; it must be from 0{most}")
        biased = tuple(token for token, _ in self.sampling.bias)
        named = {"prompt": self.prompt, "stop_token_ids": self.stop_ids, "logit_bias": biased}
        for name, ids in named.items():
            if ids and not 0 <= min(ids) <= max(ids) < vocab:
                message = f"token ids must be from 0 to {vocab - 1}; {name} has {min(ids)} to {max(ids)}"
                raise InvalidRequest(name, message)
        if self.draft is not None and not 0 <= self.draft <= MOST_DRAFTS:
            raise InvalidRequest(
                "draft", f"draft is {self.draft} tokens at a time; it must be from 0 to {MOST_DRAFTS}"
            )
        for name in ("logprobs", "prompt_logprobs"):
            top = getattr(self, name)
            if top is not None and not 0 <= top <= MOST_LOGPROBS:
                raise InvalidRequest(name, f"{name} is {top}; it must be from 0 to {MOST_LOGPROBS}")


class EmbedRequest(NewRequest, frozen=True, kw_only=True, tag="embed"):
    """Inputs to be evaluated, each once and whole: a text has one, a long one may be cut into several windows."""

    inputs: tuple[Evaluate, ...]

    @property
    def positions(self) -> int:
        """Positions that are to be evaluated."""
        return sum(each.cost for each in self.inputs)


class ImageRequest(NewRequest, frozen=True, kw_only=True, tag="image"):
    """A prompt to be drawn in `updates` updates of a latent that starts as noise from `seed`.

    negative        what guidance leads away from: the tokens of a prompt of its own, or those of an empty one
    guidance        see `plan.Encode`; above 1 it needs `negative`
    width, height   of the pixels; 0 is the model's own
    previews        how many pictures leave on the way, evenly spread, at most one after each update but the last
    """

    prompt: tuple[int, ...]
    updates: int
    seed: int = 0
    negative: tuple[int, ...] = ()
    guidance: float = 1.0
    width: int = 0
    height: int = 0
    previews: int = 0

    @property
    def positions(self) -> int:
        """Positions that are to be evaluated before the first update."""
        return len(self.prompt) + len(self.negative)


#: What a caller sends, by pattern.
AnyRequest: TypeAlias = TextRequest | EmbedRequest | ImageRequest


class Embedded(msgspec.Struct, frozen=True, gc=False, tag="embedded"):
    """The vectors of input `index` of request `id`, as in `plan.Vector`."""

    id: str
    index: int
    values: bytes

    @property
    def output_tokens(self) -> int:
        """Tokens that the caller gets of it."""
        return 0


class Pictured(msgspec.Struct, frozen=True, gc=False, tag="pictured"):
    """The pixels of request `id`, as in `plan.Pixels`: the completed image, or the `preview` of that number."""

    id: str
    pixels: bytes
    preview: int | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens that the caller gets of it."""
        return 0


class Emission(msgspec.Struct, frozen=True, gc=False, tag="tokens"):
    """Tokens that sequence `index` of request `id` emitted in one step, and why it ended if it did.

    logprobs          one for each token, if the request wants them
    prompt_logprobs   of the next tokens of the prompt, from its second on; they come as the prompt is computed
    """

    id: str
    index: int
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def output_tokens(self) -> int:
        """Tokens that the caller gets of it."""
        return len(self.tokens)


#: What leaves a step for a caller, by pattern.
AnyEmission: TypeAlias = Emission | Embedded | Pictured


class Watch(Protocol):
    """Follows the text of one sequence (see `text/answer.py`)."""

    def completes(self, token: int) -> bool:
        """Add a token. Whether the text now holds what ends it."""
        ...


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Drafts did not pay: of `drafted` ones only `accepted` were right, so none are made for `tokens` tokens."""

    drafted: int
    accepted: int
    tokens: int


class Drafter(Protocol):
    """Guesses the next tokens of one sequence for speculative decoding (see `policy/drafts.py`)."""

    def guess(self, tokens: list[int]) -> list[int]:
        """Guesses for the tokens after `tokens`, the sequence's known ones. It is asked before each decode position,
        and the engine verifies as many as it can afford, from the front."""
        ...

    def verified(self, drafted: int, accepted: int) -> Pause | None:
        """Of `drafted` guesses `accepted` were right. A `Pause` when no more are made for some time."""
        ...


class Guide(Protocol):
    """Constrains one sequence to a grammar (see `text/grammar/guide.py`)."""

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the text cannot go on; nothing but the end can come then, and it would be a wrong one."""
        ...

    def masks(self, guesses: Items[int]) -> list[bytes]:
        """Which tokens may come, as in `Draw.masks`: next, and after each of `guesses` that the grammar allows in
        turn; it stops at the first that it does not. Tokens that end an answer may come where the text may end.
        Changes nothing."""
        ...

    def accept(self, token: int) -> None:
        """The token was chosen."""
        ...


@dataclass(slots=True)
class Counts:
    """Positions of one sequence by how their state came to be, or went; of the decoded, `accepted` were drafts."""

    reused: int = 0
    regained: int = 0
    prefilled: int = 0
    decoded: int = 0
    recomputed: int = 0
    rejected: int = 0
    accepted: int = 0
    lost: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """What a caller sent and what all patterns share of how far it has come. Only `engine/queues.py` moves it.

    progress      its pattern's own; None once it is refused: there is none
    positions     that it brought to be evaluated
    seats         seats it holds, or needs to be admitted: its parts that have not ended
    arrival       running number; smaller came first
    caller        among whom shares are to be fair
    cost          what it has to spend at least before it emits anything, as known on its arrival; only where
                  deadlines are the order
    deadline_at   when its answer is due (monotonic ns); None: no deadline
    promised      whether it was promised on its arrival that it is complete by then
    awaits        what must come from outside the step before it may queue, and the wait that says so, in order
    overtaken     how many later requests passed this one while it was the blocked head
    in_flight     planned steps that name it and have not come back: its space must outlive them
    """

    id: str
    model: str
    priority: int
    arrival: int
    progress: Any = None
    positions: int = 0
    seats: int = 1
    deadline_at: int | None = None
    promised: bool = False
    caller: str = ""
    cost: int = 0
    stage: Stage = Stage.RECEIVED
    verdict: Verdict | None = None
    awaits: dict[Input, Wait] = field(default_factory=dict)
    overtaken: int = 0
    preemptions: int = 0
    in_flight: int = 0

    def move(self, to: Stage) -> None:
        """Change the stage. Raises IllegalMove where the table has no such move."""
        if to not in MOVES[self.stage]:
            raise IllegalMove(f"{self.id} cannot go from {self.stage} to {to}")
        self.stage = to

    @property
    def ended(self) -> bool:
        return self.stage in ENDS
