"""The state tiers of a model in this process: host memory beside its pool, a file on disk, the books over both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.compute.executor import ModelFacts, TieredExecutor
from headway.core.errors import ConfigError
from headway.memory.keys import Elsewhere
from headway.memory.slots import Slots
from headway.memory.tiers import Tiers
from headway.replica import diskorigins
from headway.replica.diskslab import DiskSlab, digest
from headway.replica.diskworker import DiskWorker
from headway.replica.options import ModelOptions

#: What one step copies in each direction, at most, however fast that is; and what may lie on the way to a disk.
_STEP_BYTES = 32 << 20
#: A replica whose front was killed still writes for some seconds, and holds its file.
_PREDECESSOR_S = 10.0
#: Changes with the meaning of the bytes in a slot.
_LAYOUT = "1"


@dataclass(frozen=True)
class OpenTiers:
    """`books` know what lies where; `disk` moves it, where there is one. What lies `elsewhere` in the folder of disk
    tiers is of the same model in another revision or format, and of no use."""

    books: Tiers
    disk: DiskWorker | None = None
    elsewhere: tuple[Elsewhere, ...] = ()

    def close(self, timeout_s: float) -> None:
        """Write what is still to be written, for so long at most, and let go of the file."""
        if self.disk is not None:
            self.disk.close(timeout_s)


def open_tiers(executor: TieredExecutor, options: ModelOptions) -> OpenTiers | None:
    """The tiers that a model's options ask for, with what its disk tier holds; None without any. Raises ConfigError
    for sizes below one block, and as `DiskSlab.open`."""
    if options.host_tier_bytes is None and options.disk_tier is None:
        return None
    facts = executor.facts
    step = max(1, _STEP_BYTES // facts.block_bytes)
    host = step if options.host_tier_bytes is None else options.host_tier_bytes // facts.block_bytes
    if not host:
        text = f"{options.host_tier_bytes} bytes are less than one block of {facts.name} ({facts.block_bytes} bytes)"
        raise ConfigError("--host-tier", text)
    make = partial(Tiers, most_copies=step, slot_bytes=facts.block_bytes)
    if options.disk_tier is None or options.disk_tier_bytes is None:
        executor.keep_outside(host)
        return OpenTiers(make(Slots(host)))
    identity = identity_of(facts, options.block_tokens)
    folder = Path(options.disk_tier).expanduser() / folder_name(facts, identity)
    size = options.disk_tier_bytes
    slab = DiskSlab.open(folder, identity, facts.block_bytes, size, patience_s=_PREDECESSOR_S)
    worker = DiskWorker(slab, executor.keep_outside(host).bytes)
    disk = Slots(slab.slots, slab.found.keys)
    tiers = make(Slots(host), disk, worker, staging=options.host_tier_bytes is None)
    tiers.happened.wrong("header", f"{folder}: headers of slots are damaged", slab.found.damaged)
    tiers.happened.wrong("foreign", f"{folder}: slots hold another model's blocks", slab.found.foreign)
    diskorigins.write(folder, facts, options.block_tokens)
    return OpenTiers(tiers, worker, diskorigins.beside(folder, options.block_tokens))


def identity_of(facts: ModelFacts, block_tokens: int) -> bytes:
    """16 bytes that stand for all that the bytes of a block depend on beside its key, which has revision and formats:
    the kernels that computed it, to the last bit, and how it lies in memory."""
    formats = (facts.revision, facts.weights_format, facts.state_format)
    parts = (_LAYOUT, *formats, block_tokens, facts.block_bytes, sorted(facts.kernels.items()))
    return digest(repr(parts).encode())


def folder_name(facts: ModelFacts, identity: bytes) -> str:
    """Of one model within the disk tier's folder: its name to be recognised by, its identity to be told apart by."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", facts.name).strip(".-")[-60:]
    return f"{name}-{identity.hex()[:16]}"
