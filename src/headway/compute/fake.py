"""A deterministic executor without torch, whose tokens expose any mistake in the books.

Each slot of its pool holds a hash of the whole prefix up to that position. A token is a function of that hash, so
a wrong block table, a stale block, a missed copy or a skipped position changes every later token, and the answer
no longer equals `expected_tokens`, which needs no pool at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from hashlib import blake2b
from typing import TypeAlias

from msgspec.structs import replace

from headway.compute.executor import ModelFacts
from headway.core.clock import ModelledClock
from headway.core.errors import InvariantError
from headway.core.plan import Draw, Span, SpanResult, Spent, StepPlan, StepResult, TokenLogprob

_EMPTY = 0
_Logprobs: TypeAlias = tuple[TokenLogprob, ...]


def _extend(prefix: int, token: int) -> int:
    data = prefix.to_bytes(8, "little") + token.to_bytes(8, "little", signed=True)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") | 1


def _choose(prefix: int, draw: Draw, vocab: int) -> int:
    """The first token from a hash on that may come."""
    data = repr((prefix, draw.index if draw.sampling.temperature else 0, draw.sampling)).encode()
    first = int.from_bytes(blake2b(data, digest_size=8).digest(), "little") % vocab
    banned = draw.banned if draw.position < draw.banned_before else ()
    order = [(first + i) % vocab for i in range(vocab)] if banned or draw.masks else [first]
    may = [token for token in order if not draw.masks or draw.masks[0][token // 8] >> token % 8 & 1]
    return next((token for token in may if token not in banned), may[0])


def fake_logprob(prefix: Sequence[int], token: int) -> float:
    """The logprob that the fake executor reports for `token` after the tokens of `prefix`."""
    return _logprob(reduce(_extend, prefix, _EMPTY), token)


def _logprob(prefix: int, token: int) -> float:
    return -(_extend(prefix, token) % 4096) / 256


def _report(pairs: Iterable[tuple[int, int]]) -> _Logprobs:
    return tuple(TokenLogprob(token, _logprob(prefix, token)) for prefix, token in pairs)


def expected_tokens(prompt: Sequence[int], draw: Draw, count: int, vocab: int) -> list[int]:
    """The `count` tokens that the fake executor must emit for one sequence, whatever else is in the batch."""
    prefix = _EMPTY
    for token in prompt:
        prefix = _extend(prefix, token)
    tokens: list[int] = []
    for i in range(count):
        tokens.append(_choose(prefix, replace(draw, position=len(prompt) + i), vocab))
        prefix = _extend(prefix, tokens[-1])
    return tokens


def no_cost(plan: StepPlan) -> int:
    """A step that takes no time."""
    return 0


def linear_cost(*, step_ns: int, position_ns: int) -> Callable[[StepPlan], int]:
    """A step that takes `step_ns` and `position_ns` more for each position."""
    return lambda plan: step_ns + position_ns * plan.cost


class FakeExecutor:
    """Implements `Executor` over a pool of `blocks` blocks, and `host_slots` slots of host memory. `run` moves
    `clock` by `cost_ns(plan)`, and by `copy_ns` for each block that it copies from or to host memory."""

    def __init__(
        self,
        *,
        blocks: int,
        block_tokens: int,
        vocab: int = 997,
        max_context: int = 1 << 20,
        eos_ids: tuple[int, ...] = (),
        clock: ModelledClock | None = None,
        cost_ns: Callable[[StepPlan], int] = no_cost,
        host_slots: int = 0,
        copy_ns: int = 0,
    ) -> None:
        self.vocab = vocab
        self.runs = 0
        self.fail_next: Exception | None = None
        #: Which spans come out as not finite.
        self.spoils: Callable[[Span], bool] = lambda span: False
        self._clock = clock
        self._cost_ns = cost_ns
        self.copy_ns = copy_ns
        self._block_tokens = block_tokens
        self._slots = [_EMPTY] * (blocks * block_tokens)
        #: What lies in each host slot: the content of one block.
        self.host: list[list[int]] = [[] for _ in range(host_slots)]
        self._facts = ModelFacts(
            name="fake",
            revision="0" * 12,
            pattern="text",
            vocab=vocab,
            max_context=max_context,
            weights_format="fp32",
            weights_bytes=0,
            state_format="fp32",
            block_bytes=8 * block_tokens,
            eos_ids=eos_ids,
        )

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def run(self, plan: StepPlan) -> StepResult:
        """Evaluate `plan`. Raises `fail_next` once when it is set, InvariantError on a plan that cannot be right."""
        self.runs += 1
        if self.fail_next is not None:
            failure, self.fail_next = self.fail_next, None
            raise failure
        spans = plan.spans
        self._refuse_shared_writes(spans)
        self._offload(plan.offloads)
        self._copy(plan.fills)
        self._reload(plan.reloads)
        results = tuple(self._evaluate(span) for span in spans)
        spoiled = tuple(place for place, span in enumerate(spans) if self.spoils(span))
        for span in (spans[place] for place in spoiled):
            for position in range(span.start, span.end):
                self._slots[self._slot(span, position)] = _EMPTY
        self._copy(plan.copies)
        copied = {"offload": len(plan.offloads), "reload": len(plan.reloads)}
        spent = tuple(Spent(kind, (), count, count * self.copy_ns) for kind, count in copied.items() if count)
        if self._clock is not None:
            self._clock.advance(self._cost_ns(plan) + sum(each.ns for each in spent))
        return StepResult(results, spoiled, spent)

    def _copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        size = self._block_tokens
        copied = [(target, self._slots[source * size : (source + 1) * size]) for source, target in pairs]
        for target, content in copied:
            self._slots[target * size : (target + 1) * size] = content

    def _offload(self, pairs: Iterable[tuple[int, int]]) -> None:
        size = self._block_tokens
        for block, slot in pairs:
            content = self._slots[block * size : (block + 1) * size]
            if _EMPTY in content:
                raise InvariantError(f"block {block} is offloaded but not all of it has state")
            self.host[slot] = content

    def _reload(self, pairs: Iterable[tuple[int, int]]) -> None:
        size = self._block_tokens
        for slot, block in pairs:
            self._slots[block * size : (block + 1) * size] = self.host[slot]

    def _evaluate(self, span: Span) -> SpanResult:
        """The span's tokens, their logprobs and the known tokens' scores, where they are asked for."""
        prefix = self._slots[self._slot(span, span.start - 1)] if span.start else _EMPTY
        if span.start and prefix == _EMPTY:
            raise InvariantError(f"position {span.start} is evaluated but the one before it has no state")
        after = []
        for i, token in enumerate(span.tokens):
            prefix = _extend(prefix, token)
            self._slots[self._slot(span, span.start + i)] = prefix
            after.append(prefix)
        if span.drafts:
            tokens = self._verify(span, after)
            before = after[len(span.tokens) - span.drafts - 1 :]
        else:
            tokens = tuple(_choose(prefix, draw, self.vocab) for draw in span.draws)
            before = [prefix] * len(tokens)
        wanted = bool(span.draws) and span.draws[0].logprobs is not None
        logprobs = zip(before, tokens, strict=False) if wanted else ()
        known = zip(after[span.score.first :], span.score.tokens, strict=False) if span.score else ()
        return SpanResult(tokens, _report(logprobs), _report(known))

    def _verify(self, span: Span, after: list[int]) -> tuple[int, ...]:
        """Accept drafts as long as each is the token that would have been chosen, then choose one more."""
        chosen: list[int] = []
        first = len(span.tokens) - span.drafts
        for i in range(first - 1, len(span.tokens)):
            draw = span.draws[0]
            masks = draw.masks[len(chosen) : len(chosen) + 1]
            chosen.append(_choose(after[i], replace(draw, position=span.start + i + 1, masks=masks), self.vocab))
            if i + 1 < len(span.tokens) and span.tokens[i + 1] != chosen[-1]:
                break
        return tuple(chosen)

    def _slot(self, span: Span, position: int) -> int:
        block, offset = divmod(position, self._block_tokens)
        return span.blocks[block] * self._block_tokens + offset

    def _refuse_shared_writes(self, spans: Sequence[Span]) -> None:
        written = [self._slot(span, position) for span in spans for position in range(span.start, span.end)]
        if len(set(written)) != len(written):
            raise InvariantError("two spans of one step write the same slot")
