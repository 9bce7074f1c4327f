"""From what a caller wants to a request that the engine keeps."""

from __future__ import annotations

from headway.compute.executor import ModelFacts
from headway.hooks import Drafters, Watcher
from headway.memory.keys import KeyChain, root_key
from headway.memory.reserve import StateMemory
from headway.request import NewRequest, Request, Sequence
from headway.story.events import Arrived
from headway.verdict import Wait


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


def arrived(request: Request, at: int, order: tuple[int, ...], wait: Wait | None) -> Arrived:
    """The event of a request's arrival at `at`; `wait` is what it awaits before it queues."""
    return Arrived(
        at=at,
        id=request.id,
        pattern=request.pattern,
        prompt=len(request.prompt),
        n=request.n,
        max_tokens=request.max_tokens,
        priority=request.priority,
        order=order,
        wait=wait,
    )
