"""Prefix keys: equal keys mean that the state of two blocks is interchangeable.

A block's key is a hash of its predecessor's key and its own token ids, so it stands for the whole prefix (the scheme
of PagedAttention prefix caching, Kwon et al. 2023). The chain starts at a root over everything else that shapes
state. Every field carries its kind, so that no value of one kind can imitate another.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b

_KEY_BYTES = 16


def root_key(
    *,
    revision: str,
    weights: str,
    state: str,
    adapter: str = "",
    positions: str = "absolute",
    inputs: str = "",
    salt: str = "",
) -> bytes:
    """The start of a chain; the fields are those of `Origin`."""
    digest = blake2b(digest_size=_KEY_BYTES, person=b"headway-root")
    fields = {
        "revision": revision,
        "weights": weights,
        "state": state,
        "adapter": adapter,
        "positions": positions,
        "inputs": inputs,
        "salt": salt,
    }
    for kind, value in fields.items():
        data = value.encode()
        digest.update(kind.encode() + b"\0" + len(data).to_bytes(8, "little") + data)
    return digest.digest()


@dataclass(frozen=True)
class Origin:
    """All that shapes state beside the tokens. Every field must match before any state may be reused: model revision,
    weights and state format, adapter (by content), position treatment, other inputs that affect the state, and the
    caller's `cache_salt`."""

    revision: str
    weights: str
    state: str
    adapter: str = ""
    positions: str = "absolute"
    inputs: str = ""
    salt: str = ""

    @cached_property
    def root(self) -> bytes:
        return root_key(**asdict(self))

    def differs_by(self, other: Origin) -> str:
        """What two origins of one salt differ by, in the words of `Miss.what`; "" where it is none of these.

        A replica has one revision and one format, so only a disk tier shows others (`Elsewhere`). Adapters are not
        served yet: no request of a server has one, and none is told "adapter"."""
        if self.revision != other.revision:
            return "revision"
        if (self.weights, self.state) != (other.weights, other.state):
            return "format"
        return "adapter" if self.adapter != other.adapter else ""


@dataclass(frozen=True)
class Elsewhere:
    """Blocks that lie where they are of no use here: `keys` of blocks as large as here, of `origin` with any salt."""

    origin: Origin
    keys: frozenset[bytes]

    def begins(self, mine: Origin, tokens: list[int]) -> bool:
        """Whether one of them is the first of a prompt, `tokens`, under the salt of `mine`, and no other."""
        return block_key(replace(self.origin, salt=mine.salt).root, tokens) in self.keys


def block_key(parent: bytes, tokens: list[int]) -> bytes:
    """Key of the whole block `tokens` that follows the block with key `parent`."""
    digest = blake2b(parent, digest_size=_KEY_BYTES, person=b"headway-block")
    digest.update(array("q", tokens).tobytes())
    return digest.digest()


class KeyChain:
    """The keys of one sequence's whole blocks, each computed once. A chain from a `root` alone explains nothing about
    other origins."""

    def __init__(self, root: bytes | Origin, block_tokens: int) -> None:
        self.origin = root if isinstance(root, Origin) else None
        self.root = root.root if isinstance(root, Origin) else root
        self.block_tokens = block_tokens
        self._keys: list[bytes] = []

    def upto(self, tokens: list[int], blocks: int) -> list[bytes]:
        """Keys of the first `blocks` blocks of `tokens`. The returned list may be longer; do not change it."""
        size = self.block_tokens
        keys = self._keys
        while len(keys) < blocks:
            start = len(keys) * size
            keys.append(block_key(keys[-1] if keys else self.root, tokens[start : start + size]))
        return keys
