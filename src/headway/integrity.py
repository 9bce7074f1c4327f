"""The identities of space and positions, checked from scratch. Tests do so after every move."""

from __future__ import annotations

from collections.abc import Iterable

from headway.errors import InvariantError
from headway.memory.pool import BlockPool
from headway.request import Request


def check_identities(requests: Iterable[Request], pool: BlockPool) -> None:
    """Raises InvariantError unless each sequence's positions add up, and the pool's references are those of
    `requests`' sequences. `requests` may name one twice. Changes nothing."""
    held: dict[int, int] = {}
    for request in {id(request): request for request in requests}.values():
        for sequence in request.sequences:
            for block in sequence.state.blocks if sequence.state else ():
                held[block] = held.get(block, 0) + 1
            c = sequence.counts
            gained = c.reused + c.regained + c.prefilled + c.decoded + c.recomputed
            if sequence.computed != gained - c.lost or not 0 <= sequence.computed <= sequence.known:
                raise InvariantError(f"{request.id}: computed is {sequence.computed}, the counts say {c}")
    pool.check(held)
