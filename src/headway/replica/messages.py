"""What front and replica say to each other: msgpack over one local socket, every message of a known type."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from headway.compute.executor import ModelFacts, Sketch
from headway.core.errors import ProtocolError
from headway.core.events import AnyEvent, Loaded
from headway.core.request import AnyEmission, EmbedRequest, ImageRequest, TextRequest
from headway.core.tiers import TierLevel


class Submit(msgspec.Struct, frozen=True, gc=False, tag="submit"):
    """Queue this request, and `others` of the same exchange right behind it: no step begins between them."""

    request: TextRequest | EmbedRequest | ImageRequest
    others: tuple[TextRequest | EmbedRequest | ImageRequest, ...] = ()


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End this request; nothing happens when it is no longer alive. `by` is as in the event `Cancelled`."""

    id: str
    by: str


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Say what this request's latent looks like by now."""

    id: str


class TurnedAway(msgspec.Struct, frozen=True, tag="turned_away"):
    """Since the last such message so many requests for `model` were not submitted, since too many wait. Nothing but
    what is told of a cut of admission depends on it."""

    model: str
    requests: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the process. Live requests are abandoned, so the front drains first."""


#: What a replica is doing until it opens its first model.
STARTING = "starting"


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of loading: `done` of `total` bytes (0 of 0 before either is known)."""

    what: str
    done: int
    total: int


class ReadyModel(msgspec.Struct, frozen=True):
    """A model that is loaded, and served as `name`. A model without a KV cache has no blocks; one that keeps latents
    has `pool_bytes` for them. `tiers` are what its state tiers hold already."""

    name: str
    facts: ModelFacts
    blocks: int
    block_tokens: int
    max_context: int
    seats: int
    step_tokens: int
    gap_ms: float | None = None
    pool_bytes: int = 0
    tiers: tuple[TierLevel, ...] = ()

    @property
    def reserved_bytes(self) -> int:
        """Memory for state, whether it is used or not."""
        return self.blocks * self.facts.block_bytes + self.pool_bytes

    def event(self, at: int, threads: int) -> Loaded:
        """What the story tells of it."""
        return Loaded(
            at=at,
            model=self.name,
            blocks=self.blocks or self.pool_bytes,  # a block of latents is a byte
            block_tokens=self.block_tokens,
            block_bytes=1 if self.pool_bytes else self.facts.block_bytes,
            seats=self.seats,
            step_tokens=self.step_tokens,
            gap_ms=self.gap_ms,
            threads=threads,
            weights=self.facts.weights_format,
            weights_why=self.facts.weights_why,
            state=self.facts.state_format,
            kernels=self.facts.kernels,
            pattern=self.facts.pattern,
            tiers=self.tiers,
        )


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """All models are loaded. `load_ms` is what that took, `resident_bytes` what the process holds."""

    models: tuple[ReadyModel, ...]
    threads: int
    load_ms: float
    resident_bytes: int


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """A model could not be loaded; the process ends. `kind` is the exception's class."""

    kind: str
    message: str


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """A submission is invalid (`field` says where), or its id is alive already (`field` is "id")."""

    id: str
    field: str
    message: str


class Looked(msgspec.Struct, frozen=True, tag="looked"):
    """The answer to `Look`: after `done` of its items the latent of `id` looks so; None where it has none (any more,
    or yet)."""

    id: str
    done: int = 0
    sketch: Sketch | None = None


class Told(msgspec.Struct, frozen=True, gc=False, tag="told"):
    """What happened since the last message, in order: events, and the tokens that were emitted."""

    events: tuple[AnyEvent, ...]
    emissions: tuple[AnyEmission, ...] = ()


ToReplica: TypeAlias = Submit | Cancel | Look | TurnedAway | Stop
ToFront: TypeAlias = Loading | Ready | LoadFailed | Rejected | Looked | Told

_MessageT = TypeVar("_MessageT")

_encoder = msgspec.msgpack.Encoder()
_to_replica = msgspec.msgpack.Decoder(ToReplica)
_to_front = msgspec.msgpack.Decoder(ToFront)


def encode(message: ToReplica | ToFront) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode_to_replica(data: bytes) -> ToReplica:
    """What the front said. Raises ProtocolError."""
    return _decode(_to_replica, data)


def decode_to_front(data: bytes) -> ToFront:
    """What the replica said. Raises ProtocolError."""
    return _decode(_to_front, data)


def _decode(decoder: msgspec.msgpack.Decoder[_MessageT], data: bytes) -> _MessageT:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a known message: {error}") from error
