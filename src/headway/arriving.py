"""From what a caller wants to a request that the engine keeps."""

from __future__ import annotations

from collections import OrderedDict

from headway.compute.executor import ModelFacts
from headway.hooks import Drafters, Watcher
from headway.memory.keys import KeyChain, root_key
from headway.memory.reserve import StateMemory
from headway.policy.waiting import AWAITS_GRAMMAR
from headway.request import NewRequest, Request, Sequence
from headway.story.events import BEGINNINGS, Arrived

#: Beginnings and salts that are remembered.
MOST_GROUPS = 4096


def new_sequences(
    new: NewRequest, facts: ModelFacts, memory: StateMemory, watcher: Watcher, drafters: Drafters
) -> list[Sequence]:
    """The `n` sequences of a request, each with the prompt as its history. The leading one alone has the prompt's
    logprobs to find out."""
    formats = {"weights": facts.weights_format, "state": facts.state_format}
    root = root_key(revision=facts.revision, **formats, salt=new.cache_salt)
    prompt = len(new.prompt)
    scores = new.prompt_logprobs is not None and prompt > 1
    return [
        Sequence(
            index,
            list(new.prompt),
            prompt,
            KeyChain(root, memory.pool.block_tokens),
            watch=watcher(new.stop, new.min_tokens) if new.stop else None,
            drafter=drafters(new),
            unscored=0 if scores and index == 0 else None,
        )
        for index in range(new.n)
    ]


def new_request(
    new: NewRequest, sequences: list[Sequence], arrival: int, max_tokens: int, facts: ModelFacts
) -> Request:
    """A request in the stage `received`. `arrival` is its running number; each sequence may emit `max_tokens`."""
    return Request(
        id=new.id,
        prompt=new.prompt,
        n=new.n,
        max_tokens=max_tokens,
        min_tokens=new.min_tokens,
        sampling=new.sampling,
        stop_ids=frozenset(new.stop_ids) | (frozenset() if new.ignore_eos else frozenset(facts.eos_ids)),
        priority=new.priority,
        arrival=arrival,
        logprobs=new.logprobs,
        prompt_logprobs=new.prompt_logprobs,
        sequences=sequences,
    )


class Groups:
    """Small numbers for what some requests have in common, so that events can say that, and not what it is. The
    latest `MOST_GROUPS` are remembered."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._count = 0

    def beginnings(self, sequence: Sequence) -> tuple[int, ...]:
        """A number for each of the first 1, 4, 16 and 64 blocks of its prompt, as far as it has them whole."""
        keys = sequence.keys
        assert isinstance(keys, KeyChain)
        whole = sequence.prompt // keys.block_tokens
        sizes = [blocks for blocks in BEGINNINGS if blocks <= whole]
        chain = keys.upto(sequence.tokens, sizes[-1]) if sizes else []
        return tuple(self._number(chain[blocks - 1]) for blocks in sizes)

    def salt(self, cache_salt: str) -> int:
        return self._number(b"salt" + cache_salt.encode()) if cache_salt else 0

    def _number(self, key: bytes) -> int:
        if key not in self._numbers:
            self._count += 1
            self._numbers[key] = self._count
            if len(self._numbers) > MOST_GROUPS:
                self._numbers.popitem(last=False)
        self._numbers.move_to_end(key)
        return self._numbers[key]


def arrived(new: NewRequest, request: Request, at: int, order: tuple[int, ...], groups: Groups) -> Arrived:
    """The event of a request's arrival at `at`. One with a grammar awaits that before it queues."""
    return Arrived(
        at=at,
        id=request.id,
        pattern=request.pattern,
        prompt=len(request.prompt),
        n=request.n,
        max_tokens=request.max_tokens,
        priority=request.priority,
        order=order,
        wait=AWAITS_GRAMMAR if new.grammar else None,
        beginnings=groups.beginnings(request.sequences[0]),
        salt=groups.salt(new.cache_salt),
    )
