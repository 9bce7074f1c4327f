"""From a text request to its sequences, and the event of its arrival."""

from __future__ import annotations

from collections import OrderedDict

from headway.compute.executor import ModelFacts
from headway.core.events import BEGINNINGS, Arrived
from headway.core.request import Request, TextRequest
from headway.memory.keys import KeyChain, Origin
from headway.memory.reserve import StateMemory
from headway.patterns.text.ports import Drafters, Watcher
from headway.patterns.text.sequence import Sequence, TextProgress

#: Beginnings and salts that are remembered.
MOST_GROUPS = 4096


def begin(
    new: TextRequest, facts: ModelFacts, memory: StateMemory, watcher: Watcher, drafters: Drafters, most_tokens: int
) -> TextProgress:
    """The `n` sequences of a request, each with the prompt as its history; each may emit `most_tokens`. The leading
    one alone has the prompt's logprobs to find out."""
    origin = Origin(facts.revision, facts.weights_format, facts.state_format, salt=new.cache_salt)
    prompt = len(new.prompt)
    scores = new.prompt_logprobs is not None and prompt > 1
    return TextProgress(
        max_tokens=most_tokens,
        min_tokens=new.min_tokens,
        sampling=new.sampling,
        stop_ids=frozenset(new.stop_ids) | (frozenset() if new.ignore_eos else frozenset(facts.eos_ids)),
        logprobs=new.logprobs,
        prompt_logprobs=new.prompt_logprobs,
        sequences=[
            Sequence(
                index,
                list(new.prompt),
                prompt,
                KeyChain(origin, memory.pool.block_tokens),
                watch=watcher(new.stop, new.min_tokens) if new.stop else None,
                drafter=drafters(new),
                unscored=0 if scores and index == 0 else None,
            )
            for index in range(new.n)
        ],
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


def arrived(new: TextRequest, request: Request, at: int, order: tuple[int, ...], groups: Groups) -> Arrived:
    """The event of a request's arrival at `at`. What it awaits comes before it queues."""
    progress: TextProgress = request.progress
    return Arrived(
        at=at,
        id=request.id,
        pattern="text",
        model=request.model,
        prompt=len(new.prompt),
        n=new.n,
        max_tokens=progress.max_tokens,
        priority=new.priority,
        deadline_at=request.deadline_at,
        order=order,
        wait=next(iter(request.awaits.values()), None),
        beginnings=groups.beginnings(progress.sequences[0]),
        salt=groups.salt(new.cache_salt),
    )
