"""Sends a load: at due times whatever becomes of earlier requests (open loop), or each worker one after another
(closed loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from headway.bench.serve.asks import Ask
from headway.bench.serve.figures import Answer, Failure
from headway.bench.serve.streaming import Target, ask_once

Ends = list[Answer | Failure]


async def open_loop(target: Target, asks: Sequence[Ask], tick: Callable[[], None]) -> Ends:
    """Every ask has its time. A request counts from when it was due, so a client that falls behind does not hide what
    callers would have waited. Answers come in the order of the asks."""
    began_s = time.perf_counter()

    async def one(ask: Ask, due_s: float) -> Answer | Failure:
        end = await ask_once(target, ask, due_s)
        tick()
        return end

    tasks = []
    for ask in asks:
        assert ask.at_s is not None
        due_s = began_s + ask.at_s
        if (wait_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(one(ask, due_s)))
    return list(await asyncio.gather(*tasks))


async def closed_loop(target: Target, asks: Sequence[Ask], concurrent: int, tick: Callable[[], None]) -> Ends:
    """`concurrent` requests at any time until the asks are used up; answers come in the order of their ends."""
    left, ends = iter(asks), list[Answer | Failure]()

    async def worker() -> None:
        for ask in left:
            ends.append(await ask_once(target, ask, time.perf_counter()))
            tick()

    await asyncio.gather(*(worker() for _ in range(concurrent)))
    return ends
