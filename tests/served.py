"""A small world whose requests come and go through a front: received, sent, delivered, each at its own time."""

from __future__ import annotations

from collections.abc import Callable

from headway.compute.fake import linear_cost
from headway.core.events import AnyEvent, Cancelled, Delivered, Failed, Finished, Loaded, Received, Refused
from headway.core.plan import StepPlan
from headway.core.request import Request
from headway.story.diagnose.doctor import diagnose
from headway.story.diagnose.findings import Finding
from headway.story.diagnose.observations import Machine, Observations
from world import World

MS = 1_000_000
USUAL_COST = linear_cost(step_ns=MS, position_ns=MS // 100)
USUAL_KERNELS = {"products": "bf16 weights and inputs, oneDNN, packed", "attention": "batched products"}


class Served(World):
    """`front_ms` pass from headers to sending, `queue_ms` between front and replica, `delivery_ms` from the end to
    the last byte. A step costs what `cost` says, by default 1 ms and 0.01 ms a position."""

    def __init__(
        self,
        *,
        cost: Callable[[StepPlan], int] = USUAL_COST,
        kernels: dict[str, str] = USUAL_KERNELS,
        state: str = "",
        **options: object,
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.executor._cost_ns = cost
        self.front_ms = self.queue_ms = 0.0
        self.delivery_ms: dict[str, float] = {}
        self.dropped: dict[str, str] = {}
        limits, facts = self.model.options, self.executor.facts
        self._emit(
            Loaded(
                at=0, model="fake", blocks=self.pool.total, block_tokens=self.pool.block_tokens,
                block_bytes=facts.block_bytes, seats=limits.seats, step_tokens=limits.step_tokens, threads=2,
                weights="bf16", state=state, kernels=kernels, gap_ms=limits.gap_ms,
            )
        )  # fmt: skip

    def add(self, id: str, prompt: list[int] | int, **fields: object) -> Request:
        received_at = self.clock.now_ns()
        self.clock.advance(round(self.front_ms * MS))
        self._emit(Received(at=received_at, id=id, sent_at=self.clock.now_ns()))
        self.clock.advance(round(self.queue_ms * MS))
        return super().add(id, prompt, **fields)

    def _emit(self, event: AnyEvent) -> None:
        super()._emit(event)
        if isinstance(event, Finished | Cancelled | Failed | Refused):
            late_ns = round(self.delivery_ms.get(event.id, 0) * MS)
            super()._emit(Delivered(at=event.at + late_ns, id=event.id, dropped=self.dropped.get(event.id)))

    def seen(self, machine: Machine | None = None) -> Observations:
        return Observations(machine=machine).fold_all(self.events)

    def findings(self, machine: Machine | None = None) -> dict[str, Finding]:
        """By name, the most costly first."""
        return {finding.name: finding for finding in diagnose(self.seen(machine))}


def served(requests: int, prompt: int, tokens: int, **options: object) -> Served:
    """All at once, each with a prompt of its own."""
    world = Served(**options)
    for i in range(requests):
        world.add(f"r{i}", prompt, max_tokens=tokens)
    world.run()
    return world


def one_by_one(
    world: Served, prompts: list[list[int]], tokens: int = 2, salt: Callable[[int], str] = lambda i: ""
) -> Served:
    """Each once the one before it is over."""
    for i, prompt in enumerate(prompts):
        world.add(f"r{i}", prompt, max_tokens=tokens, cache_salt=salt(i))
        world.run()
    return world


def only(world: Served, machine: Machine | None = None) -> Finding:
    """The one finding that there is."""
    (finding,) = world.findings(machine).values()
    return finding
