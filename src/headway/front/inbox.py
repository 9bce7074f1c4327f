"""What the replica says of live requests on its way to the exchanges that they belong to."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from headway.core.errors import DuplicateRequest, InvalidRequest
from headway.core.request import Embedded, Emission, Pictured, Stage
from headway.front.quota import Claim


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more will come for the request `id`; `stage` says how it ended."""

    id: str
    stage: Stage
    message: str = ""


#: What comes for a request.
Arriving: TypeAlias = Emission | Embedded | Pictured | End


class Arrivals:
    """What comes for the requests of one exchange, in order, for the one task that takes it. None says that nothing
    came for a while."""

    def __init__(self) -> None:
        self._items: deque[Arriving | None] = deque()
        self._wanted: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Arriving | None) -> None:
        self._items.append(item)
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def take(self) -> Arriving | None:
        """The next; waits for it."""
        while not self._items:
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        return self._items.popleft()


@dataclass(slots=True)
class Inbox:
    """What is known of one live request beside its record; what the replica says of it goes to its exchange's
    `arrivals`, in order, ending with an `End`.

    `settled` is set once it is queued or over; `refused` is its end when it never was queued; `left` says that its
    exchange is over already, and `dropped` by whom if it did not end by itself. `claim` is its place among the
    prompts that wait, until it is admitted; `timer` ends it when it has lived for too long.
    """

    arrivals: Arrivals
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    refused: End | None = None
    rejected: InvalidRequest | DuplicateRequest | None = None
    left: bool = False
    dropped: str | None = None
    claim: Claim | None = None
    timer: asyncio.TimerHandle | None = None
