"""A request, its sequences, and the moves that are legal for it.

Only `engine.py` changes what is defined here; everyone else reads. A sequence's arithmetic lives with it, so that
the identity `computed = reused + regained + prefilled + decoded + recomputed - lost` can hold by construction.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

import msgspec

from headway.errors import IllegalMove, InvalidRequest
from headway.plan import Grammar, Sampling, TokenLogprob
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


#: Likeliest tokens that are reported beside one token, at most.
MOST_LOGPROBS = 20
#: Beyond any option's limit, and within what arithmetic and messages can carry.
MOST = 1 << 31
#: Guesses at a time, at most.
MOST_DRAFTS = 16


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants.

    max_tokens        None means what fits
    ignore_eos        leaves only `stop_ids` and the `stop` strings to end it; neither may before `min_tokens`
    grammar           what the text must be; the end of that text ends it too, also before `min_tokens`
    logprobs          how many of the likeliest tokens to report beside each chosen one; None: no logprobs
    prompt_logprobs   the same for the tokens of the prompt; its state is then computed, never reused
    draft             how many tokens to guess at a time; 0: none; None: as the engine does by default
    """

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
    grammar: Grammar | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    draft: int | None = None

    def check(self, vocab: int) -> None:
        """Raises InvalidRequest for a prompt or a number that means nothing to a model of `vocab` tokens."""
        if not self.prompt:
            raise InvalidRequest("prompt", "the prompt is empty; at least one token is needed")
        if not 1 <= self.n <= MOST:
            raise InvalidRequest("n", f"n is {self.n}; at least 1 is needed, and at most {MOST} may be asked for")
        if self.max_tokens is not None and not 1 <= self.max_tokens <= MOST:
            message = f"max_tokens is {self.max_tokens}; at least 1 is needed, at most {MOST} (null means what fits)"
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


class Emission(msgspec.Struct, frozen=True):
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


class Pause(msgspec.Struct, frozen=True):
    """Drafts did not pay: of `drafted` ones only `accepted` were right, so none are made for `tokens` tokens."""

    drafted: int
    accepted: int
    tokens: int


class Drafter(Protocol):
    """Guesses the next tokens of one sequence (see `policy/drafts.py`)."""

    def guess(self, tokens: list[int]) -> list[int]:
        """Guesses for the tokens after `tokens`, the sequence's known ones. It is asked before each decode position,
        and the engine verifies as many as it can afford, from the front."""
        ...

    def verified(self, drafted: int, accepted: int) -> Pause | None:
        """Of `drafted` guesses `accepted` were right. A `Pause` when no more are made for some time."""
        ...


class Guide(Protocol):
    """Keeps one sequence within a grammar (see `text/grammar.py`)."""

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""
        ...

    def masks(self, guesses: Items[int]) -> list[bytes]:
        """Which tokens may come, as in `Draw.masks`: next, and after each of `guesses` that the grammar allows in
        turn; it stops at the first that it does not. Tokens that end an answer may come where the text may end.
        Changes nothing."""
        ...

    def accept(self, token: int) -> None:
        """The token was chosen."""
        ...


class PrefixKeys(Protocol):
    """The chained keys of one sequence's whole blocks (see `memory/keys.py`)."""

    def upto(self, tokens: list[int], blocks: int) -> list[bytes]: ...


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
class Sequence:
    """One evolving token history.

    tokens     the known positions: the prompt, then what was emitted
    prompt     length of the prompt
    computed   positions that have state, always a prefix of the known ones
    high       the largest `computed` ever; evaluating a position below it is recomputing
    fork_at    positions to be taken over from the request's leading sequence once it has computed them; None when
               this sequence stands alone. Until then nothing is evaluated for it
    watch      looks for stop strings in what is emitted, if the request has any
    drafter    guesses what comes next, if drafts are wanted
    guide      keeps what is emitted within the request's grammar, if it has one
    unscored   the first position that is yet to be evaluated with the next token's logprob reported; None when no
               prompt logprobs are wanted (any more)
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
    guide: Guide | None = None
    drafter: Drafter | None = None
    unscored: int | None = None
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

    @property
    def inheritable(self) -> int:
        """Most positions whose state may be found instead of computed: the last one is always computed, since the
        next token is chosen from it, and so are those whose logprobs are wanted."""
        last = len(self.tokens) - 1
        return last if self.unscored is None else min(last, self.unscored)

    def split(self, positions: int) -> tuple[int, int, int]:
        """(prefilled, decoded, recomputed) if the next `positions` positions were evaluated now."""
        end = self.computed + positions
        recomputed = max(0, min(end, self.high) - self.computed)
        first_new = max(self.computed, self.high)
        prefilled = max(0, min(end, self.prompt) - first_new)
        return prefilled, positions - recomputed - prefilled, recomputed

    def advance(self, evaluated: int, accepted: int = 0, rejected: int = 0) -> tuple[int, int, int]:
        """`evaluated` further positions ran; of the drafts among them `accepted` were right, and the last `rejected`
        positions are dropped again. Returns `split` of the kept ones."""
        prefilled, decoded, recomputed = kept = self.split(evaluated - rejected)
        self.counts.prefilled += prefilled
        self.counts.decoded += decoded
        self.counts.recomputed += recomputed
        self.counts.accepted += accepted
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
    logprobs: int | None
    prompt_logprobs: int | None
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
