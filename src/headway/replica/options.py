"""What a replica process is told on its command line, derived from the options of `serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from headway.core.choices import ModelChoice
from headway.core.config import Memory, ServeOptions, draft_tokens
from headway.core.errors import ConfigError
from headway.core.request import Pattern
from headway.engine.served import EngineOptions

_AUTO_SHARE = 4
_AUTO_MOST_BYTES = 4 << 30
#: Options that only a model with a KV cache has; `memory` is for latents too.
_OF_STATE = ("memory", "block_tokens", "state", "draft", "prefix_cache")


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a replica.

    model    names the files again; they are already here, so nothing is downloaded
    name     what it is served as; "" is its own name
    blocks, memory_bytes   the size of its pool, by either; an encoder has none, and latents are counted in bytes: no
             more than all seats can fill
    weight   its share of the device's time beside other models
    host_tier_bytes, disk_tier, disk_tier_bytes   the sizes of its tiers, and the folder of all models' disk tiers
    """

    model: str
    name: str = ""
    pattern: Pattern = "text"
    blocks: int | None = None
    memory_bytes: int | None = None
    block_tokens: int = 16
    weights: str = "auto"
    state: str = "auto"
    prefix_cache: bool = True
    max_context: int | None = None
    draft: int = 0
    weight: float = 1.0
    host_tier_bytes: int | None = None
    disk_tier: str | None = None
    disk_tier_bytes: int | None = None
    engine: EngineOptions = EngineOptions()

    @property
    def served_name(self) -> str:
        return self.name or self.model


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that the process needs to know; it travels as JSON on its command line."""

    models: tuple[ModelOptions, ...]
    cache: str
    threads: int | None = None
    native: str = "auto"
    max_slowdown: float = 2.0


def replica_options(
    served: ServeOptions, choices: Sequence[ModelChoice], patterns: Mapping[str, Pattern], cache: Path
) -> ReplicaOptions:
    """`patterns` are the models' by served name. The memory of the server goes to the models that keep state and have
    none of their own, in proportion to their shares; `--memory auto` is a quarter of the memory that is free now, at
    most 4 GiB. Latents are small, so a diffusion model has a share only of a size that is given in bytes. Raises
    ConfigError for more than is free, and for an option that its model's pattern does not have. Tiers are divided
    among the models with a KV cache in the same way."""
    memory = _divided(served.memory, choices, patterns)
    models = tuple(
        msgspec.structs.replace(
            _model(choice, patterns[choice.name], memory.get(choice.name, Memory())),
            **_tiers(served, choice, [each for each in choices if patterns[each.name] == "text"]),
        )
        for choice in choices
    )
    return ReplicaOptions(
        models=models,
        cache=str(cache),
        threads=served.threads,
        native=served.native,
        max_slowdown=served.max_slowdown,
    )


def _divided(total: Memory, choices: Sequence[ModelChoice], patterns: Mapping[str, Pattern]) -> dict[str, Memory]:
    """What each model with state has for it, by served name."""
    keeping = [choice for choice in choices if _keeps(choice, patterns[choice.name], total)]
    available = psutil.virtual_memory().available
    auto = Memory(bytes=min(available // _AUTO_SHARE, _AUTO_MOST_BYTES))
    given = {choice.name: auto if choice.memory.auto else choice.memory for choice in keeping if choice.memory}
    sharing = [choice for choice in keeping if choice.name not in given]
    parts = sum(choice.shares.share for choice in sharing)
    whole = auto if total.auto else total
    for choice in sharing:
        given[choice.name] = _part(whole, choice, parts)
    asked = sum(memory.bytes or 0 for memory in given.values())
    if asked > available:
        what = total if len(sharing) == len(keeping) else Memory(bytes=asked)
        raise ConfigError("--memory", f"{what} is more than the {available >> 20}MiB that are free")
    return given


def _tiers(served: ServeOptions, choice: ModelChoice, sharing: Sequence[ModelChoice]) -> dict[str, Any]:
    """A model's part of the tiers, as fields of its options."""
    if choice not in sharing:
        return {}
    parts = sum(each.shares.share for each in sharing)
    host, disk = (
        None if size is None else _part(size, choice, parts).bytes
        for size in (served.host_tier, served.disk_tier_bytes)
    )
    available = psutil.virtual_memory().available
    if served.host_tier is not None and (served.host_tier.bytes or 0) > available:
        text = f"{served.host_tier} is more than the {available >> 20}MiB that are free"
        raise ConfigError("--host-tier", text)
    return {"host_tier_bytes": host, "disk_tier": served.disk_tier, "disk_tier_bytes": disk}


def _keeps(choice: ModelChoice, pattern: Pattern, total: Memory) -> bool:
    """Whether a model has a part of the memory for state, or memory of its own."""
    own = choice.memory
    if pattern == "image" and own is not None and own.blocks is not None:
        text = f"{own} are blocks of a KV cache, and {choice.source} keeps latents; give a size like 64MiB"
        raise ConfigError("--model", text)
    given = own or total
    return pattern == "text" or (pattern == "image" and given.bytes is not None)


def _part(whole: Memory, choice: ModelChoice, parts: int) -> Memory:
    share = choice.shares.share
    if whole.blocks is not None:
        blocks = whole.blocks * share // parts
        if not blocks:
            raise ConfigError("--memory", f"{share} of {parts} parts of {whole} is no block for {choice.name}")
        return Memory(blocks=blocks)
    assert whole.bytes is not None
    return Memory(bytes=max(1, whole.bytes * share // parts))


def _model(choice: ModelChoice, pattern: Pattern, memory: Memory) -> ModelOptions:
    options = choice.options
    for field in _OF_STATE:
        if pattern != "text" and field in choice.own and (pattern, field) != ("image", "memory"):
            key = field.replace("_", "-")
            raise ConfigError("--model", f"{key} is for a model with a KV cache, and {choice.source} has none")
    return ModelOptions(
        model=choice.source,
        name=choice.name,
        pattern=pattern,
        blocks=memory.blocks,
        memory_bytes=memory.bytes,
        block_tokens=options.block_tokens,
        weights=options.weights,
        state=options.state,
        prefix_cache=options.prefix_cache,
        max_context=options.max_context,
        draft=draft_tokens(options.draft),
        weight=choice.shares.weight,
        engine=EngineOptions(
            seats=options.seats,
            step_tokens=options.most_step_tokens,
            gap_ms=options.kept_gap_ms,
            max_context=options.max_context or 1 << 30,
            max_bypass=options.max_bypass,
            policy=options.policy,
            admit=options.admit,
            recovery=options.recovery,
        ),
    )
