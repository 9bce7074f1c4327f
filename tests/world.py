"""A small world for tests: the real engine, policy, memory and story over the fake executor and a modelled clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from fake_tiers import fake_tiers
from headway.compute.fake import FakeExecutor, expected_tokens, linear_cost
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Stepped
from headway.core.plan import Draw, Sampling
from headway.core.request import Emission, Request, Stage, TextRequest
from headway.core.verdict import Wait
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model
from headway.patterns.text.ports import Drafters, no_drafts
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import pool_view


def as_json(view: msgspec.Struct | list[msgspec.Struct]) -> Any:
    """What a client reads of a view."""
    return msgspec.json.decode(msgspec.json.encode(view))


class Guessing:
    """A drafter that guesses what a function says."""

    def __init__(self, guess: Callable[[list[int]], list[int]]) -> None:
        self.guess = guess

    def verified(self, drafted: int, accepted: int) -> None:
        return None


class Allowing:
    """A guide that allows every token of a vocabulary but the `forbidden` ones, for ever or for `length` tokens."""

    def __init__(
        self, vocab: int, forbidden: Callable[[int], bool] = lambda token: False, length: int = 1 << 30
    ) -> None:
        bits = sum(1 << token for token in range(vocab) if not forbidden(token))
        self._mask = bits.to_bytes(-(-vocab // 8), "little")
        self._forbidden, self._left = forbidden, length
        self.accepted: list[int] = []

    fault = None

    @property
    def complete(self) -> bool:
        return len(self.accepted) >= self._left

    def masks(self, guesses: Sequence[int]) -> list[bytes]:
        allowed = list(takewhile(lambda token: not self._forbidden(token), guesses))
        return [self._mask] * (len(allowed) + 1)

    def accept(self, token: int) -> None:
        assert not self._forbidden(token), f"{token} was chosen against the grammar"
        self.accepted.append(token)


def guessing(guess: Callable[[list[int]], list[int]]) -> Drafters:
    return lambda new: Guessing(guess)


class World:
    """Drives an engine and checks the identities after every move."""

    def __init__(
        self,
        *,
        blocks: int = 100,
        block_tokens: int = 16,
        prefix_cache: bool = True,
        drafter: Callable[[list[int]], list[int]] | None = None,
        drafters: Drafters = no_drafts,
        vocab: int = 997,
        model_context: int = 1 << 20,
        eos_ids: tuple[int, ...] = (),
        host_slots: int = 0,
        disk_slots: int = 0,
        disk_delay: int | None = 0,
        most_copies: int = 64,
        staging: bool = False,
        copy_ns: int = 0,
        **options: object,
    ) -> None:
        if drafter is not None:
            drafters = guessing(drafter)
        self.clock = ModelledClock()
        self.vocab = vocab
        self.events: list[AnyEvent] = []
        self.story = Story()
        self.executor = FakeExecutor(
            blocks=blocks, block_tokens=block_tokens, vocab=vocab, max_context=model_context, eos_ids=eos_ids,
            clock=self.clock, host_slots=host_slots, copy_ns=copy_ns,
            cost_ns=linear_cost(step_ns=1_000_000, position_ns=10_000),
        )  # fmt: skip
        self.tiers = self.disk = None
        if host_slots:
            self.tiers, self.disk = fake_tiers(
                self.executor, disk_slots, delay=disk_delay, most_copies=most_copies, staging=staging
            )
        self.pool = BlockPool(blocks, block_tokens, self.tiers)
        options.setdefault("admit", "optimistic")  # so that requests get in each other's way
        self.model = text_model(
            self.executor, StateMemory(self.pool, prefix_cache=prefix_cache),
            EngineOptions(**options), drafters=drafters,  # type: ignore[arg-type]
        )  # fmt: skip
        self.engine = Engine([self.model], self.clock, emit=self._emit)
        self.asked: dict[str, TextRequest] = {}
        self.said: dict[tuple[str, int], list[int]] = {}
        self.finish: dict[tuple[str, int], str] = {}

    def _emit(self, event: AnyEvent) -> None:
        new: tuple[int, ...] = getattr(event, "reusable", ())
        known = self.story.reusable[self.model.name]
        assert len(known | set(new)) == len(known) + len(new), "a block becomes reusable that was reusable"
        self.events.append(event)
        self.story.fold(event)
        untold = set(filter(self.pool.is_reusable, range(self.pool.total))) - self.story.reusable[self.model.name]
        assert not untold, f"{untold} became reusable, and {event} does not say so"

    def add(self, id: str, prompt: list[int] | int, **fields: object) -> Request:
        """`prompt` is token ids, or a length (then every request gets different ones)."""
        if isinstance(prompt, int):
            salt = sum(map(ord, id)) * 131
            prompt = [(salt + 7 * i) % self.vocab for i in range(prompt)]
        new = TextRequest(id=id, prompt=tuple(prompt), **fields)  # type: ignore[arg-type]
        request = self.engine.add(new)
        self.asked[id] = new
        for index in range(new.n):
            self.said[id, index] = []
            self.finish.pop((id, index), None)
        self.engine.check()
        return request

    def step(self) -> list[Emission]:
        emissions = self.engine.step()
        self.note(emissions)
        return emissions

    def note(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            key = emission.id, emission.index
            assert key not in self.finish, f"{key} emitted after its end"
            self.said[key].extend(emission.tokens)
            if emission.finish:
                self.finish[key] = emission.finish
        self.engine.check()
        self.agree()

    def run(self, limit: int = 10_000) -> int:
        """Step until nothing is alive. Returns how many steps that took."""
        for count in range(limit):
            if not self.engine.requests:
                return count
            self.step()
        raise AssertionError(f"still alive after {limit} steps: {list(self.engine.requests)}")

    def agree(self) -> None:
        """Records folded from events say the same as the engine's own books."""
        for request in self.engine.requests.values():
            record = self.story.record(request.id)
            if request.ended:
                continue
            assert record.stage == request.stage
            assert record.preemptions == request.preemptions
            for mine, theirs in zip(request.progress.sequences, record.sequences, strict=True):
                assert theirs.counts == mine.counts, (request.id, theirs.counts, mine.counts)
                assert theirs.computed == mine.computed and theirs.known == mine.known
                assert theirs.blocks == (mine.state.blocks if mine.state else [])
            now = self.clock.now_ns()
            assert sum(i.ns for i in record.life(now)) == record.elapsed_ns(now)
        self.agree_on_blocks()

    def agree_on_blocks(self) -> None:
        """Which block is live, reusable or free follows from the events, and is what the pool says."""
        (told,) = pool_view(self.story, blocks=True).models or (None,)
        if told is None:  # nothing has happened
            return
        references = Counter(block for held in told.held_blocks for table in held.tables for block in table)
        assert references == {b: n for b in range(self.pool.total) if (n := self.pool.references(b))}
        assert told.reusable_blocks == tuple(b for b in range(self.pool.total) if self.pool.is_reusable(b))

    def expected(self, id: str, index: int = 0, count: int | None = None) -> list[int]:
        new = self.asked[id]
        ends_at = len(new.prompt) + new.min_tokens
        draw = Draw(index, 0, new.sampling, banned=new.stop_ids, banned_before=ends_at)
        count = len(self.said[id, index]) if count is None else count
        return expected_tokens(new.prompt, draw, count, self.vocab)

    def steps(self) -> list[Stepped]:
        return [event for event in self.events if isinstance(event, Stepped)]

    def spent(self, step: int, id: str) -> int:
        """Positions that `id` had in step `step` (from 1)."""
        return sum(member.positions for member in self.steps()[step - 1].members if member.id == id)

    def wait(self, id: str) -> Wait:
        verdict = self.story.record(id).verdict
        assert isinstance(verdict, Wait), verdict
        return verdict

    def counts(self, id: str, index: int = 0):
        return self.story.record(id).sequences[index].counts


SAMPLED = Sampling(temperature=1.0, seed=1)
__all__ = ["SAMPLED", "Stage", "World"]
