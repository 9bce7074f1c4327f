"""What latents look like while they are updated: asked of the replica, which answers between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.replica.messages import Look, Looked

#: How long to wait for a step to end.
LOOK_S = 5.0


class Looks:
    """Asks once for all who want to see the same latent. `say` sends a message to the replica."""

    def __init__(self, say: Callable[[Look], None]) -> None:
        self._say = say
        self._waiting: dict[str, asyncio.Future[Looked]] = {}

    async def at(self, id: str) -> Looked:
        """Raises TimeoutError when no step ends soon enough."""
        if id not in self._waiting:
            self._waiting[id] = asyncio.get_running_loop().create_future()
            self._say(Look(id))
        answer = self._waiting[id]
        try:
            return await asyncio.wait_for(asyncio.shield(answer), LOOK_S)
        except TimeoutError:
            if self._waiting.get(id) is answer:
                del self._waiting[id]  # a replica that died will not answer; the next asks again
            raise

    def heard(self, message: Looked) -> None:
        """An answer came."""
        answer = self._waiting.pop(message.id, None)
        if answer is not None:
            answer.set_result(message)
