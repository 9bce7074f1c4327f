"""A request, its sequences, and the moves that are legal for it.

Only `engine.py` changes what is defined here; everyone else reads. A sequence's arithmetic lives with it, so that
the identity `computed = reused + regained + prefilled + decoded + recomputed - lost` can hold by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

import msgspec

from headway.errors import IllegalMove, InvalidRequest
from headway.plan import Sampling
from headway.verdict import Verdict

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


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants. `max_tokens` None means what fits; `ignore_eos` leaves only `stop_ids` and the `stop`
    strings to end it, and neither may before `min_tokens` were emitted."""

    id: str
    prompt: tuple[int, ...]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    sampling: Sampling = Sampling()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    stop: tuple[str, ...] = ()
    cache_salt: str = ""

    def check(self, vocab: int) -> None:
        """Raises InvalidRequest for a prompt or a number that means nothing to a model of `vocab` tokens."""
        if not self.prompt:
            raise InvalidRequest("prompt", "the prompt is empty; at least one token is needed")
        if self.n < 1:
            raise InvalidRequest("n", f"n is {self.n}; at least 1 is needed")
        if self.max_tokens is not None and self.max_tokens < 1:
            message = f"max_tokens is {self.max_tokens}; at least 1 is needed (null means what fits)"
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


class Emission(msgspec.Struct, frozen=True):
    """Tokens that sequence `index` of request `id` emitted in one step, and why it ended if it did."""

    id: str
    index: int
    tokens: tuple[int, ...]
    finish: FinishReason | None = None


class StateHandle(Protocol):
    """Owns one sequence's state (see `memory/table.py`)."""

    @property
    def blocks(self) -> list[int]: ...

    def release(self, *, keep: bool = True) -> None: ...


class Watch(Protocol):
    """Follows the text of one sequence (see `text/answer.py`)."""

    def completes(self, token: int) -> bool:
        """Add a token. Whether the text now holds what ends it."""
        ...


class PrefixKeys(Protocol):
    """The chained keys of one sequence's whole blocks (see `memory/keys.py`)."""

    def upto(self, tokens: list[int], blocks: int) -> list[bytes]: ...


@dataclass(slots=True)
class Counts:
    """Positions of one sequence by how their state came to be, or went."""

    reused: int = 0
    regained: int = 0
    prefilled: int = 0
    decoded: int = 0
    recomputed: int = 0
    rejected: int = 0
    lost: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One evolving token history.

    tokens     the known positions: the prompt, then what was emitted
    prompt     length of the prompt
    computed   positions that have state, always a prefix of the known ones
    high       the largest `computed` ever; evaluating a position below it is recomputing
    fork_at    positions to be taken over from the request's leading sequence once it has computed them; None when
               this sequence stands alone. Until then nothing is evaluated for it
    watch      looks for stop strings in what is emitted, if the request has any
    """

    index: int
    tokens: list[int]
    prompt: int
    keys: PrefixKeys
    computed: int = 0
    high: int = 0
    fork_at: int | None = None
    counts: Counts = field(default_factory=Counts)
    state: StateHandle | None = None
    watch: Watch | None = None
    finish: FinishReason | None = None

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def outstanding(self) -> int:
        """Positions to evaluate before the next token can be chosen; 0 while it waits for a fork."""
        return 0 if self.fork_at is not None else len(self.tokens) - self.computed

    def split(self, positions: int) -> tuple[int, int, int]:
        """(prefilled, decoded, recomputed) if the next `positions` positions were evaluated now."""
        end = self.computed + positions
        recomputed = max(0, min(end, self.high) - self.computed)
        first_new = max(self.computed, self.high)
        prefilled = max(0, min(end, self.prompt) - first_new)
        return prefilled, positions - recomputed - prefilled, recomputed

    def advance(self, evaluated: int, rejected: int = 0) -> tuple[int, int, int]:
        """`evaluated` further positions ran and `rejected` of them, the last ones, are dropped again.
        Returns `split` of the kept ones."""
        prefilled, decoded, recomputed = kept = self.split(evaluated - rejected)
        self.counts.prefilled += prefilled
        self.counts.decoded += decoded
        self.counts.recomputed += recomputed
        self.counts.rejected += rejected
        self.computed += evaluated - rejected
        self.high = max(self.high, self.computed)
        return kept

    def inherit(self, positions: int, *, resumed: bool) -> None:
        """Take over state that is already there up to position `positions` (reuse, regain or fork)."""
        gained = positions - self.computed
        if resumed:
            self.counts.regained += gained
        else:
            self.counts.reused += gained
        self.computed = positions
        self.high = max(self.high, positions)

    def lose(self) -> int:
        """All state is gone. Returns how many positions were lost."""
        lost = self.computed
        self.counts.lost += lost
        self.computed = 0
        self.fork_at = None
        return lost


@dataclass(slots=True, eq=False)
class Request:
    """What a caller sent, and how far it has come.

    max_tokens    most tokens that each sequence emits; already bounded by context and pool
    min_tokens    each sequence emits at least so many
    stop_ids      tokens that end a sequence
    arrival       running number; smaller came first
    overtaken     how many later requests passed this one while it was the blocked head
    in_flight     named by the plan that runs now: its blocks must outlive the step
    """

    id: str
    prompt: tuple[int, ...]
    n: int
    max_tokens: int
    min_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    priority: int
    arrival: int
    sequences: list[Sequence]
    pattern: Pattern = "text"
    stage: Stage = Stage.RECEIVED
    verdict: Verdict | None = None
    overtaken: int = 0
    preemptions: int = 0
    in_flight: bool = False

    def move(self, to: Stage) -> None:
        """Change the stage. Raises IllegalMove where the table has no such move."""
        if to not in MOVES[self.stage]:
            raise IllegalMove(f"{self.id} cannot go from {self.stage} to {to}")
        self.stage = to

    @property
    def open_sequences(self) -> list[Sequence]:
        """The sequences that have not finished, the leading one first."""
        return [sequence for sequence in self.sequences if sequence.finish is None]

    @property
    def ended(self) -> bool:
        return self.stage in ENDS
