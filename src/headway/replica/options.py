"""What a replica process is told on its command line, derived from the options of `serve`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil

from headway.core.config import ServeOptions, draft_tokens
from headway.core.errors import ConfigError
from headway.engine.served import EngineOptions
from headway.policy.order import heeds_priority

_AUTO_SHARE = 4
_AUTO_MOST_BYTES = 4 << 30


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that the process needs to know; it travels as JSON on its command line.

    `model` names the files again; they are already here, so nothing is downloaded. `name` is what the model is served
    as; "" is its own.
    """

    model: str
    name: str = ""
    cache: str
    blocks: int | None = None
    memory_bytes: int | None = None
    block_tokens: int = 16
    weights: str = "auto"
    state: str = "auto"
    threads: int | None = None
    prefix_cache: bool = True
    max_context: int | None = None
    draft: int = 0
    engine: EngineOptions = EngineOptions()

    @property
    def heeds_priority(self) -> bool:
        """Whether a request's `priority` has an effect."""
        return heeds_priority(self.engine.policy)


def replica_options(options: ServeOptions, cache: Path) -> ReplicaOptions:
    """`--memory auto` becomes a quarter of the memory that is free now, at most 4 GiB. Raises ConfigError for more
    than is free."""
    memory_bytes, available = options.memory.bytes, psutil.virtual_memory().available
    if options.memory.auto:
        memory_bytes = min(available // _AUTO_SHARE, _AUTO_MOST_BYTES)
    elif memory_bytes is not None and memory_bytes > available:
        raise ConfigError("--memory", f"{options.memory} is more than the {available >> 20}MiB that are free")
    return ReplicaOptions(
        model=options.model[0],
        name=options.served_name or options.model[0],
        cache=str(cache),
        blocks=options.memory.blocks,
        memory_bytes=memory_bytes,
        block_tokens=options.block_tokens,
        weights=options.weights,
        state=options.state,
        threads=options.threads,
        prefix_cache=options.prefix_cache,
        max_context=options.max_context,
        draft=draft_tokens(options.draft),
        engine=EngineOptions(
            seats=options.seats,
            step_tokens=options.step_tokens,
            max_context=options.max_context or 1 << 30,
            max_bypass=options.max_bypass,
            policy=options.policy,
        ),
    )
