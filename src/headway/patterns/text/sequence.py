"""One evolving token history, and the progress of a text request: its sequences.

A sequence's arithmetic lives with it, so that the identity
`computed = reused + regained + prefilled + decoded + recomputed - lost` holds by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.errors import InvariantError
from headway.core.miss import Miss
from headway.core.plan import Sampling
from headway.core.request import Counts, Drafter, FinishReason, Guide, Watch
from headway.memory.keys import KeyChain
from headway.memory.reserve import Reservation
from headway.memory.table import BlockTable
from headway.memory.tiers import Reload


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
    fill       a block whose content the last of its own begins with, and that one: it is copied before its next span
    unscored   the first position that is yet to be evaluated with the next token's logprob reported; None when no
               prompt logprobs are wanted (any more)
    """

    index: int
    tokens: list[int]
    prompt: int
    keys: KeyChain
    computed: int = 0
    high: int = 0
    fork_at: int | None = None
    counts: Counts = field(default_factory=Counts)
    state: BlockTable | None = None
    fill: tuple[int, int] | None = None
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
        if self.computed == self.high and self.high >= self.prompt:
            return 0, positions, 0
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
        self.fill = None
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
        self.fork_at = self.fill = None
        return lost

    def check(self, name: str) -> None:
        """Raises InvariantError unless its positions add up; `name` is its request's."""
        c = self.counts
        gained = c.reused + c.regained + c.prefilled + c.decoded + c.recomputed
        if self.computed != gained - c.lost or not 0 <= self.computed <= self.known:
            raise InvariantError(f"{name}: computed is {self.computed}, the counts say {c}")

    def give_back(self, *, keep: bool = True) -> None:
        """The one way in which a sequence's state ends; with `keep` False nothing of it is to be found again."""
        if self.state is not None:
            self.state.release(keep=keep)
            self.state = None


@dataclass(slots=True, eq=False)
class Returning:
    """Blocks of a request that holds no seat are brought back from tiers: of what was reserved for it, `matched` were
    found in the pool, and the leading sequence's next ones are those of `reload`."""

    reservation: Reservation
    reload: Reload
    miss: Miss


@dataclass(slots=True, eq=False)
class TextProgress:
    """What a text request is to become, and its sequences, the leading one first.

    max_tokens    most tokens that each sequence emits; already bounded by context and pool
    min_tokens    each sequence emits at least so many
    stop_ids      tokens that end a sequence
    returning     what is brought back for it, while it holds blocks and no seat
    """

    max_tokens: int
    min_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    logprobs: int | None
    prompt_logprobs: int | None
    sequences: list[Sequence]
    returning: Returning | None = None

    @property
    def open_sequences(self) -> list[Sequence]:
        """The sequences that have not finished."""
        return [sequence for sequence in self.sequences if sequence.finish is None]
