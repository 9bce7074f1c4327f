"""What one step evaluates, and its results: all that the engine and an executor say to each other.

A plan holds positions, token ids and block numbers. It knows no request: an executor cannot depend on who asked.
What each sequence of a step makes anew is a msgspec struct: a frozen dataclass takes microseconds to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from headway.core.errors import InvariantError


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """How the next token is chosen.

    First the logits are adjusted: `bias` is added to single tokens (OpenAI's `logit_bias`), then tokens that were
    seen are made less likely: `repetition_penalty` divides their positive logits and multiplies negative ones, for
    prompt and answer alike (Keskar et al. 2019); `presence_penalty` is subtracted once, and `frequency_penalty` once
    for each time, for the answer only. Then `temperature`; 0 is greedy, and the rest has no effect. Then the tokens
    are thinned out: `min_p` keeps those with at least that share of the likeliest one's probability (Nguyen et al.
    2024), `top_k` that many (0: all), `top_p` the smallest set with that much probability.
    Random numbers depend on (`seed`, sequence index, position) only.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    @property
    def remembers(self) -> bool:
        """Whether the choice depends on the tokens before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class Grammar(msgspec.Struct, frozen=True):
    """What an answer's text must be: any JSON object (`source` is empty), JSON that fits a schema (`source` is the
    schema), what a regular expression matches, one of a JSON list of strings, or a grammar in Lark's notation, in
    llama.cpp's (GBNF), or in Lark's as Headway itself writes it (`composed`)."""

    kind: Literal["json", "json_schema", "regex", "choice", "lark", "gbnf", "composed"]
    source: str = ""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The natural logarithm of a token's probability, by the model's own logits (before anything adjusted them), and
    the likeliest tokens at its position, as (token, logprob), the likeliest first. `rank` is its own place among
    all tokens, from 1."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int = 0


class Draw(msgspec.Struct, frozen=True, gc=False):
    """One token to choose from the logits after a span's last position.

    index      the sequence within its request
    position   the one that the chosen token will occupy
    history    all tokens before it, if the sampling remembers, and `prompt` how many of them are the prompt
    banned     tokens that must not be chosen at positions before `banned_before` (they would end an answer that
               is shorter than asked for), unless `masks` leave nothing else
    masks      which tokens may be chosen, one bit each, little-endian; the first for `position`, then one for the
               position after each draft. Empty: all may
    logprobs   how many of the likeliest tokens to report beside the chosen one; None: report nothing
    """

    index: int
    position: int
    sampling: Sampling
    history: tuple[int, ...] = ()
    prompt: int = 0
    banned: tuple[int, ...] = ()
    banned_before: int = 0
    masks: tuple[bytes, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Logprobs that are asked for of tokens which are known already: `tokens[i]` follows the span's position
    `first + i`, counted from the span's start. `top` is as `Draw.logprobs`."""

    first: int
    tokens: tuple[int, ...]
    top: int


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive positions of one sequence, evaluated in one step.

    tokens   the inputs at positions `start` … `start + len(tokens) - 1`; the last `drafts` of them are
             guesses (speculative decoding)
    blocks   the sequence's block table, in order; it covers every position up to the span's end, and state for
             positions before `start` is already there
    draws    tokens to choose after the last position; empty when the span ends before the newest known token.
             Several draws on one span are the first tokens of a request's sequences, from the same logits.
             With drafts there is exactly one draw: it applies to each verified position in turn
    score    what is to be said about known tokens, if anything
    """

    start: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    draws: tuple[Draw, ...] = ()
    drafts: int = 0
    score: Score | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def cost(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A whole input of a bidirectional encoder, all its positions at once; nothing of it is kept.

    tokens   with the special tokens that the model wants around them
    second   where the second text of a pair begins (token type 1 from there on); 0: there is none
    pools    ranges of positions, (start, end) each, that are pooled into one vector each (late chunking); empty: all
             of them into one
    raw      no pooling: one vector for each position
    """

    tokens: tuple[int, ...]
    second: int = 0
    pools: tuple[tuple[int, int], ...] = ()
    raw: bool = False

    @property
    def rows(self) -> int:
        """How many vectors it results in."""
        return len(self.tokens) if self.raw else len(self.pools) or 1

    @property
    def cost(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Encode:
    """A prompt becomes features, which are kept in `slot` beside a latent that starts as noise from `seed`.

    updates         how often the latent will be updated
    guidance        above 1 each update is evaluated twice, with the features of `tokens` and of `negative`, and goes
                    so many times as far as from the second to the first (classifier-free guidance, Ho and Salimans
                    2022); otherwise once, and `negative` is not encoded
    width, height   of the pixels; 0 where the model has one size
    previews        the latent will also be decoded before its last update
    """

    slot: int
    tokens: tuple[int, ...]
    seed: int
    updates: int = 1
    negative: tuple[int, ...] = ()
    guidance: float = 1.0
    width: int = 0
    height: int = 0
    previews: bool = False
    cost: int = 1

    @property
    def guided(self) -> bool:
        return self.guidance > 1


@dataclass(frozen=True, slots=True)
class Update:
    """Update `index` (from 0) of `of` of the latent in `slot`."""

    slot: int
    index: int
    of: int
    cost: int = 1


@dataclass(frozen=True, slots=True)
class DecodePixels:
    """The latent in `slot` becomes pixels; as a `preview`, what its last update expects it to become. It stays as it
    is."""

    slot: int
    preview: bool = False
    cost: int = 1


#: One item of a step, by pattern.
Item: TypeAlias = Span | Evaluate | Encode | Update | DecodePixels


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of one model. `copies` are (source block, target block) pairs, carried out after all items were
    evaluated (a forked sequence gets its own copy of the last, partly filled block). `fills` are such pairs too,
    carried out before any item is evaluated: a known block agrees in part with what follows in a sequence, which goes
    on with a copy of its own. Of either, all sources are read before any target is written.

    `offloads` are (block, host slot) pairs, copied before anything else is done, and `reloads` (host slot, block)
    pairs, copied after the fills and before any item is evaluated: between the pool and host memory (see
    `memory/tiers.py`). A step may hold nothing else."""

    step: int
    items: tuple[Item, ...]
    copies: tuple[tuple[int, int], ...] = ()
    fills: tuple[tuple[int, int], ...] = ()
    offloads: tuple[tuple[int, int], ...] = ()
    reloads: tuple[tuple[int, int], ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The items of a step of text. Raises InvariantError if one is another pattern's."""
        spans = tuple([item for item in self.items if isinstance(item, Span)])
        if len(spans) != len(self.items):
            raise InvariantError(f"step {self.step} has items other than spans")
        return spans

    @property
    def cost(self) -> int:
        """What it spends of the step's budget, in the pattern's unit; for text, positions, wrong drafts included."""
        return sum(item.cost for item in self.items)


class SpanResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a span.

    tokens     one per draw in order, or, with `drafts`, the accepted drafts followed by one more token (so between 1
               and drafts + 1)
    logprobs   one for each token, or () where the draws ask for none
    scores     one for each token of its `Score`, or ()
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Vector:
    """The result of an `Evaluate`: its vectors one after another (`Evaluate.rows`), fp32 values, little-endian. A
    cross-encoder's result for a pair is a vector of one value, its score."""

    values: bytes


@dataclass(frozen=True, slots=True)
class Latent:
    """The result of an `Encode` or an `Update`: it is in its slot, and nothing leaves."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """The result of a `DecodePixels`: rows from top to bottom, three bytes for each pixel (red, green, blue)."""

    data: bytes


#: The result of one item, by pattern.
ItemResult: TypeAlias = SpanResult | Vector | Latent | Pixels


@dataclass(frozen=True, slots=True)
class Spent:
    """How long one part of a step took: items of one `kind` and one `size` (an image's width and height in pixels,
    for what depends on it), evaluated together in so many `rows` (a guided update has two)."""

    kind: str
    size: tuple[int, ...]
    rows: int
    ns: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """`results[i]` is the result of `plan.items[i]`. `spoiled` are the places of items whose numbers came out not
    finite (NaN or infinite): their results have no meaning, and what they wrote is empty again, for what comes to lie
    there next. `spent` is told by executors whose parts take time of their own."""

    results: tuple[ItemResult, ...]
    spoiled: tuple[int, ...] = ()
    spent: tuple[Spent, ...] = ()
