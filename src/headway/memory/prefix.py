"""The index of prefix caching: which blocks hold which prefixes, and why a prompt found no more than it did."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from headway.core.miss import Miss
from headway.memory.keys import block_key

#: Evicted keys that are remembered, only to be able to say "it was cached, and was evicted".
_REMEMBERED_EVICTIONS = 4096
#: So many blocks that follow a different one are looked at, to say whether the difference was a small one.
_FOLLOWED = 8


class PrefixIndex:
    """Key to block, with the tokens of each indexed block for explanations."""

    def __init__(self) -> None:
        self._block: dict[bytes, int] = {}
        self._tokens: dict[bytes, list[int]] = {}
        self._parent: dict[bytes, bytes] = {}
        self._following: dict[bytes, list[list[int]]] = {}  # by parent: the tokens of its children, sorted
        self._evicted: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._block)

    def get(self, key: bytes) -> int | None:
        return self._block.get(key)

    def put(self, key: bytes, block: int, parent: bytes, tokens: list[int]) -> None:
        """Index `block`. The key must not be indexed yet."""
        self._block[key] = block
        self._tokens[key] = tokens
        self._parent[key] = parent
        insort(self._following.setdefault(parent, []), tokens)
        self._evicted.pop(key, None)

    def forget(self, key: bytes) -> None:
        """The block of `key` no longer holds what the key says."""
        del self._block[key]
        parent, tokens = self._parent.pop(key), self._tokens.pop(key)
        following = self._following[parent]
        del following[bisect_left(following, tokens)]
        if not following:
            del self._following[parent]

    def evict(self, key: bytes) -> None:
        """Forget `key`, but remember that it was cached."""
        self.forget(key)
        self._evicted[key] = None
        if len(self._evicted) > _REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

    def match(self, keys: list[bytes], limit: int) -> list[int]:
        """Blocks of the longest indexed prefix of `keys`, at most `limit` of them."""
        found: list[int] = []
        for key in keys[:limit]:
            block = self._block.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def explain(self, root: bytes, keys: list[bytes], matched: int, limit: int, tokens: list[int], size: int) -> Miss:
        """Why `matched` blocks of `size` tokens were found for `tokens` where `limit` could have been."""
        if matched >= limit:
            return Miss("whole", limit * size)
        at = matched * size
        if keys[matched] in self._evicted:
            return Miss("evicted", at)
        parent = keys[matched - 1] if matched else root
        wanted = tokens[at : at + size]
        following = self._following.get(parent, [])
        place = bisect_left(following, wanted)  # in sorted order the one that agrees furthest is next to it
        nearby = following[max(0, place - 1) : place + 1]
        nearest = max(nearby, key=lambda near: _common(near, wanted), default=[])
        agreeing = _common(nearest, wanted)
        if matched == 0 and agreeing == 0:
            return Miss("none", 0)
        again = self._again(block_key(parent, nearest), nearest, tokens[at + agreeing : at + 2 * size], agreeing)
        return Miss("differs", at + agreeing, again)

    def _again(self, key: bytes, nearest: list[int], tokens: list[int], agreeing: int) -> int:
        """How many of `tokens` are the same at their places in the block `nearest`, whose key is `key`, from
        `agreeing` on, and in the block that follows it."""
        inside = len(nearest) - agreeing
        here = _same(nearest[agreeing:], tokens)
        behind = [_same(block, tokens[inside:]) for block in self._following.get(key, [])[:_FOLLOWED]]
        return here + max(behind, default=0)


def _common(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


def _same(a: list[int], b: list[int]) -> int:
    return sum(x == y for x, y in zip(a, b, strict=False))
